package config

import (
	"fmt"
	"path/filepath"
	"slices"
)

// File is a file by its text.
type File struct{ Name, Text string }

// FindFiles gives the files that a DirStore would read below the paths, in its order.
func FindFiles(paths []string) ([]string, error) {
	found := find(paths)
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

// ReadTexts makes a store of what files say, as a DirStore would that had these texts in the place of the files that it
// follows: of documents of one name the first counts, and those that are refused leave in force what is so now. inForce
// are the stores of that; it may be nil.
func ReadTexts(files []File, parser Parser, inForce Store) (Store, []Problem) {
	t := &texts{store: newTable(undated), before: inForce, origins: map[Key]Position{}}
	for _, f := range files {
		t.read(f, parser.parse(f.Name, []byte(f.Text)))
	}
	if inForce != nil {
		t.keep()
	}
	return t.store, t.problems
}

type texts struct {
	store    *table
	before   Store
	origins  map[Key]Position
	problems []Problem
	refused  []Key
	blind    []string // files of which it is not known what they were meant to hold
}

func (t *texts) read(f File, parsed *parsedFile) {
	t.problems = append(t.problems, parsed.problems...)
	if parsed.blind {
		t.blind = append(t.blind, filepath.Base(f.Name))
	}
	var put []*Resource
	for _, d := range parsed.documents {
		first, taken := t.origins[d.key]
		switch {
		case d.resource == nil && !d.inert:
			t.refused = append(t.refused, d.key)
		case d.resource == nil:
		case taken:
			t.problems = append(t.problems, Problem{
				Code: DuplicateName, Severity: Error, Key: d.key, At: d.resource.Place("metadata.name"), Field: "metadata.name", Value: d.key.Name,
				Message: fmt.Sprintf("there is a %s of this name already, at %s, which is the one that counts", d.key.Kind, first),
				Remedy:  "rename one of the two, or remove it",
			})
		default:
			t.origins[d.key] = d.resource.Origin
			put = append(put, t.aged(d.resource))
		}
	}
	t.store.apply(put, nil)
}

// aged gives a document that is in force already its age: of several for one host the oldest counts.
func (t *texts) aged(r *Resource) *Resource {
	if t.before == nil || !r.Created.IsZero() {
		return r
	}
	if old := t.before.Get(r.Key); old != nil {
		return r.createdAt(old.Created)
	}
	return r
}

// keep leaves in force what a refused document would replace.
func (t *texts) keep() {
	var put []*Resource
	for _, kind := range Kinds() {
		for _, r := range t.before.List(kind) {
			if _, taken := t.origins[r.Key]; !taken && t.keeps(r) {
				put = append(put, r)
			}
		}
	}
	t.store.apply(put, nil)
}

func (t *texts) keeps(r *Resource) bool {
	return slices.ContainsFunc(t.refused, func(k Key) bool {
		return k == r.Key || !slices.Contains(Kinds(), k.Kind) && k.Namespace == r.Namespace && k.Name == r.Name
	}) || slices.Contains(t.blind, filepath.Base(r.Origin.File))
}
