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

// Even if Envoy resolves a service by name, the service determines the destination. The request's host must match the
// service's host, and Envoy connects to the service's port. Otherwise a client could make the proxy connect to any
// host.

// isCaptured reports whether the kernel redirects connections to the proxy, which then knows their original
// destination.
func (p *Proxy) isCaptured() bool { return p.Interception == Redirect && p.Type == Sidecar }

// carriesHostName reports whether connections of the protocol begin with the host name. HTTP requests and TLS
// handshakes do.
func carriesHostName(p registry.Protocol) bool {
	return p.IsHTTP() || p == registry.TLS || p == registry.HTTPS
}

// forwardTarget is the destination of requests to a cluster that Envoy resolves by name.
type forwardTarget struct {
	// host is the destination of all requests. If it is empty, each request is sent to the host in its Host header.
	host string
	port uint32
	// pattern limits the Host headers of requests if host is empty.
	pattern string
}

// findForwardTarget returns the destination of requests to a cluster that Envoy resolves by name. rewritten is the host
// to which a rule rewrites requests, or "". ok is false for other clusters.
func (r routing) findForwardTarget(cluster, rewritten string) (p forwardTarget, ok bool) {
	host, _, number, ok := parseOutbound(cluster)
	if !ok {
		return forwardTarget{}, false
	}
	svc := r.scope.Service(host)
	if svc == nil || svc.Resolution != registry.Passthrough {
		return forwardTarget{}, false
	}
	port, ok := svc.Port(number)
	if !ok || r.captured && !(svc.ByName && carriesHostName(port.Protocol)) {
		return forwardTarget{}, false
	}
	p = forwardTarget{port: port.TargetPort}
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

// plainHost matches a host name without characters that have a meaning in Envoy's format strings.
var plainHost = regexp.MustCompile(`^[A-Za-z0-9_.-]+$`)

func withoutPort(authority string) string {
	if host, _, err := net.SplitHostPort(authority); err == nil {
		return host
	}
	return authority
}

// addForwardTargets modifies a route to clusters that Envoy resolves by name. It limits the route to hosts of the
// clusters' services, and sets the destination of the requests. It does not change other routes.
func (r routing) addForwardTargets(route *routev3.Route) *routev3.Route {
	action := route.GetRoute()
	if action == nil {
		return route
	}
	rewritten := action.GetHostRewriteLiteral()
	if p, ok := r.findForwardTarget(action.GetCluster(), rewritten); ok {
		p.limitHosts(route)
		route.TypedPerFilterConfig = withSettings(route.GetTypedPerFilterConfig(), p.filterConfigs())
	}
	for _, c := range action.GetWeightedClusters().GetClusters() {
		if p, ok := r.findForwardTarget(c.GetName(), rewritten); ok {
			p.limitHosts(route)
			c.TypedPerFilterConfig = withSettings(c.GetTypedPerFilterConfig(), p.filterConfigs())
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

// limitHosts makes a route match only requests whose host matches the pattern.
func (p forwardTarget) limitHosts(route *routev3.Route) {
	if p.pattern == "" {
		return
	}
	expression := `(?i)[a-z0-9_.-]+` + regexp.QuoteMeta(strings.TrimPrefix(p.pattern, "*")) + `(:[0-9]+)?`
	route.Match.Headers = append(route.Match.Headers, &routev3.HeaderMatcher{
		Name: ":authority", HeaderMatchSpecifier: &routev3.HeaderMatcher_StringMatch{StringMatch: regex(expression)},
	})
}

// filterConfigs returns the per-route configuration of the filters that set a request's destination.
func (p forwardTarget) filterConfigs() map[string]*anypb.Any {
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
	out[targetFilter] = anyOf(&setfilterstatev3.Config{OnRequestHeaders: []*filterstatev3.FilterStateValue{
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
