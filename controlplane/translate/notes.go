package translate

import (
	"slices"
	"strings"

	"github.com/pilotfish-mesh/pilotfish/controlplane/envoyfilter"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
)

// A patch that is left out somewhere is told of as long as it is. What is made once for several proxies, and outlives
// snapshots, has with it what was left out of it.

// withNotes has a resource that was just made remember which patches were left out of it.
func withNotes(left []envoyfilter.LeftOut, r *xds.Resource, err error) (*xds.Resource, error) {
	if r != nil && len(left) > 0 {
		r.Notes = left
	}
	return r, err
}

// noted tells which patches were left out of what was made for the proxy, in place of what was told before of those resources.
func (v view) noted(typeURL string, made func(name string) bool, resources []*xds.Resource) {
	var now []snapshot.Note
	add := func(resource string, left envoyfilter.LeftOut) {
		if of, problem, ok := v.patches.Problem(left); ok && made(resource) { // of clusters of no service all are looked at
			now = append(now, snapshot.Note{Resource: resource, Of: of, Problem: problem})
		}
	}
	if v.patches != nil {
		for _, r := range resources {
			left, _ := r.Notes.([]envoyfilter.LeftOut)
			for _, l := range left {
				add(r.Name, l)
			}
		}
		for _, l := range v.patches.Take() {
			add(l.Name, l)
		}
	}
	v.s.Noted(v.p, v.p.Ended, typeURL, made, now)
}

func every(string) bool { return true }

// oneOf says yes to those of the names.
func oneOf(names []string) func(string) bool {
	return func(name string) bool { return slices.Contains(names, name) }
}

// ofRoutes says yes to the virtual hosts of route configurations; of none at all, to all.
func ofRoutes(routes []string) func(string) bool {
	return func(name string) bool {
		return len(routes) == 0 || slices.ContainsFunc(routes, func(route string) bool { return strings.HasPrefix(name, route+"/") })
	}
}
