package snapshot

import (
	"slices"
	"sync"

	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
)

// common is what all scopes of a world see alike that no Sidecar narrows, where everything is for everyone: in most meshes
// the scopes of all namespaces differ in little.
type common struct {
	scope *Scope // of which the parts are taken
	// local are the namespaces in which services have names of their own.
	local  map[string]struct{}
	memory sync.Map // what others derived of the parts, by their keys
}

// shared gives what all scopes have in common; nil where what they see differs.
func (w *world) shared() *common {
	if !w.sharedKnown {
		w.sharedKnown = true
		if w.alike() {
			w.common = w.newCommon()
		}
	}
	return w.common
}

// alike says whether every service and every rule for sidecars is for all namespaces, and there are no two services of one
// name, of which each namespace would see its own.
func (w *world) alike() bool {
	for i, svc := range w.services {
		if i > 0 && w.services[i-1].Hostname == svc.Hostname {
			return false
		}
		for known := range svc.WithAliases() {
			if !registry.ForAll(known.ExportTo) {
				return false
			}
		}
	}
	return !slices.ContainsFunc(w.virtualServices.byGateway[MeshGateway], func(v *VirtualService) bool { return !registry.ForAll(v.exportTo) })
}

func (w *world) newCommon() *common {
	c := &common{
		scope: &Scope{egress: everything, services: make(map[string]*registry.Service, len(w.services)), aliases: map[string]*registry.Service{}},
		local: map[string]struct{}{},
	}
	w.addVirtualServices(c.scope, everything)
	c.scope.Services = w.services
	for _, svc := range w.services {
		c.scope.services[svc.Hostname] = svc
		for _, alias := range svc.AliasServices {
			c.scope.aliases[alias.Hostname] = svc
		}
		for known := range svc.WithAliases() {
			if known.Kubernetes {
				c.local[known.Namespace] = struct{}{}
			}
		}
	}
	return c
}

// share gives a scope the parts, and its own rules.
func (w *world) share(sc *Scope, c *common) {
	sc.common = c
	sc.Services, sc.services, sc.aliases = c.scope.Services, c.scope.services, c.scope.aliases
	sc.VirtualServices, sc.vsByHost, sc.SourceLabels = c.scope.VirtualServices, c.scope.vsByHost, c.scope.SourceLabels
	for _, svc := range sc.Services {
		w.addRule(sc, svc)
	}
}

// MemoOfNames is Memo of what depends on nothing of the scope but the services and rules that it sees, and on which of the
// services are of its own namespace.
func (sc *Scope) MemoOfNames(key any, derive func() any) any {
	if sc.common == nil {
		return sc.Memo(key, derive)
	}
	if _, own := sc.common.local[sc.Namespace]; own {
		return sc.Memo(key, derive)
	}
	return memo(&sc.common.memory, key, derive)
}
