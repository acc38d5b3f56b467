package config

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"time"
)

// trackedFile is one file as it was last read, and what of it, then or before, is good.
type trackedFile struct {
	info   fs.FileInfo
	sum    [sha256.Size]byte
	parsed *parsedFile
	held   map[Key]held
	gone   time.Time // since when it is not there, though that is not believed yet
	empty  time.Time // since when nothing is in it, though that is not believed yet
	unread error     // why it could not be read
}

// held is the good version of a document.
type held struct {
	resource *Resource
	since    time.Time
	stale    bool // what is written now is refused
}

// scan reads the files that changed, and puts what they say in force. touched are files to read though they look
// unchanged. It says whether it wants to be called again soon.
func (s *DirStore) scan(touched map[string]bool) (again bool) {
	return s.scanOf(find(s.cfg.Paths), touched)
}

// scanOf is scan where it was just looked which files there are.
func (s *DirStore) scanOf(found *finding, touched map[string]bool) (again bool) {
	s.scanning.Lock()
	defer s.scanning.Unlock()
	now := s.cfg.Now()
	s.setFailing(found.err)
	present := map[string]bool{}
	order := make([]string, 0, len(found.files))
	for _, file := range found.files {
		if present[file.path] {
			continue
		}
		present[file.path] = true
		order = append(order, file.path)
		if s.readFile(file, touched[file.path], now) {
			again = true
		}
	}
	for _, path := range s.order {
		if present[path] {
			continue
		}
		if keep, wait := s.vanished(path, found, now); keep {
			order = append(order, path)
			again = again || wait
		} else {
			delete(s.files, path)
		}
	}
	s.order = order
	s.settle(now)
	if s.runs {
		s.keep()
	}
	return again
}

func (s *DirStore) setFailing(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failing = ""
	if err != nil {
		s.failing = fmt.Sprintf("the configuration cannot be read: %v; what was last read stays in force", err)
	}
}

// readFile brings one file's tracked state up to date. It says whether to look again soon.
func (s *DirStore) readFile(file foundFile, touched bool, now time.Time) (again bool) {
	t := s.files[file.path]
	if t == nil {
		t = s.track(file.path)
	}
	t.gone = time.Time{}
	if !touched && t.unread == nil && t.empty.IsZero() && unchanged(t.info, file.info) {
		return false
	}
	data, err := readBounded(file.path)
	if t.unread = err; err != nil {
		return errors.Is(err, fs.ErrNotExist) // replaced this very moment
	}
	if len(bytes.TrimSpace(data)) == 0 && len(t.held) > 0 && waits(&t.empty, now, emptyGrace) {
		return true
	}
	t.empty, t.info = time.Time{}, file.info
	sum := sha256.Sum256(data)
	if t.parsed != nil && sum == t.sum {
		return false
	}
	t.sum = sum
	t.parsed = s.parser.parse(file.path, data)
	t.hold(now)
	return false
}

// track begins with a file: with nothing, or with what was left of it before a restart.
func (s *DirStore) track(path string) *trackedFile {
	t := &trackedFile{held: s.last.of(path)}
	for key := range t.held {
		t.parsed = &parsedFile{}
		s.owner[key] = path
	}
	s.files[path] = t
	return t
}

// waits says whether it is too early to believe something, and notes since when it is so.
func waits(since *time.Time, now time.Time, grace time.Duration) bool {
	if since.IsZero() {
		*since = now
	}
	return now.Sub(*since) < grace
}

func unchanged(a, b fs.FileInfo) bool {
	return a != nil && os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}

// readBounded reads a file, but no more of one that is too large than shows that it is.
func readBounded(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, MaxFileSize+1))
}

// hold takes the good documents of the newest text, and keeps the last good version of those that are refused now. Where
// it is not known which documents a bad text was meant to have, none is taken to be removed.
func (t *trackedFile) hold(now time.Time) {
	next, refused := map[Key]held{}, map[Key]bool{}
	anyKind := func(key Key) Key { return Key{Namespace: key.Namespace, Name: key.Name} }
	for _, d := range t.parsed.documents {
		switch {
		case d.resource != nil:
			h := held{resource: d.resource, since: now}
			if before, ok := t.held[d.key]; ok && before.resource.Equal(d.resource) {
				h.since = before.since
			}
			next[d.key] = h
		case d.kindless:
			refused[anyKind(d.key)] = true
		case !d.inert:
			refused[d.key] = true
		}
	}
	for key, before := range t.held {
		if _, good := next[key]; !good && (t.parsed.blind || refused[key] || refused[anyKind(key)]) {
			before.stale = true
			next[key] = before
		}
	}
	t.held = next
}

