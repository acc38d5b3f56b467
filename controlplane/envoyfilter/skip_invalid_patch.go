package envoyfilter

import (
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// SkippedPatch identifies a patch that was skipped because it would produce an invalid resource. The value is valid for
// each Set that has the same patches for this resource, because such Sets share the resource.
type SkippedPatch struct {
	// Name is the name of the resource.
	Name string

	kind string
	err  error
	// digest is the hash of the patch. nth is the index of the patch among the patches of the set that have this
	// digest.
	digest string
	nth    int
}

// tryPatch applies change to a copy of m, and returns the copy if it is valid. Otherwise it returns m and records the
// patch as skipped. sound, if not nil, is an additional check of the copy. change reports whether it has changed the
// copy.
func tryPatch[M proto.Message](s *Set, p *patch, kind, name string, m M, sound func(M) error, change func(M) (bool, error)) M {
	copied := proto.Clone(m).(M)
	changed, err := change(copied)
	if err == nil && !changed {
		return m
	}
	if err == nil {
		err = validate(copied)
	}
	if err == nil && sound != nil {
		err = sound(copied)
	}
	if err != nil {
		s.skip(p, kind, name, err)
		return m
	}
	return copied
}

func (s *Set) skip(p *patch, kind, name string, err error) {
	nth := 0
	for _, other := range s.patches[:slices.Index(s.patches, p)] {
		if other.digest == p.digest {
			nth++
		}
	}
	s.skipped = append(s.skipped, SkippedPatch{Name: name, kind: kind, err: err, digest: p.digest, nth: nth})
}

// TakeSkipped returns the patches that were skipped since the previous call.
func (s *Set) TakeSkipped() []SkippedPatch {
	if s == nil {
		return nil
	}
	left := s.skipped
	s.skipped = nil
	return left
}

// Problem returns the warning for a patch that this Set or an equal one has skipped, and the EnvoyFilter of the patch.
// ok is false if this Set does not contain the patch.
func (s *Set) Problem(left SkippedPatch) (of *config.Resource, problem config.Problem, ok bool) {
	if s == nil {
		return nil, config.Problem{}, false
	}
	nth := 0
	for _, p := range s.patches {
		if p.digest != left.digest {
			continue
		}
		if nth == left.nth {
			return p.filter.Resource, p.skippedProblem(left.kind, left.Name, left.err), true
		}
		nth++
	}
	return nil, config.Problem{}, false
}
