package translate

import (
	"slices"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
)

// Cause is a document that a resource depends on.
type Cause struct {
	*config.Resource
	// Named: AffectedResources lists at least one of the resources by its name. Otherwise the document affects all
	// resources of the type.
	Named bool
}

// Causes returns the documents that affect the resources in names for this proxy. It calls AffectedResources for each
// document, so that the dependencies are defined only there.
func Causes(s *snapshot.Snapshot, p *Proxy, typeURL string, names []string) []Cause {
	var out []Cause
	rejected := make(map[string]bool, len(names))
	for _, name := range names {
		rejected[name] = true
	}
	add := func(r *config.Resource, change snapshot.Change) {
		affected, ok := AffectedResources(s, p, change)[typeURL]
		if !ok || r == nil {
			return
		}
		named := !affected.All && slices.ContainsFunc(affected.Names, func(n string) bool { return rejected[n] })
		if affected.All || named {
			out = append(out, Cause{Resource: r, Named: named})
		}
	}
	for r := range s.Rules() {
		add(r, snapshot.Change{Resources: map[config.Key][]*config.Resource{r.Key: {r}}})
	}
	for _, svc := range s.Registry.Services {
		change := snapshot.Change{Services: []*registry.Service{svc}}
		if svc.Resolution != registry.Static {
			change.Clusters = change.Services
		}
		add(s.Registry.Document(svc), change)
	}
	return out
}