// vanished decides about a file that is not there any more.
func (s *DirStore) vanished(path string, found *finding, now time.Time) (keep, wait bool) {
	for _, dir := range found.unreadable {
		if within(dir, path) {
			return true, false
		}
	}
	if t := s.files[path]; len(t.held) > 0 && waits(&t.gone, now, vanishGrace) {
		return true, true
	}
	return false, false
}

// settle decides which documents are in force, and puts them there.
func (s *DirStore) settle(now time.Time) {
	candidates := s.candidates()
	s.adopt(candidates, now)
	next := make(map[Key]*Resource, len(candidates))
	for key, paths := range candidates {
		if !slices.Contains(paths, s.owner[key]) {
			// The document that is in force stays so while it is there; else the first in order is.
			s.owner[key] = paths[0]
		}
		next[key] = s.files[s.owner[key]].held[key].resource
	}
	var put []*Resource
	var del []Key
	for key, r := range next {
		if s.inForce[key] != r {
			put = append(put, r)
		}
	}
	for key := range s.inForce {
		if next[key] == nil {
			del = append(del, key)
			delete(s.owner, key)
		}
	}
	slices.SortFunc(put, func(a, b *Resource) int { return compareKeys(a.Key, b.Key) })
	slices.SortFunc(del, compareKeys)
	s.inForce = next
	s.describe(candidates)
	if changed := s.apply(put, del); len(changed) > 0 {
		s.log.Info("configuration read", "changed", len(changed), "resources", len(next), "problems", len(s.problems))
	}
}

// candidates are the files that have a good version of each resource, in order.
func (s *DirStore) candidates() map[Key][]string {
	candidates := map[Key][]string{}
	for _, path := range s.order {
		for key := range s.files[path].held {
			candidates[key] = append(candidates[key], path)
		}
	}
	return candidates
}

// adopt keeps resources in force whose document was moved to another file and is refused there, also while nobody looked.
func (s *DirStore) adopt(candidates map[Key][]string, now time.Time) {
	for _, path := range s.order {
		t := s.files[path]
		if t.parsed == nil {
			continue
		}
		for _, d := range t.parsed.documents {
			h, left := s.last.byKey[d.key]
			if r := s.inForce[d.key]; r != nil {
				h, left = held{resource: r, since: now, stale: true}, true
			}
			if d.resource != nil || d.inert || !left || candidates[d.key] != nil {
				continue
			}
			t.held[d.key] = h
			candidates[d.key] = []string{path}
		}
	}
}

// describe makes Problems and Documents.
func (s *DirStore) describe(candidates map[Key][]string) {
	var problems []Problem
	var documents []Document
	for _, path := range s.order {
		t := s.files[path]
		if t.unread != nil {
			problems = append(problems, unreadable(path, t.unread))
		}
		if t.parsed == nil {
			continue
		}
		problems = append(problems, t.parsed.problems...)
		problems = append(problems, s.duplicates(path, candidates)...)
		documents = append(documents, s.documentsOf(path)...)
	}
	s.logNew(problems)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.problems, s.documents = problems, documents
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

// logNew logs the problems that there were not before.
func (s *DirStore) logNew(problems []Problem) {
	known := map[Problem]bool{}
	for _, p := range s.problems {
		known[p] = true
	}
	for _, p := range problems {
		level := slog.LevelDebug
		switch p.Severity {
		case Error:
			level = slog.LevelError
		case Warning:
			level = slog.LevelWarn
		}
		if !known[p] {
			s.log.Log(context.Background(), level, "configuration", ProblemAttr, p.String())
		}
	}
}

// duplicates tells of the file's documents that another file's document of the same name keeps out.
func (s *DirStore) duplicates(path string, candidates map[Key][]string) []Problem {
	var problems []Problem
	for key, h := range s.files[path].held {
		owner := s.owner[key]
		if len(candidates[key]) == 1 || owner == path {
			continue
		}
		problems = append(problems, Problem{
			Code: DuplicateName, Severity: Error, Key: key, At: h.resource.Place("metadata.name"), Field: "metadata.name", Value: key.Name,
			Message: fmt.Sprintf("there is a %s of this name already, at %s, which is the one that counts", key.Kind, s.files[owner].held[key].resource.Origin),
			Remedy:  "rename one of the two, or remove it",
		})
	}
	slices.SortFunc(problems, func(a, b Problem) int { return comparePositions(a.At, b.At) })
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
