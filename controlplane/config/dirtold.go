package config

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"slices"
)

// told is what a store has to say of its files.
type told struct {
	order []string // of the files; never changed, only replaced
	files map[string]toldFile
	count int // of problems
}

// toldFile is what there is to say of one file. It is not changed.
type toldFile struct {
	problems  []Problem
	documents []Document
}

// Problems are what is wrong with the documents as they are written now, file by file.
func (s *DirStore) Problems() []Problem {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.told.count == 0 {
		return nil
	}
	var problems []Problem
	for _, path := range s.told.order {
		problems = append(problems, s.told.files[path].problems...)
	}
	return problems
}

// Documents tells what became of each document, file by file. Documents that could not be read so far as to know their
// name are only among the Problems.
func (s *DirStore) Documents() []Document {
	s.mu.Lock()
	defer s.mu.Unlock()
	var documents []Document
	for _, path := range s.told.order {
		documents = append(documents, s.told.files[path].documents...)
	}
	return documents
}

// describe makes Problems and Documents anew for the files that were looked at, and for those that have the same documents.
func (s *DirStore) describe(affected map[Key]bool) {
	for key := range affected {
		for _, path := range s.holders[key] {
			s.looked[path] = s.files[path]
		}
	}
	next := make(map[string]toldFile, len(s.looked))
	for path, t := range s.looked {
		delete(s.unsure, path)
		if s.files[path] != t {
			continue // it is gone
		}
		next[path] = s.tellOf(path, t)
		if t.unsure() {
			s.unsure[path] = true
		}
	}
	s.logNew(next)
	s.mu.Lock()
	defer s.mu.Unlock()
	for path := range s.looked {
		s.told.count += len(next[path].problems) - len(s.told.files[path].problems)
		delete(s.told.files, path)
		if now, there := next[path]; there {
			s.told.files[path] = now
		}
	}
	s.told.order = s.order
	clear(s.looked)
}

func (s *DirStore) tellOf(path string, t *trackedFile) toldFile {
	var of toldFile
	if t.unread != nil {
		of.problems = append(of.problems, unreadable(path, t.unread))
	}
	if t.parsed != nil {
		of.problems = append(of.problems, t.parsed.problems...)
		of.problems = append(of.problems, s.duplicates(path)...)
		of.documents = s.documentsOf(path)
	}
	return of
}

func unreadable(path string, err error) Problem {
	cause := err
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		cause = p.Err
	}
	return Problem{
		Code: Unreadable, Severity: Error, At: Position{File: path}, Message: "the file cannot be read: " + cause.Error(),
		Remedy: "make it readable; what it last said stays in force",
	}
}

// logNew logs the problems that there were not before. Each names its file, so that others' need not be looked at.
func (s *DirStore) logNew(next map[string]toldFile) {
	if !anyProblems(next) { // as there are none mostly, and the files may be many
		return
	}
	for _, path := range s.order {
		if len(next[path].problems) == 0 {
			continue
		}
		known := map[Problem]bool{}
		for _, p := range s.told.files[path].problems {
			known[p] = true
		}
		for _, p := range next[path].problems {
			if !known[p] {
				s.log.Log(context.Background(), levelOf(p), "configuration", ProblemAttr, p.String())
			}
		}
	}
}

func anyProblems(files map[string]toldFile) bool {
	for _, of := range files {
		if len(of.problems) > 0 {
			return true
		}
	}
	return false
}

func levelOf(p Problem) slog.Level {
	switch p.Severity {
	case Error:
		return slog.LevelError
	case Warning:
		return slog.LevelWarn
	}
	return slog.LevelDebug
}

// duplicates tells of the file's documents that another file's document of the same name keeps out.
func (s *DirStore) duplicates(path string) []Problem {
	var problems []Problem
	for key, h := range s.files[path].held {
		owner := s.owner[key]
		if owner == path {
			continue
		}
		problems = append(problems, Problem{
			Code: DuplicateName, Severity: Error, Key: key, At: h.resource.Place("metadata.name"), Field: "metadata.name", Value: key.Name,
			Message: fmt.Sprintf("there is a %s of this name already, at %s, which is the one that counts", key.Kind, s.files[owner].held[key].resource.Origin),
			Remedy:  "rename one of the two, or remove it",
		})
	}
	slices.SortFunc(problems, func(a, b Problem) int { return cmp.Or(comparePositions(a.At, b.At), compareKeys(a.Key, b.Key)) })
	return problems
}

func comparePositions(a, b Position) int {
	return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
}

func (s *DirStore) documentsOf(path string) []Document {
	t := s.files[path]
	var documents []Document
	told := map[Key]bool{}
	for _, d := range t.parsed.documents {
		doc := Document{Key: d.key, At: d.at, State: Refused}
		h, good := t.held[d.key]
		switch {
		case d.inert:
			doc.State = Inert
		case good && s.owner[d.key] == path:
			doc.State, doc.Since = InForce, h.since
			if h.stale {
				doc.State = Stale
			}
		}
		told[d.key] = told[d.key] || !d.inert
		documents = append(documents, doc)
	}
	var unseen []Document // of a text that is not readable
	for key, h := range t.held {
		if !told[key] && s.owner[key] == path {
			unseen = append(unseen, Document{Key: key, At: h.resource.Origin, State: Stale, Since: h.since})
		}
	}
	slices.SortFunc(unseen, func(a, b Document) int { return compareKeys(a.Key, b.Key) })
	return append(documents, unseen...)
}
