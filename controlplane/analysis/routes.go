package analysis

import (
	"fmt"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
)

// maxComparedRoutes limits the number of earlier matches with which a match is compared. To compare all pairs of a very
// long list would be too expensive.
const maxComparedRoutes = 1000

// checkRoutes reports unreachable routes of a VirtualService, and weights that look like wrong percentages.
func (c *snapshotCheck) checkRoutes(v *snapshot.VirtualService) {
	var before []earlier[*networking.HTTPMatchRequest]
	for i, r := range v.Spec.GetHttp() {
		at := routeAt{"http", i}
		before = reportUnreachable(c, v, at, r.GetMatch(), before, func(a, b *networking.HTTPMatchRequest) bool { return coversHTTP(v, a, b) })
		weights(c, v, at, r.GetRoute())
	}
	var l4 []earlier[*networking.L4MatchAttributes]
	for i, r := range v.Spec.GetTcp() {
		at := routeAt{"tcp", i}
		l4 = reportUnreachable(c, v, at, r.GetMatch(), l4, func(a, b *networking.L4MatchAttributes) bool { return coversL4(v, a, b) })
		weights(c, v, at, r.GetRoute())
	}
	var tls []earlier[*networking.TLSMatchAttributes]
	for i, r := range v.Spec.GetTls() {
		at := routeAt{"tls", i}
		tls = reportUnreachable(c, v, at, r.GetMatch(), tls, func(a, b *networking.TLSMatchAttributes) bool { return coversTLS(v, a, b) })
		weights(c, v, at, r.GetRoute())
	}
}

// routeAt is the position of a route. Its path is formatted only for findings.
type routeAt struct {
	list string
	i    int
}

func (r routeAt) String() string { return fmt.Sprintf("spec.%s[%d]", r.list, r.i) }

func weights[D interface{ GetWeight() int32 }](c *snapshotCheck, v *snapshot.VirtualService, at routeAt, to []D) {
	total := 0
	for _, d := range to {
		total += int(d.GetWeight())
	}
	if len(to) > 1 && total != 100 {
		c.report(config.WeightsNot100, config.Info, v.Resource, at.String()+".route", fmt.Sprint(total),
			"the sum of the weights is not 100, so proxies use the weights as proportions", "if the weights are percentages, make them add up to 100")
	}
}

// earlier is a match that precedes the match with which it is compared.
type earlier[M any] struct {
	match M
	route routeAt
	at    int // index of the match in its route; -1 for a route without matches, which matches everything
}

func (e earlier[M]) String() string {
	if e.at < 0 {
		return e.route.String()
	}
	return fmt.Sprintf("%v.match[%d]", e.route, e.at)
}

// reportUnreachable reports a route, or some of its matches, if earlier matches cover it completely. It returns before,
// extended by the matches of this route.
func reportUnreachable[M matchWithPort](c *snapshotCheck, v *snapshot.VirtualService, at routeAt, matches []M, before []earlier[M], covers func(a, b M) bool) []earlier[M] {
	var own []earlier[M]
	for j, m := range matches {
		if e := (earlier[M]{match: m, route: at, at: j}); !c.checkUnreachableMatch(v, m, e) {
			own = append(own, e)
		}
	}
	if len(matches) == 0 {
		own = []earlier[M]{{route: at, at: -1}}
	}
	by := make([]*earlier[M], len(own))
	lost := 0
	for j, m := range own {
		if i := slices.IndexFunc(before, func(e earlier[M]) bool { return e.at < 0 || m.at >= 0 && covers(e.match, m.match) }); i >= 0 {
			by[j] = &before[i]
			lost++
		}
	}
	const remedy = "move it before the route or match that matches its requests, or remove it"
	switch {
	case lost > 0 && lost == len(own) && lost == max(len(matches), 1):
		c.reportWarning(config.UnreachableRoute, v.Resource, at.String(), "", fmt.Sprintf("the route is never reached: %v matches all its requests", by[0]), remedy)
	case lost > 0:
		for j := range own {
			if by[j] != nil {
				c.reportWarning(config.UnreachableRoute, v.Resource, own[j].String(), "", fmt.Sprintf("the match is never reached: %v matches all its requests", by[j]), remedy)
			}
		}
	}
	if len(before) < maxComparedRoutes {
		before = append(before, own...)
	}
	return before
}

