package translate

import (
	"slices"
	"strings"

	"github.com/pilotfish-mesh/pilotfish/controlplane/envoyfilter"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
)

// A skipped patch is reported as long as it is skipped. Cached resources outlive one snapshot and serve several
// proxies, so each resource stores the patches that were skipped when it was built.

// attachSkippedPatches stores the patches that were skipped while r was built in r.
func attachSkippedPatches(left []envoyfilter.SkippedPatch, r *xds.Resource, err error) (*xds.Resource, error) {
	if r != nil && len(left) > 0 {
		r.Notes = left
	}
	return r, err
}

// reportSkippedPatches reports the patches that were skipped for the proxy. It replaces the previous report on the
// resources that made selects.
func (v proxyView) reportSkippedPatches(typeURL string, made func(name string) bool, resources []*xds.Resource) {
	var now []snapshot.Note
	add := func(resource string, left envoyfilter.SkippedPatch) {
		// The patches of all non-service clusters are reported here, also of clusters that were not requested
		if of, problem, ok := v.patches.Problem(left); ok && made(resource) {
			now = append(now, snapshot.Note{Resource: resource, Filter: of, Problem: problem})
		}
	}
	if v.patches != nil {
		for _, r := range resources {
			left, _ := r.Notes.([]envoyfilter.SkippedPatch)
			for _, l := range left {
				add(r.Name, l)
			}
		}
		for _, l := range v.patches.TakeSkipped() {
			add(l.Name, l)
		}
	}
	v.s.RecordNotes(v.p, v.p.Disconnected, typeURL, made, now)
}

func matchAll(string) bool { return true }

// matchNames returns a predicate that is true for the specified names.
func matchNames(names []string) func(string) bool {
	return func(name string) bool { return slices.Contains(names, name) }
}

// matchRoutes returns a predicate that is true for the virtual hosts of the specified route configurations. Without
// routes it is true for all.
func matchRoutes(routes []string) func(string) bool {
	return func(name string) bool {
		return len(routes) == 0 || slices.ContainsFunc(routes, func(route string) bool { return strings.HasPrefix(name, route+"/") })
	}
}
