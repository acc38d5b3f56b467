package snapshot

import (
	"iter"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
)

// maxUses is how many hosts a rule may lead to for what it leads to to be told apart from all else in a scope.
const maxUses = 4

// Uses is what the routes of a VirtualService lead to in a scope: what they depend on of it besides the rule itself. It
// can be compared, and be part of a Cache's key.
type Uses [maxUses]lead

type lead struct {
	host, name string // as it is written, and what that means
	service    *registry.Service
	rule       *DestinationRule
}

// Uses gives what a VirtualService's routes lead to. It is not ok where that is too much, or where the routes are other
// documents' too: then they depend on the scope as a whole.
func (sc *Scope) Uses(v *VirtualService) (uses Uses, ok bool) {
	for _, r := range v.Spec.GetHttp() {
		if r.GetDelegate() != nil {
			return uses, false
		}
	}
	n := 0
	for host := range httpHosts(v.Spec) {
		if uses.has(host, n) {
			continue
		}
		if n == maxUses {
			return uses, false
		}
		svc := sc.Resolve(host, v.Namespace)
		uses[n] = lead{host: host, name: sc.Hostname(host, v.Namespace), service: svc, rule: sc.DestinationRule(svc)}
		n++
	}
	return uses, true
}

// httpHosts are the hosts that HTTP routes lead to, as they are written, some of them more than once.
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

func (u *Uses) has(host string, n int) bool {
	for i := range n {
		if u[i].host == host {
			return true
		}
	}
	return false
}