// matchWithPort is the common interface of HTTP, TCP and TLS matches.
type matchWithPort interface {
	fromSource
	GetPort() uint32
}

// checkUnreachableMatch reports a match for gateways to which the rule is not bound, or for a port at which no traffic
// can arrive. It returns true if it reports the match.
func (c *snapshotCheck) checkUnreachableMatch(v *snapshot.VirtualService, m matchWithPort, at fmt.Stringer) bool {
	if len(v.Gateways) == 0 {
		return false // a delegate
	}
	bound := v.Gateways
	if named := m.GetGateways(); len(named) > 0 {
		bound = slices.DeleteFunc(slices.Clone(bound), func(g string) bool {
			return !slices.ContainsFunc(named, func(name string) bool { return snapshot.GatewayName(name, v.Namespace) == g })
		})
		if len(bound) == 0 {
			c.reportWarning(config.UnreachableRoute, v.Resource, at.String()+".gateways", strings.Join(named, ", "),
				"the match is never reached: the VirtualService is not bound to this gateway", "add the gateway to spec.gateways, or correct its name")
			return true
		}
	}
	if port := m.GetPort(); port != 0 && !slices.ContainsFunc(bound, func(g string) bool { return c.canArrive(v, g, port) }) {
		c.reportWarning(config.UnreachableRoute, v.Resource, at.String()+".port", fmt.Sprint(port),
			"the match is never reached: none of the VirtualService's hosts and gateways has this port", "use the port of the Service, not its targetPort; for a gateway, use the port of the server")
		return true
	}
	return false
}

// canArrive reports whether traffic can arrive at a port: of a gateway, or of a rule's hosts at sidecars. It returns
// true if the gateway or a host is unknown.
func (c *snapshotCheck) canArrive(v *snapshot.VirtualService, gateway string, port uint32) bool {
	if gateway != snapshot.MeshGateway {
		i := slices.IndexFunc(c.s.AllGateways(), func(g snapshot.Gateway) bool { return g.FullName() == gateway })
		return i < 0 || slices.ContainsFunc(c.s.AllGateways()[i].Spec.GetServers(), func(s *networking.Server) bool { return s.GetPort().GetNumber() == port })
	}
	return slices.ContainsFunc(v.Hosts, func(host string) bool {
		services := c.s.Registry.ByHostname(host)
		return len(services) == 0 || slices.ContainsFunc(services, func(svc *registry.Service) bool {
			_, has := svc.Port(port)
			return has
		})
	})
}

// coversHTTP reports whether a matches all requests that b matches. If this cannot be decided, it returns false.
func coversHTTP(v *snapshot.VirtualService, a, b *networking.HTTPMatchRequest) bool {
	return coversURI(a, b) &&
		coversString(a.GetScheme(), b.GetScheme(), false) &&
		coversString(a.GetMethod(), b.GetMethod(), false) &&
		coversString(a.GetAuthority(), b.GetAuthority(), false) &&
		coversEach(a.GetHeaders(), b.GetHeaders()) &&
		coversEach(a.GetQueryParams(), b.GetQueryParams()) &&
		coversNot(a.GetWithoutHeaders(), b.GetWithoutHeaders()) &&
		(a.GetPort() == 0 || a.GetPort() == b.GetPort()) &&
		coversSource(v, a, b)
}

// fromSource is the interface of the conditions on the caller, which HTTP, TCP and TLS matches have.
type fromSource interface {
	GetSourceLabels() map[string]string
	GetSourceNamespace() string
	GetGateways() []string
}

