package snapshot

import (
	"iter"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
)

// maxRouteHosts is the maximum number of hosts in RouteHosts. Rules with more hosts depend on the whole scope.
const maxRouteHosts = 4

// RouteHosts contains the parts of a scope on which a VirtualService's routes depend. It is comparable and can
// therefore be part of a Cache key.
type RouteHosts [maxRouteHosts]routeHost

type routeHost struct {
	host, name string // host as in the document, and its full name
	service    *registry.Service
	rule       *DestinationRule
}

// RouteHosts returns the parts of the scope on which the routes of v depend. ok is false if the routes have too many
// hosts or are delegated. The routes then count as dependent on the whole scope.
func (sc *Scope) RouteHosts(v *VirtualService) (uses RouteHosts, ok bool) {
	for _, r := range v.Spec.GetHttp() {
		if r.GetDelegate() != nil {
			return uses, false
		}
	}
	n := 0
	for host := range httpHosts(v.Spec) {
		if uses.contains(host, n) {
			continue
		}
		if n == maxRouteHosts {
			return uses, false
		}
		svc := sc.Resolve(host, v.Namespace)
		uses[n] = routeHost{host: host, name: sc.Hostname(host, v.Namespace), service: svc, rule: sc.DestinationRule(svc)}
		n++
	}
	return uses, true
}

// httpHosts returns the hosts of HTTP routes as they are written in the document, with duplicates.
func httpHosts(spec *networking.VirtualService) iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, r := range spec.GetHttp() {
			for _, d := range r.GetRoute() {
				if !yield(d.GetDestination().GetHost()) {
					return
				}
			}
			if r.GetMirror() != nil && !yield(r.GetMirror().GetHost()) {
				return
			}
			for _, m := range r.GetMirrors() {
				if !yield(m.GetDestination().GetHost()) {
					return
				}
			}
		}
	}
}

func (u *RouteHosts) contains(host string, n int) bool {
	for i := range n {
		if u[i].host == host {
			return true
		}
	}
	return false
}
