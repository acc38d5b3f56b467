package config

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/atomicfile"
)

// lastGood keeps, through a restart, what is in force though the files do not say it now. A policy whose last edit is
// refused would otherwise be gone with the process that knew its last good version.
type lastGood struct {
	file    string // "" keeps nothing
	kept    []byte // what the file holds, as far as is known
	known   bool   // kept is what this process wrote
	failure string // why it could not be written, or ""

	// What an earlier process left, for the first scan only: by the path of the file it came from, and by key.
	byPath map[string]map[Key]held
	byKey  map[Key]held
}

// keptFile is the form of the file.
type keptFile struct {
	Documents []keptDocument `json:"documents"`
}

type keptDocument struct {
	File     string          `json:"file"` // that the document is refused in; absolute, as is that of At
	At       Position        `json:"at"`   // where the good version was
	Since    time.Time       `json:"since"`
	Document json.RawMessage `json:"document"`
}

// load reads what an earlier process left. What is damaged is as good as not there: whoever starts a control plane
// should get one. The errors say what was lost.
func (l *lastGood) load(parser Parser) (lost []error) {
	if l.file == "" {
		return nil
	}
	data, err := readBounded(l.file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return []error{err}
	case len(data) > MaxFileSize:
		return []error{fmt.Errorf("it is larger than %d MiB", MaxFileSize>>20)}
	}
	return l.read(parser, data)
}

func (l *lastGood) read(parser Parser, data []byte) (lost []error) {
	l.byPath, l.byKey = map[string]map[Key]held{}, map[Key]held{}
	var file keptFile
	if err := json.Unmarshal(data, &file); err != nil {
		return []error{fmt.Errorf("it is damaged: %w", err)}
	}
	for _, d := range file.Documents {
		if err := l.take(parser, d); err != nil {
			lost = append(lost, err)
		}
	}
	return lost
}

func (l *lastGood) take(parser Parser, d keptDocument) error {
	resources, problems := parser.Parse(d.At.File, d.Document)
	if len(resources) != 1 {
		if len(problems) > 0 {
			return fmt.Errorf("a document of %s is not taken: %s", d.At, problems[0])
		}
		return fmt.Errorf("a document of %s is damaged", d.At)
	}
	r := resources[0]
	r.Origin, r.Places = d.At, nil // the places in the kept text are nobody's
	h := held{resource: r, since: d.Since, stale: true}
	if l.byPath[d.File] == nil {
		l.byPath[d.File] = map[Key]held{}
	}
	l.byPath[d.File][r.Key], l.byKey[r.Key] = h, h
	return nil
}

// of gives what was left of one file.
func (l *lastGood) of(path string) map[Key]held {
	left := map[Key]held{}
	if len(l.byPath) == 0 {
		return left
	}
	abs := absolute(path)
	maps.Copy(left, l.byPath[abs])
	for _, h := range left {
		if h.resource.Origin.File == abs {
			h.resource.Origin.File = path // as it is named now
		}
	}
	return left
}

func absolute(path string) string {
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return path
}

// save makes the file hold these documents, and no file when there are none.
func (l *lastGood) save(documents []unsaid) error {
	if l.file == "" {
		return nil
	}
	data, left, err := encodeKept(documents)
	if err == nil && (!l.known || !bytes.Equal(data, l.kept)) {
		if data == nil {
			err = remove(l.file)
		} else {
			err = atomicfile.Write(l.file, data)
		}
		l.kept, l.known = data, err == nil
	}
	if err == nil && left > 0 {
		err = fmt.Errorf("%d documents are too much for %d MiB", left, MaxFileSize>>20)
	}
	return err
}

// encodeKept gives the text of the file, or nil when there is nothing to keep, and how many documents it has no room for.
func encodeKept(documents []unsaid) (data []byte, left int, err error) {
	// What protects comes first, for the case that not all has room.
	security := func(h unsaid) int {
		if kinds[h.resource.Kind].group == securityGroup {
			return 0
		}
		return 1
	}
	slices.SortFunc(documents, func(a, b unsaid) int {
		return cmp.Or(cmp.Compare(security(a), security(b)), compareKeys(a.resource.Key, b.resource.Key))
	})
	file := keptFile{}
	size := 0
	for _, h := range documents {
		text, err := encode(h.resource)
		if err != nil {
			return nil, 0, fmt.Errorf("writing %s: %w", h.resource.Key, err)
		}
		d := keptDocument{File: absolute(h.path), At: h.resource.Origin, Since: h.since, Document: text}
		d.At.File = absolute(d.At.File)
		// Paths may grow when they are written, by what is escaped in them.
		need := len(text) + 6*(len(d.File)+len(d.At.File)) + 256
		if size+need > MaxFileSize {
			left++
			continue
		}
		size += need
		file.Documents = append(file.Documents, d)
	}
	if len(file.Documents) == 0 {
		return nil, left, nil
	}
	data, err = json.Marshal(file)
	return data, left, err
}

func remove(file string) error {
	if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// restore takes over what an earlier process left.
func (s *DirStore) restore() {
	for _, err := range s.last.load(s.parser) {
		s.log.Warn("a last good version from before the restart is lost: what is refused now has none in force until it is mended",
			"file", s.last.file, "err", err)
	}
}

// restored ends the restoration, after the first scan, and tells of it.
func (s *DirStore) restored() {
	s.last.byPath, s.last.byKey = nil, nil
	if n := len(s.unsaid()); n > 0 {
		s.log.Warn("documents that are refused now have their last good version in force, from before the restart", "documents", n)
	}
}

// unsaid is a document that is in force though its file does not say it now.
type unsaid struct {
	held
	path string
}

func (t *trackedFile) unsaid(h held) bool { return h.stale || t.unread != nil || !t.empty.IsZero() }

// unsure says whether a file has any.
func (t *trackedFile) unsure() bool {
	for _, h := range t.held {
		if t.unsaid(h) {
			return true
		}
	}
	return false
}

// unsaid gives those of all files.
func (s *DirStore) unsaid() []unsaid {
	var documents []unsaid
	for path := range s.unsure {
		t := s.files[path]
		for key, h := range t.held {
			if s.owner[key] == path && t.unsaid(h) {
				documents = append(documents, unsaid{h, path})
			}
		}
	}
	return documents
}

// withoutPath leaves out the name of a temporary file, which differs from try to try.
func withoutPath(err error) string {
	var at *fs.PathError
	if errors.As(err, &at) {
		return at.Op + ": " + at.Err.Error()
	}
	return err.Error()
}

// keep writes down what would be lost in a restart. That it cannot is told once: all stays in force in this process.
func (s *DirStore) keep() {
	documents, failure := s.unsaid(), ""
	if err := s.last.save(documents); err != nil {
		failure = withoutPath(err)
	}
	if failure != "" && failure != s.last.failure {
		s.log.Warn("the last good versions of refused documents cannot be kept for a restart: mend the documents before one, or the file's directory",
			"file", s.last.file, "err", failure)
	}
	if failure != "" || len(documents) > 0 { // to have had nothing to write shows nothing
		s.last.failure = failure
	}
}
