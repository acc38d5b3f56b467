package snapshot

import (
	"slices"
	"sync"

	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
)

// sharedView contains the common parts of all scopes without a Sidecar. It exists if everything is exported to all
// namespaces, as in most meshes. The scopes then differ only in short names and DestinationRules.
type sharedView struct {
	scope *Scope // contains the shared parts
	// namespacesWithServices contains the namespaces that have services, whose short names are valid only there.
	namespacesWithServices map[string]struct{}
	memos                  sync.Map // derived values by key
}

// shared returns the common parts of all scopes. It returns nil if different services or rules may be visible to
// different namespaces.
func (w *meshIndex) shared() *sharedView {
	if !w.sharedKnown {
		w.sharedKnown = true
		if w.isUniform() {
			w.common = w.newSharedView()
		}
	}
	return w.common
}

// isUniform reports whether all services and sidecar rules are exported to all namespaces, and all hostnames are
// unique. Otherwise different services and rules may be visible to different namespaces.
func (w *meshIndex) isUniform() bool {
	for i, svc := range w.services {
		if i > 0 && w.services[i-1].Hostname == svc.Hostname {
			return false
		}
		for known := range svc.WithAliases() {
			if !registry.IsExportedToAll(known.ExportTo) {
				return false
			}
		}
	}
	return !slices.ContainsFunc(w.virtualServices.byGateway[MeshGateway], func(v *VirtualService) bool { return !registry.IsExportedToAll(v.ExportTo) })
}

func (w *meshIndex) newSharedView() *sharedView {
	c := &sharedView{
		scope:                  &Scope{egress: allHosts, services: make(map[string]*registry.Service, len(w.services)), aliases: map[string]*registry.Service{}},
		namespacesWithServices: map[string]struct{}{},
	}
	w.addVirtualServices(c.scope, allHosts)
	c.scope.Services = w.services
	for _, svc := range w.services {
		c.scope.services[svc.Hostname] = svc
		for _, alias := range svc.AliasServices {
			c.scope.aliases[alias.Hostname] = svc
		}
		for known := range svc.WithAliases() {
			if known.Kubernetes {
				c.namespacesWithServices[known.Namespace] = struct{}{}
			}
		}
	}
	return c
}

// applyShared sets the shared parts of a scope, and adds the DestinationRules, which may differ between namespaces.
func (w *meshIndex) applyShared(sc *Scope, c *sharedView) {
	sc.common = c
	sc.Services, sc.services, sc.aliases = c.scope.Services, c.scope.services, c.scope.aliases
	sc.VirtualServices, sc.vsByHost, sc.SourceLabels = c.scope.VirtualServices, c.scope.vsByHost, c.scope.SourceLabels
	for _, svc := range sc.Services {
		w.addRule(sc, svc)
	}
}

// SharedMemo is like Memo, but scopes may share the value. The value must depend only on the visible services and rules
// of the scope, and on which services are in its namespace.
func (sc *Scope) SharedMemo(key any, derive func() any) any {
	if sc.common == nil {
		return sc.Memo(key, derive)
	}
	if _, own := sc.common.namespacesWithServices[sc.Namespace]; own {
		return sc.Memo(key, derive)
	}
	return loadMemo(&sc.common.memos, key, derive)
}