func coversSource(v *snapshot.VirtualService, a, b fromSource) bool {
	if !snapshot.Selects(a.GetSourceLabels(), b.GetSourceLabels()) || a.GetSourceNamespace() != "" && a.GetSourceNamespace() != b.GetSourceNamespace() {
		return false
	}
	if len(a.GetGateways()) == 0 {
		return true
	}
	gateways := b.GetGateways()
	if len(gateways) == 0 {
		gateways = v.Gateways
	}
	for _, g := range gateways {
		if !slices.ContainsFunc(a.GetGateways(), func(has string) bool {
			return snapshot.GatewayName(has, v.Namespace) == snapshot.GatewayName(g, v.Namespace)
		}) {
			return false
		}
	}
	return true
}

func coversURI(a, b *networking.HTTPMatchRequest) bool {
	ua, ub := a.GetUri(), b.GetUri()
	if ua.GetPrefix() == "/" || ua.GetRegex() == ".*" || ua.GetRegex() == "/.*" {
		return true
	}
	if b.GetIgnoreUriCase() && !a.GetIgnoreUriCase() && ua.GetMatchType() != nil {
		return false
	}
	return coversString(ua, ub, a.GetIgnoreUriCase())
}

// coversString reports whether a matches all strings that b matches. A nil match matches everything.
func coversString(a, b *networking.StringMatch, fold bool) bool {
	if a.GetMatchType() == nil {
		return true
	}
	same := func(x, y string) bool { return x == y }
	prefix := strings.HasPrefix
	if fold {
		same = strings.EqualFold
		prefix = func(s, p string) bool { return strings.HasPrefix(strings.ToLower(s), strings.ToLower(p)) }
	}
	switch m := a.GetMatchType().(type) {
	case *networking.StringMatch_Exact:
		e, ok := b.GetMatchType().(*networking.StringMatch_Exact)
		return ok && same(m.Exact, e.Exact)
	case *networking.StringMatch_Prefix:
		switch o := b.GetMatchType().(type) {
		case *networking.StringMatch_Exact:
			return prefix(o.Exact, m.Prefix)
		case *networking.StringMatch_Prefix:
			return prefix(o.Prefix, m.Prefix)
		}
	case *networking.StringMatch_Regex:
		o, ok := b.GetMatchType().(*networking.StringMatch_Regex)
		return m.Regex == ".*" && b.GetMatchType() != nil || ok && m.Regex == o.Regex
	}
	return false
}

// coversEach reports whether each condition of a covers the condition of b with the same name. A condition without a
// value only requires that the name is present.
func coversEach(a, b map[string]*networking.StringMatch) bool {
	for name, m := range a {
		other, ok := b[name]
		if !ok || m.GetMatchType() != nil && !coversString(m, other, false) {
			return false
		}
	}
	return true
}

// coversNot compares conditions that exclude values: it reports whether b excludes everything that a excludes.
func coversNot(a, b map[string]*networking.StringMatch) bool {
	for name, m := range a {
		other, ok := b[name]
		if !ok || !coversString(other, m, false) {
			return false
		}
	}
	return true
}

func coversL4(v *snapshot.VirtualService, a, b *networking.L4MatchAttributes) bool {
	return (a.GetPort() == 0 || a.GetPort() == b.GetPort()) && coversSubnets(a.GetDestinationSubnets(), b.GetDestinationSubnets()) &&
		a.GetSourceSubnet() == "" && coversSource(v, a, b)
}

func coversTLS(v *snapshot.VirtualService, a, b *networking.TLSMatchAttributes) bool {
	for _, host := range b.GetSniHosts() {
		if !slices.ContainsFunc(a.GetSniHosts(), func(pattern string) bool { return snapshot.MatchHost(pattern, host) }) {
			return false
		}
	}
	return (a.GetPort() == 0 || a.GetPort() == b.GetPort()) && coversSubnets(a.GetDestinationSubnets(), b.GetDestinationSubnets()) &&
		coversSource(v, a, b)
}

func coversSubnets(a, b []string) bool {
	if len(a) == 0 {
		return true
	}
	return len(b) > 0 && !slices.ContainsFunc(b, func(s string) bool { return !slices.Contains(a, s) })
}
