package translate

import (
	"slices"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
)

// Cause is a document that a resource was made of.
type Cause struct {
	*config.Resource
	// Named: the document is known to concern this very resource, and not only the type as a whole.
	Named bool
}

// Causes are the documents that have a part in the named resources of a type, for this proxy. It is the reverse of
// Affected, and asks it, so that what a kind of document has a part in is said in one place.
func Causes(s *snapshot.Snapshot, p *Proxy, typeURL string, names []string) []Cause {
	var out []Cause
	rejected := make(map[string]bool, len(names))
	for _, name := range names {
		rejected[name] = true
	}
	add := func(r *config.Resource, change snapshot.Change) {
		touched, ok := Affected(s, p, change)[typeURL]
		if !ok || r == nil {
			return
		}
		named := !touched.All && slices.ContainsFunc(touched.Names, func(n string) bool { return rejected[n] })
		if touched.All || named {
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
