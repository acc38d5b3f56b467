package dirstore

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// trackedFile is the state of one file when it was read last. It contains the last valid version of each document of
// the file.
type trackedFile struct {
	info     fs.FileInfo
	sum      [sha256.Size]byte
	parsed   *config.ParsedFile
	accepted map[config.Key]acceptedVersion
	// policies contains the refused policies of the newest text that have no accepted version.
	policies     map[config.Key]*config.RefusedPolicy
	missingSince time.Time // when the file was first missing; zero after removalGrace or if it exists
	emptySince   time.Time // when the file was first empty; zero after emptyGrace or if it has content
	readErr      error     // why the file could not be read

	indexed []config.Key // keys of accepted and policies that the store's indexes contain
}

// acceptedVersion is the valid version of a document.
type acceptedVersion struct {
	resource *config.Resource
	since    time.Time
	stale    bool // the current text is refused
}

// scan reads the changed files and updates the store. It reads the files in touched even if they look unchanged. again
// is true if another scan is needed soon.
func (s *Store) scan(touched map[string]bool) (again bool) {
	return s.scanListing(listPaths(s.cfg.Paths), touched)
}

// scanListing is like scan, but uses the listing found.
func (s *Store) scanListing(found *dirListing, touched map[string]bool) (again bool) {
	s.scanning.Lock()
	defer s.scanning.Unlock()
	now := s.cfg.Now()
	s.setFailure(found.err)
	present := make(map[string]bool, len(found.files))
	order := make([]string, 0, len(found.files))
	for _, file := range found.files {
		if present[file.path] {
			continue
		}
		present[file.path] = true
		order = append(order, file.path)
		s.updateFile(file, touched[file.path], now)
	}
	for _, path := range s.order {
		if !present[path] && s.handleMissing(path, found, now) {
			order = append(order, path)
		}
	}
	s.order = order
	return s.finishScan(now)
}

// finishScan updates the store from the files that were read. again is true if another scan is needed soon.
func (s *Store) finishScan(now time.Time) (again bool) {
	s.resolveDocuments(now)
	if s.running {
		s.saveRetained()
	}
	return len(s.rescanSoon) > 0
}

func (s *Store) setFailure(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failure = ""
	if err != nil {
		s.failure = fmt.Sprintf("the configuration cannot be read: %v; the last read configuration stays in force", err)
	}
}

// updateFile reads the file, unless it is unchanged and not touched.
func (s *Store) updateFile(file foundFile, touched bool, now time.Time) {
	t := s.files[file.path]
	if t == nil {
		t = s.trackFile(file.path)
	}
	t.missingSince = time.Time{}
	delete(s.rescanSoon, file.path)
	if !touched && t.readErr == nil && t.emptySince.IsZero() && isUnchanged(t.info, file.info) {
		return
	}
	s.scanned[file.path] = t
	if s.reloadFile(t, file, now) {
		s.rescanSoon[file.path] = true
	}
}

// reloadFile reads and parses the file. again is true if the file must be read again soon, because a program is
// probably writing or replacing it.
func (s *Store) reloadFile(t *trackedFile, file foundFile, now time.Time) (again bool) {
	data, err := readLimited(file.path)
	if t.readErr = err; err != nil {
		return errors.Is(err, fs.ErrNotExist) // the file is being replaced
	}
	if len(bytes.TrimSpace(data)) == 0 && t.hasEffect() && isWithinGrace(&t.emptySince, now, emptyGrace) {
		return true
	}
	t.emptySince, t.info = time.Time{}, file.info
	sum := sha256.Sum256(data)
	if t.parsed != nil && sum == t.sum {
		return false
	}
	t.sum = sum
	t.parsed = s.parser.ParseFile(file.path, data)
	t.retainAccepted(now)
	return false
}

// trackFile adds the file path, with the versions that an earlier process stored for it.
func (s *Store) trackFile(path string) *trackedFile {
	t := &trackedFile{accepted: s.lastAccepted.versionsOf(path)}
	for key := range t.accepted {
		t.parsed = &config.ParsedFile{}
		s.owner[key] = path
	}
	s.files[path] = t
	return t
}

// isWithinGrace reports whether the condition that began at *start has lasted less than grace. If *start is zero, the
// condition begins now.
func isWithinGrace(start *time.Time, now time.Time, grace time.Duration) bool {
	if start.IsZero() {
		*start = now
	}
	return now.Sub(*start) < grace
}

// isUnchanged reports whether a and b describe the same file with the same content. Size, modification time and inode
// are not sufficient: programs can set the modification time, and a new file may reuse the inode of a removed one.
// Programs cannot set the change time.
func isUnchanged(a, b fs.FileInfo) bool {
	return a != nil && os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime()) && changeTime(a).Equal(changeTime(b))
}

// readLimited reads at most MaxFileSize+1 bytes of the file path. The caller detects a file that is too large by the
// extra byte.
func readLimited(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, config.MaxFileSize+1))
}

// retainAccepted stores the valid documents of the newest text, and retains the last accepted version of refused ones.
// It discards documents that the text no longer contains. If the text is incomplete, so that it may have been meant to
// contain them, it retains all documents.
func (t *trackedFile) retainAccepted(now time.Time) {
	next, refused := map[config.Key]acceptedVersion{}, map[config.Key]bool{}
	anyKind := func(key config.Key) config.Key { return config.Key{Namespace: key.Namespace, Name: key.Name} }
	for _, d := range t.parsed.Documents {
		switch {
		case d.Resource != nil:
			h := acceptedVersion{resource: d.Resource, since: now}
			if before, ok := t.accepted[d.Key]; ok && before.resource.Equal(d.Resource) {
				h.since = before.since
			}
			next[d.Key] = h
		case d.UnknownKind:
			refused[anyKind(d.Key)] = true
		case !d.Inert:
			refused[d.Key] = true
		}
	}
	for key, before := range t.accepted {
		if _, good := next[key]; !good && (t.parsed.Incomplete || refused[key] || refused[anyKind(key)]) {
			before.stale = true
			next[key] = before
		}
	}
	t.accepted = next
	t.collectRefusedPolicies()
}

// collectRefusedPolicies updates policies from the newest text. If a part of the text could not be parsed, it retains
// earlier policies.
func (t *trackedFile) collectRefusedPolicies() {
	next := map[config.Key]*config.RefusedPolicy{}
	if t.parsed.Unreadable {
		maps.Copy(next, t.policies)
	}
	for _, p := range t.parsed.Policies {
		if first := next[p.Key]; first == nil || !slices.Contains(t.parsed.Policies, first) {
			next[p.Key] = p
		}
	}
	maps.DeleteFunc(next, func(key config.Key, _ *config.RefusedPolicy) bool { _, good := t.accepted[key]; return good })
	t.policies = next
}

// hasEffect reports whether a document or a denial of the file may be in force.
func (t *trackedFile) hasEffect() bool { return len(t.accepted)+len(t.policies) > 0 }

// handleMissing handles the file path, which the listing found does not contain. keep is true if its documents stay in
// force for now: its directory cannot be read, or the file has been missing for less than removalGrace.
func (s *Store) handleMissing(path string, found *dirListing, now time.Time) (keep bool) {
	delete(s.rescanSoon, path)
	for _, dir := range found.unreadable {
		if isWithin(dir, path) {
			return true
		}
	}
	t := s.files[path]
	if t.hasEffect() && isWithinGrace(&t.missingSince, now, removalGrace) {
		s.rescanSoon[path] = true
		return true
	}
	t.accepted, t.policies, t.parsed = nil, nil, nil
	s.scanned[path] = t
	delete(s.files, path)
	return false
}
