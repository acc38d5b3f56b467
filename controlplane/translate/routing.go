package translate

import (
	"fmt"
	"slices"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	meshconfig "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
)

// routing is who routes, and for which port: what the rules' conditions on the caller are checked against here, once,
// rather than by Envoy with each request.
type routing struct {
	mesh  *meshconfig.MeshConfig
	scope *snapshot.Scope
	// gateway is "mesh" for a sidecar, else the full name of the Gateway.
	gateway   string
	namespace string
	labels    map[string]string
	// port is the service's port, or the gateway server's.
	port uint32
	// captured: where callers wanted to go is known.
	captured bool
}

func (v view) routing(gateway string, port uint32) routing {
	return routing{mesh: v.s.Mesh, scope: v.scope, gateway: gateway, namespace: v.p.Namespace, labels: v.p.Labels, port: port, captured: v.p.captured()}
}

// concerns says whether a condition's parts that are about the caller and the port are met.
func (r routing) concerns(vs *snapshot.VirtualService, gateways []string, labels map[string]string, namespace string, port uint32) bool {
	if len(gateways) > 0 && !slices.ContainsFunc(gateways, func(g string) bool {
		return snapshot.GatewayName(g, vs.Namespace) == r.gateway
	}) {
		return false
	}
	// At a gateway the caller's labels are not known, and Istio lets the gateway's own stand for them.
	return (port == 0 || port == r.port) && (namespace == "" || namespace == r.namespace) && snapshot.Selects(labels, r.labels)
}

// cluster is the name of the cluster of a destination, as a document of the namespace writes it. It may be one that does
// not exist: then requests are answered with 503, and the snapshot's Problems tell why.
func (r routing) cluster(d *networking.Destination, namespace string) string {
	svc, port := r.destination(d, namespace)
	host := r.scope.Hostname(d.GetHost(), namespace)
	if svc != nil {
		host = svc.Hostname
	}
	return OutboundCluster(host, d.GetSubset(), port)
}

// destination finds the service and the port that are meant: the port that is named, else the service's only one, else
// the one that was called.
func (r routing) destination(d *networking.Destination, namespace string) (*registry.Service, uint32) {
	svc := r.scope.Resolve(d.GetHost(), namespace)
	switch {
	case d.GetPort().GetNumber() != 0:
		return svc, d.GetPort().GetNumber()
	case svc != nil && len(svc.Ports) == 1:
		return svc, svc.Ports[0].Number
	}
	return svc, r.port
}

// serviceRoutes are the routes for a port of a service: those of its VirtualService, or all to the service itself.
func (r routing) serviceRoutes(svc *registry.Service) []*routev3.Route {
	if vs := r.scope.VirtualService(svc.Hostname); vs != nil && len(vs.Spec.GetHttp()) > 0 {
		return r.routes(vs)
	}
	return r.allTo(svc, "")
}

// allTo leads all requests to a cluster of the service.
func (r routing) allTo(svc *registry.Service, subset string) []*routev3.Route {
	action := &routev3.RouteAction{
		ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: OutboundCluster(svc.Hostname, subset, r.port)},
		Timeout:          duration(0),
		RetryPolicy:      r.retries(nil),
		HashPolicy:       hashPolicies(r.scope.DestinationRule(svc).Traffic("", r.port)),
	}
	route := &routev3.Route{Name: "default", Match: everyPath(), Action: &routev3.Route_Route{Route: action}}
	return []*routev3.Route{r.introduce(r.boundByName(route))}
}

func everyPath() *routev3.RouteMatch {
	return &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}}
}

// routes are those of a VirtualService that concern the caller, in their order, up to the first that matches everything.
func (r routing) routes(vs *snapshot.VirtualService) []*routev3.Route {
	var out []*routev3.Route
	for _, rule := range vs.Spec.GetHttp() {
		if rule.GetDelegate() != nil {
			continue
		}
		if len(rule.GetMatch()) == 0 {
			return append(out, r.route(vs, rule, nil))
		}
		for _, m := range rule.GetMatch() {
			if !r.concerns(vs, m.GetGateways(), m.GetSourceLabels(), m.GetSourceNamespace(), m.GetPort()) {
				continue
			}
			route := r.route(vs, rule, m)
			out = append(out, route)
			if matchesEverything(route.GetMatch()) {
				return out
			}
		}
	}
	return out
}

