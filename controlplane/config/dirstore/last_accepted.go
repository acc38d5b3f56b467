package dirstore

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

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/internal/atomicfile"
)

// lastAccepted persists the documents that are in force although the current text of the files does not contain them.
// Otherwise a restart would end the effect of a policy whose last edit is refused.
type lastAccepted struct {
	file    string // path; "" persists nothing
	content []byte // content that this process wrote last
	written bool   // the last write succeeded, so the file has the content
	failure string // why the file could not be written, or ""

	// byPath and byKey are the versions that an earlier process stored, by path of the document's file and by key. Only
	// the first scan uses them.
	byPath map[string]map[config.Key]acceptedVersion
	byKey  map[config.Key]acceptedVersion
}

// lastAcceptedFile is the format of the file.
type lastAcceptedFile struct {
	Documents []lastAcceptedDocument `json:"documents"`
}

type lastAcceptedDocument struct {
	File     string          `json:"file"` // absolute path of the file in which the document is refused; At.File is absolute too
	At       config.Position `json:"at"`   // position of the accepted version
	Since    time.Time       `json:"since"`
	Document json.RawMessage `json:"document"`
}

// load reads the versions that an earlier process stored. It skips damaged content, so that the control plane starts
// nevertheless. lost describes what was skipped.
func (l *lastAccepted) load(parser config.Parser) (lost []error) {
	if l.file == "" {
		return nil
	}
	data, err := readLimited(l.file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return []error{err}
	case len(data) > config.MaxFileSize:
		return []error{fmt.Errorf("the file is larger than %d MiB", config.MaxFileSize>>20)}
	}
	return l.decode(parser, data)
}

func (l *lastAccepted) decode(parser config.Parser, data []byte) (lost []error) {
	l.byPath, l.byKey = map[string]map[config.Key]acceptedVersion{}, map[config.Key]acceptedVersion{}
	var file lastAcceptedFile
	if err := json.Unmarshal(data, &file); err != nil {
		return []error{fmt.Errorf("the file is damaged: %w", err)}
	}
	for _, d := range file.Documents {
		if err := l.restoreDocument(parser, d); err != nil {
			lost = append(lost, err)
		}
	}
	return lost
}

func (l *lastAccepted) restoreDocument(parser config.Parser, d lastAcceptedDocument) error {
	resources, problems := parser.Parse(d.At.File, d.Document)
	if len(resources) != 1 {
		if len(problems) > 0 {
			return fmt.Errorf("a document of %s is not accepted: %s", d.At, problems[0])
		}
		return fmt.Errorf("a document of %s is damaged", d.At)
	}
	r := resources[0]
	r.Origin, r.Positions = d.At, nil // positions in the stored JSON are of no use to the author
	h := acceptedVersion{resource: r, since: d.Since, stale: true}
	if l.byPath[d.File] == nil {
		l.byPath[d.File] = map[config.Key]acceptedVersion{}
	}
	l.byPath[d.File][r.Key], l.byKey[r.Key] = h, h
	return nil
}

// versionsOf returns the versions that an earlier process stored for the file path.
func (l *lastAccepted) versionsOf(path string) map[config.Key]acceptedVersion {
	left := map[config.Key]acceptedVersion{}
	if len(l.byPath) == 0 {
		return left
	}
	abs := absolutePath(path)
	maps.Copy(left, l.byPath[abs])
	for _, h := range left {
		if h.resource.Origin.File == abs {
			h.resource.Origin.File = path // the path as configured now
		}
	}
	return left
}

func absolutePath(path string) string {
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return path
}

// save writes documents to the file, or removes the file if there are none. It returns an error if writing fails, or if
// not all documents fit.
func (l *lastAccepted) save(documents []retainedDocument) error {
	if l.file == "" {
		return nil
	}
	data, left, err := encodeLastAccepted(documents)
	if err == nil && (!l.written || !bytes.Equal(data, l.content)) {
		if data == nil {
			err = removeFile(l.file)
		} else {
			err = atomicfile.Write(l.file, data)
		}
		l.content, l.written = data, err == nil
	}
	if err == nil && left > 0 {
		err = fmt.Errorf("%d documents do not fit into the maximum size of %d MiB", left, config.MaxFileSize>>20)
	}
	return err
}

