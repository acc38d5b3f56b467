package dirstore

import (
	"fmt"
	"path/filepath"
	"slices"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// File is the name and the text of a file.
type File struct{ Name, Text string }

// FindFiles returns the files that a Store with these paths would read, in the same order.
func FindFiles(paths []string) ([]string, error) {
	found := listPaths(paths)
	if found.err != nil {
		return nil, found.err
	}
	var names []string
	for _, f := range found.files {
		if !slices.Contains(names, f.path) {
			names = append(names, f.path)
		}
	}
	return names, nil
}

// ReadTexts returns a store with the documents in files, as a Store that reads these files would contain them. If
// several documents have the same key, the first one is in force. A refused document is replaced by its version in the
// store inForce, which may be nil.
func ReadTexts(files []File, parser config.Parser, inForce config.Store) (config.Store, []config.Problem) {
	store, apply := config.NewFileStore()
	t := &fileSetStore{store: store, apply: apply, before: inForce, origins: map[config.Key]config.Position{}}
	for _, f := range files {
		t.addFile(f, parser.ParseFile(f.Name, []byte(f.Text)))
	}
	if inForce != nil {
		t.retainInForce()
	}
	t.applyDenials(parser)
	return store, t.problems
}

type fileSetStore struct {
	store config.Store
	// apply changes store.
	apply      func(put []*config.Resource, del []config.Key) (changed []config.Key)
	before     config.Store
	origins    map[config.Key]config.Position
	problems   []config.Problem
	refused    []config.Key
	policies   []*config.RefusedPolicy
	incomplete []string // names of files whose intended documents are unknown
}

func (t *fileSetStore) addFile(f File, parsed *config.ParsedFile) {
	t.problems = append(t.problems, parsed.Problems...)
	if parsed.Incomplete {
		t.incomplete = append(t.incomplete, filepath.Base(f.Name))
	}
	t.policies = append(t.policies, parsed.Policies...)
	var put []*config.Resource
	for _, d := range parsed.Documents {
		first, taken := t.origins[d.Key]
		switch {
		case d.Resource == nil && !d.Inert:
			t.refused = append(t.refused, d.Key)
		case d.Resource == nil:
		case taken:
			t.problems = append(t.problems, config.Problem{
				Code: config.DuplicateName, Severity: d.Key.Kind.DuplicateSeverity(), Key: d.Key, At: d.Resource.PositionOf("metadata.name"), Field: "metadata.name", Value: d.Key.Name,
				Message: fmt.Sprintf("a %s of this name already exists at %s and is in force instead of this document", d.Key.Kind, first),
				Remedy:  d.Key.Kind.DuplicateRemedy(),
			})
		default:
			t.origins[d.Key] = d.Resource.Origin
			put = append(put, t.withCreated(d.Resource))
		}
	}
	t.apply(put, nil)
}

// withCreated returns r with the creation time of the version in force, unless r specifies one. The creation time
// decides which of several conflicting documents takes precedence.
func (t *fileSetStore) withCreated(r *config.Resource) *config.Resource {
	if t.before == nil || !r.Created.IsZero() {
		return r
	}
	if old := t.before.Get(r.Key); old != nil {
		return r.WithCreated(old.Created)
	}
	return r
}

// applyDenials adds the denials of refused policies that have no accepted version, and a finding for each of these
// policies.
func (t *fileSetStore) applyDenials(parser config.Parser) {
	for _, p := range t.policies {
		if r := t.store.Get(p.Key); r != nil && !r.Denial {
			continue
		}
		if parser.IsDenied(p) {
			t.apply([]*config.Resource{p.Denial}, nil)
		}
		t.problems = append(t.problems, p.NewProblem(parser.OnInvalidPolicy, parser.IsDenied(p)))
	}
}

// retainInForce adds the versions in force of the documents that are refused now.
func (t *fileSetStore) retainInForce() {
	var put []*config.Resource
	for _, kind := range config.Kinds() {
		for _, r := range t.before.List(kind) {
			if _, taken := t.origins[r.Key]; !taken && t.isRetained(r) {
				put = append(put, r)
			}
		}
	}
	t.apply(put, nil)
}

func (t *fileSetStore) isRetained(r *config.Resource) bool {
	return slices.ContainsFunc(t.refused, func(k config.Key) bool {
		return k == r.Key || !slices.Contains(config.Kinds(), k.Kind) && k.Namespace == r.Namespace && k.Name == r.Name
	}) || slices.Contains(t.incomplete, filepath.Base(r.Origin.File))
}
