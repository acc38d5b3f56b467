package translate

import (
	"maps"
	"net"
	"regexp"
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	filterstatev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/common/set_filter_state/v3"
	headertometadatav3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/header_to_metadata/v3"
	setfilterstatev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/set_filter_state/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
)

// Where a request to a service goes that is looked up by name, the service says, and never the caller alone: the host is
// one that the service has, and the port the service's. Else whoever can call would have the proxy call anybody.

// captured says whether the proxy knows where connections were bound for.
func (p *Proxy) captured() bool { return p.Interception == Redirect && p.Type == Sidecar }

// saysName says whether what a port speaks begins with the name of the host: requests do, and handshakes of TLS.
func saysName(p registry.Protocol) bool {
	return p.IsHTTP() || p == registry.TLS || p == registry.HTTPS
}

// place is where requests to a cluster by name go.
type place struct {
	// host is where all of them go; empty where it is the one that a request names.
	host string
	port uint32
	// pattern is what hosts that requests may name are like, where host is empty.
	pattern string
}

// placeOf is where requests to a cluster go that are looked up by name; rewritten is the host that a rule gives them. Not
// ok where the cluster has its endpoints otherwise.
func (r routing) placeOf(cluster, rewritten string) (p place, ok bool) {
	host, _, number, ok := parseOutbound(cluster)
	if !ok {
		return place{}, false
	}
	svc := r.scope.Service(host)
	if svc == nil || svc.Resolution != registry.Passthrough {
		return place{}, false
	}
	port, ok := svc.Port(number)
	if !ok || r.captured && !(svc.ByName && saysName(port.Protocol)) {
		return place{}, false
	}
	p = place{port: port.TargetPort}
	switch named := withoutPort(rewritten); {
	case !strings.HasPrefix(svc.Hostname, "*"):
		p.host = svc.Hostname
	case plainHost.MatchString(named) && snapshot.MatchHost(svc.Hostname, strings.ToLower(named)):
		p.host = named
	default:
		p.pattern = svc.Hostname
	}
	return p, true
}

// plainHost is a host's name that means nothing else where it is written.
var plainHost = regexp.MustCompile(`^[A-Za-z0-9_.-]+$`)

func withoutPort(authority string) string {
	if host, _, err := net.SplitHostPort(authority); err == nil {
		return host
	}
	return authority
}

// boundByName has a route that leads to services by name take only requests for hosts that these have, and says which
// place they go to.
func (r routing) boundByName(route *routev3.Route) *routev3.Route {
	action := route.GetRoute()
	if action == nil {
		return route
	}
	rewritten := action.GetHostRewriteLiteral()
	if p, ok := r.placeOf(action.GetCluster(), rewritten); ok {
		p.bound(route)
		route.TypedPerFilterConfig = withSettings(route.GetTypedPerFilterConfig(), p.settings())
	}
	for _, c := range action.GetWeightedClusters().GetClusters() {
		if p, ok := r.placeOf(c.GetName(), rewritten); ok {
			p.bound(route)
			c.TypedPerFilterConfig = withSettings(c.GetTypedPerFilterConfig(), p.settings())
		}
	}
	return route
}

func withSettings(to, more map[string]*anypb.Any) map[string]*anypb.Any {
	if to == nil {
		return more
	}
	maps.Copy(to, more)
	return to
}

// bound has a route take requests for the hosts of the pattern only.
func (p place) bound(route *routev3.Route) {
	if p.pattern == "" {
		return
	}
	expression := `(?i)[a-z0-9_.-]+` + regexp.QuoteMeta(strings.TrimPrefix(p.pattern, "*")) + `(:[0-9]+)?`
	route.Match.Headers = append(route.Match.Headers, &routev3.HeaderMatcher{
		Name: ":authority", HeaderMatchSpecifier: &routev3.HeaderMatcher_StringMatch{StringMatch: regex(expression)},
	})
}

// settings are those of the filters that say where a request goes.
func (p place) settings() map[string]*anypb.Any {
	out := map[string]*anypb.Any{}
	host := p.host
	if host == "" {
		host = "%DYNAMIC_METADATA(" + nameMetadata + ":host)%"
		out[nameFilter] = anyOf(&headertometadatav3.Config{RequestRules: []*headertometadatav3.Config_Rule{{
			Header: ":authority",
			OnHeaderPresent: &headertometadatav3.Config_KeyValuePair{
				MetadataNamespace: nameMetadata, Key: "host",
				RegexValueRewrite: &matcherv3.RegexMatchAndSubstitute{Pattern: regexMatcher(`^([^:]*)(:[0-9]*)?$`), Substitution: `\1`},
			},
		}}})
	}
	out[placeFilter] = anyOf(&setfilterstatev3.Config{OnRequestHeaders: []*filterstatev3.FilterStateValue{
		stateOf("envoy.upstream.dynamic_host", host),
		stateOf("envoy.upstream.dynamic_port", strconv.FormatUint(uint64(p.port), 10)),
	}})
	return out
}

func stateOf(key, format string) *filterstatev3.FilterStateValue {
	return &filterstatev3.FilterStateValue{
		Key: &filterstatev3.FilterStateValue_ObjectKey{ObjectKey: key},
		Value: &filterstatev3.FilterStateValue_FormatString{FormatString: &corev3.SubstitutionFormatString{
			Format: &corev3.SubstitutionFormatString_TextFormatSource{TextFormatSource: &corev3.DataSource{
				Specifier: &corev3.DataSource_InlineString{InlineString: format},
			}},
		}},
	}
}
