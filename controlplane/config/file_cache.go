package config

import (
	"fmt"
	"path/filepath"
	"slices"
)

// File is the name and the text of a file.
type File struct{ Name, Text string }

// FindFiles returns the files that a DirStore would read below the paths, in its order.
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

// ReadTexts returns a store with the documents of the files, as a DirStore with these texts would contain them. Of
// documents with one name the first is in force. For a refused document, the version of inForce stays in force. inForce
// may be nil.
func ReadTexts(files []File, parser Parser, inForce Store) (Store, []Problem) {
	t := &fileSetStore{store: newTable(noCreationTime), before: inForce, origins: map[Key]Position{}}
	for _, f := range files {
		t.addFile(f, parser.parse(f.Name, []byte(f.Text)))
	}
	if inForce != nil {
		t.retainInForce()
	}
	t.applyDenials(parser)
	return t.store, t.problems
}

type fileSetStore struct {
	store      *resourceTable
	before     Store
	origins    map[Key]Position
	problems   []Problem
	refused    []Key
	policies   []*refusedPolicy
	incomplete []string // names of files whose intended documents are unknown
}

func (t *fileSetStore) addFile(f File, parsed *parsedFile) {
	t.problems = append(t.problems, parsed.problems...)
	if parsed.incomplete {
		t.incomplete = append(t.incomplete, filepath.Base(f.Name))
	}
	t.policies = append(t.policies, parsed.policies...)
	var put []*Resource
	for _, d := range parsed.documents {
		first, taken := t.origins[d.key]
		switch {
		case d.resource == nil && !d.inert:
			t.refused = append(t.refused, d.key)
		case d.resource == nil:
		case taken:
			t.problems = append(t.problems, Problem{
				Code: DuplicateName, Severity: Error, Key: d.key, At: d.resource.PositionOf("metadata.name"), Field: "metadata.name", Value: d.key.Name,
				Message: fmt.Sprintf("a %s of this name already exists at %s, and is the one in force", d.key.Kind, first),
				Remedy:  "rename one of the two, or remove it",
			})
		default:
			t.origins[d.key] = d.resource.Origin
			put = append(put, t.withCreated(d.resource))
		}
	}
	t.store.apply(put, nil)
}

// withCreated copies the creation time of the version in force, because the oldest of several documents for a host
// wins.
func (t *fileSetStore) withCreated(r *Resource) *Resource {
	if t.before == nil || !r.Created.IsZero() {
		return r
	}
	if old := t.before.Get(r.Key); old != nil {
		return r.withCreated(old.Created)
	}
	return r
}

// applyDenials adds the denials of refused policies that have no accepted version.
func (t *fileSetStore) applyDenials(parser Parser) {
	for _, p := range t.policies {
		if r := t.store.Get(p.key); r != nil && !r.Denial {
			continue
		}
		if parser.isDenied(p) {
			t.store.apply([]*Resource{p.denial}, nil)
		}
		t.problems = append(t.problems, p.newProblem(parser.OnInvalidPolicy, parser.isDenied(p)))
	}
}

// retainInForce adds the versions in force of documents that are refused now.
func (t *fileSetStore) retainInForce() {
	var put []*Resource
	for _, kind := range Kinds() {
		for _, r := range t.before.List(kind) {
			if _, taken := t.origins[r.Key]; !taken && t.isRetained(r) {
				put = append(put, r)
			}
		}
	}
	t.store.apply(put, nil)
}

func (t *fileSetStore) isRetained(r *Resource) bool {
	return slices.ContainsFunc(t.refused, func(k Key) bool {
		return k == r.Key || !slices.Contains(Kinds(), k.Kind) && k.Namespace == r.Namespace && k.Name == r.Name
	}) || slices.Contains(t.incomplete, filepath.Base(r.Origin.File))
}
