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

// routing identifies the caller and the port of requests. The control plane evaluates rule conditions on the caller
// once, so that Envoy does not evaluate them for each request.
type routing struct {
	mesh  *meshconfig.MeshConfig
	scope *snapshot.Scope
	// gateway is "mesh" for a sidecar, or the full name of the Gateway.
	gateway   string
	namespace string
	labels    map[string]string
	// port is the port of the service, or of the gateway's server.
	port uint32
	// captured: the original destination of connections is available.
	captured bool
}

func (v proxyView) routing(gateway string, port uint32) routing {
	return routing{mesh: v.s.Mesh, scope: v.scope, gateway: gateway, namespace: v.p.Namespace, labels: v.p.Labels, port: port, captured: v.p.isCaptured()}
}

// appliesTo reports whether the conditions on gateways, labels, namespace and port match. The control plane can
// evaluate these conditions because they do not depend on the request.
func (r routing) appliesTo(vs *snapshot.VirtualService, gateways []string, labels map[string]string, namespace string, port uint32) bool {
	if len(gateways) > 0 && !slices.ContainsFunc(gateways, func(g string) bool {
		return snapshot.GatewayName(g, vs.Namespace) == r.gateway
	}) {
		return false
	}
	// At a gateway, the control plane does not know the labels of the client's workload. As in Istio, it uses the
	// gateway's own labels.
	return (port == 0 || port == r.port) && (namespace == "" || namespace == r.namespace) && snapshot.Selects(labels, r.labels)
}

// cluster returns the name of the cluster of a destination. namespace is the namespace of the VirtualService. If the
// cluster does not exist, Envoy responds 503, and the snapshot's Problems report the cause.
func (r routing) cluster(d *networking.Destination, namespace string) string {
	svc, port := r.destination(d, namespace)
	host := r.scope.Hostname(d.GetHost(), namespace)
	if svc != nil {
		host = svc.Hostname
	}
	return OutboundCluster(host, d.GetSubset(), port)
}

// destination returns the service and the port to which d refers. The port is the specified one, or else the service's
// only port, or else the port of the request.
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

// serviceRoutes returns the routes for a port of a service: the routes of its VirtualService, or a single route to the
// service.
func (r routing) serviceRoutes(svc *registry.Service) []*routev3.Route {
	if vs := r.scope.VirtualService(svc.Hostname); vs != nil && len(vs.Spec.GetHttp()) > 0 {
		return r.routes(vs)
	}
	return r.routesTo(svc, "")
}

// routesTo returns one route that sends all requests to a cluster of the service.
func (r routing) routesTo(svc *registry.Service, subset string) []*routev3.Route {
	action := &routev3.RouteAction{
		ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: OutboundCluster(svc.Hostname, subset, r.port)},
		Timeout:          duration(0),
		RetryPolicy:      r.retryPolicy(nil),
		HashPolicy:       hashPolicies(r.scope.DestinationRule(svc).Traffic("", r.port)),
	}
	route := &routev3.Route{Name: "default", Match: matchAllPaths(), Action: &routev3.Route_Route{Route: action}}
	return []*routev3.Route{r.addPeerHeader(r.addForwardTargets(route))}
}

func matchAllPaths() *routev3.RouteMatch {
	return &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}}
}

// routes returns those routes of a VirtualService that apply to the caller, in order. It stops after the first
// catch-all route, because no later route can match.
func (r routing) routes(vs *snapshot.VirtualService) []*routev3.Route {
	var out []*routev3.Route
	for _, rule := range vs.Spec.GetHttp() {
		if rule.GetDelegate() != nil {
			continue
		}
		if len(rule.GetMatch()) == 0 {
			return append(out, r.buildRoute(vs, rule, nil))
		}
		for _, m := range rule.GetMatch() {
			if !r.appliesTo(vs, m.GetGateways(), m.GetSourceLabels(), m.GetSourceNamespace(), m.GetPort()) {
				continue
			}
			route := r.buildRoute(vs, rule, m)
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

// buildRoute returns the route for one rule and one of its match conditions.
func (r routing) buildRoute(vs *snapshot.VirtualService, rule *networking.HTTPRoute, m *networking.HTTPMatchRequest) *routev3.Route {
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
		out.Action = r.forwardAction(vs, rule, out)
	}
	addHeaders(out, rule.GetHeaders())
	out.TypedPerFilterConfig = filterSettings(rule)
	return r.addPeerHeader(r.addForwardTargets(out))
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

// forwardAction returns the action that sends requests to one or several clusters.
func (r routing) forwardAction(vs *snapshot.VirtualService, rule *networking.HTTPRoute, route *routev3.Route) *routev3.Route_Route {
	action := &routev3.RouteAction{
		Timeout:               duration(rule.GetTimeout().AsDuration()),
		RetryPolicy:           r.retryPolicy(rule.GetRetries()),
		RequestMirrorPolicies: r.mirrorPolicies(vs, rule),
	}
	applyRewrite(action, rule.GetRewrite())
	authority := rewrittenAuthority(rule.GetHeaders())
	targets := dropZeroWeights(rule.GetRoute())
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

// dropZeroWeights removes destinations with weight 0. If no destination has a weight, it returns all of them unchanged.
func dropZeroWeights(routes []*networking.HTTPRouteDestination) []*networking.HTTPRouteDestination {
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
		// Validation refuses a rule without destinations. This entry is a safeguard: Envoy would reject all routes
		// because of one empty list of weighted clusters.
		w.Clusters = []*routev3.WeightedCluster_ClusterWeight{{Name: BlackHoleCluster, Weight: u32(1)}}
	}
	return &routev3.RouteAction_WeightedClusters{WeightedClusters: w}
}
