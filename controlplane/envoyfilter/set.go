package envoyfilter

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// Side is where traffic passes a proxy: the contexts of EnvoyFilters.
type Side = networking.EnvoyFilter_PatchContext

// The sides.
const (
	Inbound  = networking.EnvoyFilter_SIDECAR_INBOUND
	Outbound = networking.EnvoyFilter_SIDECAR_OUTBOUND
	Gateway  = networking.EnvoyFilter_GATEWAY
)

// Proxy is what patches ask of a proxy.
type Proxy struct {
	// Version is the mesh's version that its agent tells.
	Version string
	// Envoy is the version of its Envoy; zero when it does not say.
	Envoy [3]uint32
	// Metadata is what of its node's metadata is text.
	Metadata map[string]string
}

// Set is the patches for one proxy, in the order in which they are applied. A nil Set has none. It is for one goroutine at a
// time.
type Set struct {
	patches []*patch
	left    []LeftOut
}

// LeftOut is a patch that was left out where it made what Envoy would not take. It means the same in all sets whose patches for
// that are the same.
type LeftOut struct {
	// Name is that of what it was left out of.
	Name string

	kind string
	err  error
	// digest is the patch's, and nth its place among those of a set that have the same.
	digest string
	nth    int
}

// NewSet gives the patches of filters, in their order, that are for the proxy; nil when there are none. note is told of those
// that the proxy's Envoy is too old for.
func NewSet(filters []*Filter, p Proxy, note func(*Filter, config.Problem)) *Set {
	s := &Set{}
	for _, f := range filters {
		for _, patch := range f.patches {
			if !patch.isFor(p) {
				continue
			}
			if err := patch.tooYoung(p.Envoy); err != nil {
				note(f, patch.problem("proxy", fmt.Sprintf("Envoy %d.%d", p.Envoy[0], p.Envoy[1]), err))
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

func (p *patch) isFor(proxy Proxy) bool {
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

// on says whether a patch is for a side.
func (p *patch) on(side Side) bool {
	context := p.match.GetContext()
	return context == networking.EnvoyFilter_ANY || context == side
}

// pick gives the patches for which pick says so.
func (s *Set) pick(wanted func(*patch) bool) []*patch {
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

// of gives the patches of one kind of object.
func (s *Set) of(to networking.EnvoyFilter_ApplyTo) []*patch {
	return s.pick(func(p *patch) bool { return p.to == to })
}

// key is equal for patches that are the same in the same order.
func key(patches []*patch) string {
	var b strings.Builder
	for _, p := range patches {
		b.WriteString(p.digest)
	}
	return b.String()
}

// try changes a copy, and gives it if it is one that Envoy takes; else what there was, and the patch is told of. change
// says whether it changed anything.
func try[M proto.Message](s *Set, p *patch, kind, name string, m M, sound func(M) error, change func(M) (bool, error)) M {
	copied := proto.Clone(m).(M)
	changed, err := change(copied)
	if err == nil && !changed {
		return m
	}
	if err == nil {
		err = valid(copied)
	}
	if err == nil && sound != nil {
		err = sound(copied)
	}
	if err != nil {
		s.leaveOut(p, kind, name, err)
		return m
	}
	return copied
}

func (s *Set) leaveOut(p *patch, kind, name string, err error) {
	nth := 0
	for _, other := range s.patches[:slices.Index(s.patches, p)] {
		if other.digest == p.digest {
			nth++
		}
	}
	s.left = append(s.left, LeftOut{Name: name, kind: kind, err: err, digest: p.digest, nth: nth})
}

// Take gives the patches that were left out since it was last called.
func (s *Set) Take() []LeftOut {
	if s == nil {
		return nil
	}
	left := s.left
	s.left = nil
	return left
}

// Problem tells of a patch that was left out, by this set or one like it; not ok where the set has none such.
func (s *Set) Problem(left LeftOut) (of *config.Resource, problem config.Problem, ok bool) {
	if s == nil {
		return nil, config.Problem{}, false
	}
	nth := 0
	for _, p := range s.patches {
		if p.digest != left.digest {
			continue
		}
		if nth == left.nth {
			return p.filter.Resource, p.problem(left.kind, left.Name, left.err), true
		}
		nth++
	}
	return nil, config.Problem{}, false
}