// encodeLastAccepted returns the content of the file, or nil if there are no documents. left is the number of documents
// that do not fit into the maximum file size.
func encodeLastAccepted(documents []retainedDocument) (data []byte, left int, err error) {
	// Policies have priority if not all documents fit.
	security := func(h retainedDocument) int {
		if h.resource.Kind.IsSecurity() {
			return 0
		}
		return 1
	}
	slices.SortFunc(documents, func(a, b retainedDocument) int {
		return cmp.Or(cmp.Compare(security(a), security(b)), config.CompareKeys(a.resource.Key, b.resource.Key))
	})
	file := lastAcceptedFile{}
	size := 0
	for _, h := range documents {
		text, err := config.Encode(h.resource)
		if err != nil {
			return nil, 0, fmt.Errorf("encoding %s: %w", h.resource.Key, err)
		}
		d := lastAcceptedDocument{File: absolutePath(h.path), At: h.resource.Origin, Since: h.since, Document: text}
		d.At.File = absolutePath(d.At.File)
		// JSON escapes may lengthen each byte of a path to six bytes.
		need := len(text) + 6*(len(d.File)+len(d.At.File)) + 256
		if size+need > config.MaxFileSize {
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

func removeFile(file string) error {
	if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// restore loads the versions that an earlier process stored, and logs what was lost.
func (s *Store) restore() {
	for _, err := range s.lastAccepted.load(s.parser) {
		s.log.Warn("reading the last accepted version of a refused document failed after the restart; the refused document has no effect until its error is fixed",
			"file", s.lastAccepted.file, "error", err)
	}
}

// endRestore discards the loaded versions after the first scan, and logs how many of them are in force.
func (s *Store) endRestore() {
	s.lastAccepted.byPath, s.lastAccepted.byKey = nil, nil
	if n := len(s.retainedDocuments()); n > 0 {
		s.log.Warn("after the restart, the last accepted versions of refused documents are in force again", "documents", n)
	}
}

// retainedDocument is a last accepted version that stays in force although the current text of its file no longer
// contains it.
type retainedDocument struct {
	acceptedVersion
	path string
}

func (t *trackedFile) isRetained(h acceptedVersion) bool {
	return h.stale || t.readErr != nil || !t.emptySince.IsZero()
}

// hasRetained reports whether the file has retained documents.
func (t *trackedFile) hasRetained() bool {
	for _, h := range t.accepted {
		if t.isRetained(h) {
			return true
		}
	}
	return false
}

// retainedDocuments returns the retained documents of all files that are in force.
func (s *Store) retainedDocuments() []retainedDocument {
	var documents []retainedDocument
	for path := range s.withRetained {
		t := s.files[path]
		for key, h := range t.accepted {
			if s.owner[key] == path && t.isRetained(h) {
				documents = append(documents, retainedDocument{h, path})
			}
		}
	}
	return documents
}

// describeWriteError returns the text of a write error without the name of the temporary file, which differs for each
// attempt.
func describeWriteError(err error) string {
	var at *fs.PathError
	if errors.As(err, &at) {
		return at.Op + ": " + at.Err.Error()
	}
	return err.Error()
}

// saveRetained persists the retained documents. It logs a failure once; the documents stay in force in this process.
func (s *Store) saveRetained() {
	documents, failure := s.retainedDocuments(), ""
	if err := s.lastAccepted.save(documents); err != nil {
		failure = describeWriteError(err)
	}
	if failure != "" && failure != s.lastAccepted.failure {
		s.log.Warn("cannot store the last accepted versions of refused documents; after a restart, these documents would have no effect: fix the documents, or make the file's directory writable",
			"file", s.lastAccepted.file, "error", failure)
	}
	if failure != "" || len(documents) > 0 { // an empty save does not prove that writing works
		s.lastAccepted.failure = failure
	}
}
