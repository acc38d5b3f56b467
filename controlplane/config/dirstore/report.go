package dirstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"slices"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// storeReport contains the problems and documents of all files of a store.
type storeReport struct {
	order []string // paths of the files; the slice is immutable and only replaced
	files map[string]fileReport
	count int // number of problems
}

// fileReport contains the problems and documents of one file. It is immutable.
type fileReport struct {
	problems  []config.Problem
	documents []config.Document
}

// Problems returns the problems of the current text of the documents, ordered by file.
func (s *Store) Problems() []config.Problem {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.report.count == 0 {
		return nil
	}
	var problems []config.Problem
	for _, path := range s.report.order {
		problems = append(problems, s.report.files[path].problems...)
	}
	return problems
}

// Documents returns the state of each document, ordered by file. A document whose name cannot be read appears only in
// Problems.
func (s *Store) Documents() []config.Document {
	s.mu.Lock()
	defer s.mu.Unlock()
	var documents []config.Document
	for _, path := range s.report.order {
		documents = append(documents, s.report.files[path].documents...)
	}
	return documents
}

// updateReport rebuilds the reports of the scanned files, and of all files that contain a document in affected.
func (s *Store) updateReport(affected map[config.Key]bool) {
	for key := range affected {
		for _, path := range slices.Concat(s.holders[key], s.deniers[key]) {
			s.scanned[path] = s.files[path]
		}
	}
	next := make(map[string]fileReport, len(s.scanned))
	for path, t := range s.scanned {
		delete(s.withRetained, path)
		if s.files[path] != t {
			continue // the file was removed
		}
		next[path] = s.reportFile(path, t)
		if t.hasRetained() {
			s.withRetained[path] = true
		}
	}
	s.logNewProblems(next)
	s.mu.Lock()
	defer s.mu.Unlock()
	for path := range s.scanned {
		s.report.count += len(next[path].problems) - len(s.report.files[path].problems)
		delete(s.report.files, path)
		if now, there := next[path]; there {
			s.report.files[path] = now
		}
	}
	s.report.order = s.order
	clear(s.scanned)
}

func (s *Store) reportFile(path string, t *trackedFile) fileReport {
	var of fileReport
	if t.readErr != nil {
		of.problems = append(of.problems, unreadableProblem(path, t.readErr))
	}
	if t.parsed != nil {
		of.problems = append(of.problems, t.parsed.Problems...)
		of.problems = append(of.problems, s.findDuplicates(path)...)
		of.problems = append(of.problems, s.findNeverAccepted(t)...)
		of.documents = s.listDocuments(path)
	}
	return of
}

func unreadableProblem(path string, err error) config.Problem {
	cause := err
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		cause = p.Err
	}
	return config.Problem{
		Code: config.Unreadable, Severity: config.Error, At: config.Position{File: path}, Message: "the file cannot be read: " + cause.Error(),
		Remedy: "make the file readable; its last accepted documents stay in force",
	}
}

// logNewProblems logs the problems in next that the previous report does not contain.
func (s *Store) logNewProblems(next map[string]fileReport) {
	if !anyProblems(next) { // usually there are no problems, so avoid the loop over many files
		return
	}
	for _, path := range s.order {
		if len(next[path].problems) == 0 {
			continue
		}
		known := map[config.Problem]bool{}
		for _, p := range s.report.files[path].problems {
			known[p] = true
		}
		for _, p := range next[path].problems {
			if !known[p] {
				s.log.Log(context.Background(), levelOf(p), "configuration", config.ProblemAttr, p.String())
			}
		}
	}
}

func anyProblems(files map[string]fileReport) bool {
	for _, of := range files {
		if len(of.problems) > 0 {
			return true
		}
	}
	return false
}

func levelOf(p config.Problem) slog.Level {
	switch p.Severity {
	case config.Error:
		return slog.LevelError
	case config.Warning:
		return slog.LevelWarn
	}
	return slog.LevelDebug
}

// findNeverAccepted returns a finding for each refused policy in t of which no file has a valid version.
func (s *Store) findNeverAccepted(t *trackedFile) []config.Problem {
	var problems []config.Problem
	for key, p := range t.policies {
		if r := s.inForce[key]; r == nil || r.Denial {
			problems = append(problems, p.NewProblem(s.parser.OnInvalidPolicy, r != nil && r == p.Denial))
		}
	}
	slices.SortFunc(problems, func(a, b config.Problem) int {
		return cmp.Or(config.ComparePositions(a.At, b.At), config.CompareKeys(a.Key, b.Key))
	})
	return problems
}

// findDuplicates returns an error for each document of the file path that is not in force because another file has a
// document with the same key.
func (s *Store) findDuplicates(path string) []config.Problem {
	var problems []config.Problem
	for key, h := range s.files[path].accepted {
		owner := s.owner[key]
		if owner == path {
			continue
		}
		problems = append(problems, config.Problem{
			Code: config.DuplicateName, Severity: key.Kind.DuplicateSeverity(), Key: key, At: h.resource.PositionOf("metadata.name"), Field: "metadata.name", Value: key.Name,
			Message: fmt.Sprintf("a %s of this name already exists at %s and is in force instead of this document", key.Kind, s.files[owner].accepted[key].resource.Origin),
			Remedy:  key.Kind.DuplicateRemedy(),
		})
	}
	slices.SortFunc(problems, func(a, b config.Problem) int {
		return cmp.Or(config.ComparePositions(a.At, b.At), config.CompareKeys(a.Key, b.Key))
	})
	return problems
}

// isDenialInForce reports whether t contains the refused policy key and its denial is in force.
func (s *Store) isDenialInForce(t *trackedFile, key config.Key) bool {
	p := t.policies[key]
	return p != nil && p.Denial != nil && s.inForce[key] == p.Denial
}

func (s *Store) listDocuments(path string) []config.Document {
	t := s.files[path]
	var documents []config.Document
	listed := map[config.Key]bool{}
	for _, d := range t.parsed.Documents {
		doc := config.Document{Key: d.Key, At: d.At, State: config.Refused}
		h, good := t.accepted[d.Key]
		switch {
		case d.Inert:
			doc.State = config.Inert
		case good && s.owner[d.Key] == path:
			doc.State, doc.Since = config.InForce, h.since
			if h.stale {
				doc.State = config.Stale
			}
		case s.isDenialInForce(t, d.Key):
			doc.State = config.Denied
		case good && d.Key.Kind.IsClusterState(): // another file has the same object
			doc.State = config.Inert
		}
		listed[d.Key] = listed[d.Key] || !d.Inert
		documents = append(documents, doc)
	}
	var unseen []config.Document // accepted documents that the current text, which cannot be parsed, may contain
	for key, h := range t.accepted {
		if !listed[key] && s.owner[key] == path {
			unseen = append(unseen, config.Document{Key: key, At: h.resource.Origin, State: config.Stale, Since: h.since})
		}
	}
	slices.SortFunc(unseen, func(a, b config.Document) int { return config.CompareKeys(a.Key, b.Key) })
	return append(documents, unseen...)
}
