package translate

import (
	"slices"

	networking "istio.io/api/networking/v1alpha3"
	security "istio.io/api/security/v1beta1"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
)

// Affected gives the types whose resources may differ for the proxy after the change, in the order of xds.Order. s is the
// snapshot after the change. It never misses a type; that it names one for nothing costs the work of making what turns
// out to be the same.
func Affected(s *snapshot.Snapshot, p *Proxy, change snapshot.Change) []string {
	if change.Full {
		return slices.Clone(xds.Order)
	}
	a := affected{view: newView(s, p), types: map[string]bool{}}
	a.services(change)
	for _, versions := range change.Resources {
		for _, r := range versions {
			a.resource(r)
		}
	}
	var out []string
	for _, t := range xds.Order {
		if a.types[t] {
			out = append(out, t)
		}
	}
	return out
}

// affected collects types.
type affected struct {
	view
	types map[string]bool
}

func (a *affected) add(types ...string) {
	for _, t := range types {
		a.types[t] = true
	}
}

func (a *affected) services(change snapshot.Change) {
	for _, svc := range change.Services {
		if a.local(svc) {
			a.add(xds.ClusterType, xds.ListenerType, xds.RouteType)
		}
		if a.scope.MaySee(svc) {
			a.add(xds.ClusterType, xds.EndpointType, xds.RouteType, xds.NameTableType)
			if a.listensForServices() {
				a.add(xds.ListenerType)
			}
		}
	}
	for _, svc := range change.Clusters {
		if a.scope.MaySee(svc) {
			a.add(xds.ClusterType, xds.EndpointType)
		}
	}
	for _, svc := range change.Endpoints {
		if a.scope.MaySee(svc) && svc.Resolution == registry.Static {
			a.add(xds.EndpointType)
			if len(svc.Addresses) == 0 || a.p.Interception == None {
				a.add(xds.NameTableType)
			}
		}
		if a.local(svc) && slices.ContainsFunc(svc.Ports, func(port registry.Port) bool { return port.TargetPortName != "" }) {
			a.add(xds.ClusterType, xds.ListenerType, xds.RouteType)
		}
	}
}

// local says whether a service selects the proxy's own workload.
func (a *affected) local(svc *registry.Service) bool {
	return svc.Namespace == a.p.Namespace && len(svc.Selector) > 0 && snapshot.Selects(svc.Selector, a.p.Labels)
}

// listensForServices says whether listeners depend on which services there are, and which ports they have.
func (a *affected) listensForServices() bool {
	return a.p.Type == Router || a.p.Interception != None || len(a.p.Upstreams) > 0
}

// resource adds what one version of a rule or policy has a part in.
func (a *affected) resource(r *config.Resource) {
	root := a.s.Mesh.GetRootNamespace()
	near := r.Namespace == a.p.Namespace || r.Namespace == root
	switch spec := r.Spec.(type) {
	case *networking.VirtualService:
		a.virtualService(r, spec)
	case *networking.DestinationRule:
		a.destinationRule(r, spec)
	case *networking.Gateway:
		if a.p.Type == Router && snapshot.Selects(spec.GetSelector(), a.p.Labels) {
			a.add(xds.ListenerType, xds.RouteType)
		}
	case *networking.Sidecar:
		if a.p.Type == Sidecar && near {
			a.add(xds.Order...)
		}
	case *security.PeerAuthentication:
		// What it means for callers shows in the endpoints and their clusters.
		if a.p.Type == Sidecar && near {
			a.add(xds.ListenerType)
		}
	case *security.AuthorizationPolicy:
		if near && snapshot.Selects(spec.GetSelector().GetMatchLabels(), a.p.Labels) {
			a.add(xds.ListenerType, xds.RouteType)
		}
	}
}

func (a *affected) virtualService(r *config.Resource, spec *networking.VirtualService) {
	if !a.s.RuleVisibleTo(r, a.p.Namespace) || !a.bound(r, spec) {
		return
	}
	a.add(xds.RouteType)
	if len(spec.GetTcp())+len(spec.GetTls()) > 0 {
		a.add(xds.ListenerType)
	}
	// Where a Sidecar narrows the scope, rules widen it by what they route to.
	if a.scope.Sidecar != nil {
		a.add(xds.ClusterType, xds.EndpointType, xds.ListenerType, xds.NameTableType)
	}
}

// bound says whether the rules are for this proxy: for sidecars, or for a Gateway that it serves.
func (a *affected) bound(r *config.Resource, spec *networking.VirtualService) bool {
	gateways := spec.GetGateways()
	if a.p.Type == Sidecar {
		return len(gateways) == 0 || slices.Contains(gateways, snapshot.MeshGateway)
	}
	for _, g := range a.s.Gateways(a.p.Labels) {
		for _, name := range gateways {
			if snapshot.GatewayName(name, r.Namespace) == g.FullName() {
				return true
			}
		}
	}
	return false
}

func (a *affected) destinationRule(r *config.Resource, spec *networking.DestinationRule) {
	if r.Namespace != a.p.Namespace && !a.s.RuleVisibleTo(r, a.p.Namespace) {
		return
	}
	a.add(xds.ClusterType, xds.EndpointType)
	// What consistent hashing goes by is in the routes. A rule without it may hide one with it, or have hidden it.
	if snapshot.Hashes(spec) || a.s.AnyHashing() {
		a.add(xds.RouteType)
	}
}
