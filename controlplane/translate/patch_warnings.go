package translate

import (
	"slices"
	"strings"

	"github.com/pilotfish-mesh/pilotfish/controlplane/envoyfilter"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
)

// The control plane reports a skipped patch as long as the patch is skipped. Cached resources outlive one snapshot and
// serve several proxies. Each resource therefore stores the patches that were skipped when it was built.

// attachSkippedPatches stores in r.Notes the patches that were skipped while r was built.
func attachSkippedPatches(left []envoyfilter.SkippedPatch, r *xds.Resource, err error) (*xds.Resource, error) {
	if r != nil && len(left) > 0 {
		r.Notes = left
	}
	return r, err
}

// reportSkippedPatches reports the patches that were skipped for the proxy. The report replaces the previous one for
// the resource names for which made returns true.
func (v proxyView) reportSkippedPatches(typeURL string, made func(name string) bool, resources []*xds.Resource) {
	var now []snapshot.Note
	add := func(resource string, left envoyfilter.SkippedPatch) {
		// This also reports the patches of non-service clusters that were not requested.
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

// matchNames returns a function that reports whether names contains its argument.
func matchNames(names []string) func(string) bool {
	return func(name string) bool { return slices.Contains(names, name) }
}

// matchRoutes returns a function that reports whether a virtual host belongs to one of the route configurations. If
// routes is empty, the function always returns true.
func matchRoutes(routes []string) func(string) bool {
	return func(name string) bool {
		return len(routes) == 0 || slices.ContainsFunc(routes, func(route string) bool { return strings.HasPrefix(name, route+"/") })
	}
}