func matchesEverything(m *routev3.RouteMatch) bool {
	return m.GetPrefix() == "/" && len(m.GetHeaders()) == 0 && len(m.GetQueryParameters()) == 0 && len(m.GetDynamicMetadata()) == 0
}

// route is one rule under one of its conditions.
func (r routing) route(vs *snapshot.VirtualService, rule *networking.HTTPRoute, m *networking.HTTPMatchRequest) *routev3.Route {
	out := &routev3.Route{
		Name:       routeName(rule, m),
		Match:      routeMatch(m),
		StatPrefix: m.GetStatPrefix(),
		Metadata:   ruleMetadata(vs.Resource),
	}
	switch {
	case rule.GetRedirect() != nil:
		out.Action = redirectAction(rule.GetRedirect(), r.port)
	case rule.GetDirectResponse() != nil:
		out.Action = directResponse(rule.GetDirectResponse())
	default:
		out.Action = r.forward(vs, rule, out)
	}
	addHeaders(out, rule.GetHeaders())
	out.TypedPerFilterConfig = filterSettings(rule)
	return r.introduce(r.boundByName(out))
}

func routeName(rule *networking.HTTPRoute, m *networking.HTTPMatchRequest) string {
	switch {
	case m.GetName() == "":
		return rule.GetName()
	case rule.GetName() == "":
		return m.GetName()
	}
	return fmt.Sprintf("%s.%s", rule.GetName(), m.GetName())
}

// forward sends requests to one cluster or several.
func (r routing) forward(vs *snapshot.VirtualService, rule *networking.HTTPRoute, route *routev3.Route) *routev3.Route_Route {
	action := &routev3.RouteAction{
		Timeout:               duration(rule.GetTimeout().AsDuration()),
		RetryPolicy:           r.retries(rule.GetRetries()),
		RequestMirrorPolicies: r.mirrors(vs, rule),
	}
	rewrite(action, rule.GetRewrite())
	authority := rewrittenAuthority(rule.GetHeaders())
	targets := weighted(rule.GetRoute())
	for _, d := range targets {
		svc, port := r.destination(d.GetDestination(), vs.Namespace)
		if svc != nil && action.HashPolicy == nil {
			action.HashPolicy = hashPolicies(r.scope.DestinationRule(svc).Traffic(d.GetDestination().GetSubset(), port))
		}
	}
	if len(targets) == 1 {
		action.ClusterSpecifier = &routev3.RouteAction_Cluster{Cluster: r.cluster(targets[0].GetDestination(), vs.Namespace)}
		addHeaders(route, targets[0].GetHeaders())
		if a := rewrittenAuthority(targets[0].GetHeaders()); a != "" {
			authority = a
		}
	} else {
		action.ClusterSpecifier = r.weightedClusters(vs, targets)
	}
	if authority != "" {
		action.HostRewriteSpecifier = &routev3.RouteAction_HostRewriteLiteral{HostRewriteLiteral: authority}
	}
	return &routev3.Route_Route{Route: action}
}

// weighted leaves out what gets no share. If nothing gets any, nobody said how to share: then all get the same.
func weighted(routes []*networking.HTTPRouteDestination) []*networking.HTTPRouteDestination {
	var out []*networking.HTTPRouteDestination
	for _, d := range routes {
		if d.GetWeight() > 0 {
			out = append(out, d)
		}
	}
	if len(out) == 0 {
		return routes
	}
	return out
}

func (r routing) weightedClusters(vs *snapshot.VirtualService, targets []*networking.HTTPRouteDestination) *routev3.RouteAction_WeightedClusters {
	w := &routev3.WeightedCluster{}
	for _, d := range targets {
		c := &routev3.WeightedCluster_ClusterWeight{
			Name:   r.cluster(d.GetDestination(), vs.Namespace),
			Weight: u32(uint32(max(1, d.GetWeight()))),
		}
		addClusterHeaders(c, d.GetHeaders())
		w.Clusters = append(w.Clusters, c)
	}
	if len(w.Clusters) == 0 {
		// A rule without any destination is refused before it gets here; Envoy would refuse all routes for it.
		w.Clusters = []*routev3.WeightedCluster_ClusterWeight{{Name: BlackHoleCluster, Weight: u32(1)}}
	}
	return &routev3.RouteAction_WeightedClusters{WeightedClusters: w}
}
