package envoyfilter

import (
	"fmt"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// Side is the context of a patch, which specifies the direction of traffic at a proxy.
type Side = networking.EnvoyFilter_PatchContext

// The contexts of patches.
const (
	Inbound  = networking.EnvoyFilter_SIDECAR_INBOUND
	Outbound = networking.EnvoyFilter_SIDECAR_OUTBOUND
	Gateway  = networking.EnvoyFilter_GATEWAY
)

// Proxy contains the attributes of a proxy to which the match conditions of patches refer.
type Proxy struct {
	// Version is the mesh version that the proxy's agent reports.
	Version string
	// Envoy is the version of the proxy's Envoy. It is zero if the version is unknown.
	Envoy [3]uint32
	// Metadata contains those fields of the node's metadata whose values are strings.
	Metadata map[string]string
}

// Set contains the patches for one proxy in the order in which they are applied. A nil Set is empty. It is not safe for
// concurrent use.
type Set struct {
	patches []*patch
	skipped []SkippedPatch
}

// NewSet returns the patches in filters that apply to the proxy, in order. It returns nil if there are none. It omits
// patches that require a newer Envoy, and calls note for each of them.
func NewSet(filters []*Filter, p Proxy, note func(*Filter, config.Problem)) *Set {
	s := &Set{}
	for _, f := range filters {
		for _, patch := range f.patches {
			if !patch.matchesProxy(p) {
				continue
			}
			if err := patch.checkEnvoyVersion(p.Envoy); err != nil {
				note(f, patch.skippedProblem("proxy", fmt.Sprintf("Envoy %d.%d", p.Envoy[0], p.Envoy[1]), err))
				continue
			}
			s.patches = append(s.patches, patch)
		}
	}
	if len(s.patches) == 0 {
		return nil
	}
	return s
}

func (p *patch) matchesProxy(proxy Proxy) bool {
	if p.version != nil && !p.version.MatchString(proxy.Version) {
		return false
	}
	for key, want := range p.match.GetProxy().GetMetadata() {
		if got, ok := proxy.Metadata[key]; !ok || got != want {
			return false
		}
	}
	return true
}

// appliesTo reports whether the context of a patch is side or ANY.
func (p *patch) appliesTo(side Side) bool {
	context := p.match.GetContext()
	return context == networking.EnvoyFilter_ANY || context == side
}

// selectPatches returns the patches for which wanted returns true.
func (s *Set) selectPatches(wanted func(*patch) bool) []*patch {
	if s == nil {
		return nil
	}
	var out []*patch
	for _, p := range s.patches {
		if wanted(p) {
			out = append(out, p)
		}
	}
	return out
}

// patchesFor returns the patches for one kind of object.
func (s *Set) patchesFor(to networking.EnvoyFilter_ApplyTo) []*patch {
	return s.selectPatches(func(p *patch) bool { return p.to == to })
}

// patchesKey returns a key that identifies a list of patches.
func patchesKey(patches []*patch) string {
	var b strings.Builder
	for _, p := range patches {
		b.WriteString(p.digest)
	}
	return b.String()
}
