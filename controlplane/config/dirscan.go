package config

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

	listed []Key // of held, as the store's holders have it
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
	present := make(map[string]bool, len(found.files))
	order := make([]string, 0, len(found.files))
	for _, file := range found.files {
		if present[file.path] {
			continue
		}
		present[file.path] = true
		order = append(order, file.path)
		s.readFile(file, touched[file.path], now)
	}
	for _, path := range s.order {
		if !present[path] && s.vanished(path, found, now) {
			order = append(order, path)
		}
	}
	if found.plain() {
		slices.SortFunc(order, s.inOrder)
	}
	s.order = order
	return s.finish(now)
}

// scanSome is scan where only these paths may have changed. It says no where a look at everything is needed to tell what
// they mean.
func (s *DirStore) scanSome(tree *plainTree, touched map[string]bool) (again, ok bool) {
	s.scanning.Lock()
	defer s.scanning.Unlock()
	paths := make(map[string]bool, len(touched)+len(s.waiting))
	maps.Copy(paths, touched)
	maps.Copy(paths, s.waiting)
	there, gone, ok := tree.look(paths)
	if !ok {
		return false, false
	}
	now := s.cfg.Now()
	for _, file := range there {
		if at, known := slices.BinarySearchFunc(s.order, file.path, s.inOrder); !known {
			s.order = slices.Insert(slices.Clip(s.order), at, file.path)
		}
		s.readFile(file, true, now)
	}
	for _, path := range gone {
		if at, known := slices.BinarySearchFunc(s.order, path, s.inOrder); known && !s.vanished(path, &finding{}, now) {
			s.order = slices.Delete(slices.Clone(s.order), at, at+1)
		}
	}
	return s.finish(now), true
}

// finish puts in force what the files that were read say. It says whether to look again soon.
func (s *DirStore) finish(now time.Time) (again bool) {
	s.settle(now)
	if s.runs {
		s.keep()
	}
	return len(s.waiting) > 0
}

func (s *DirStore) setFailing(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failing = ""
	if err != nil {
		s.failing = fmt.Sprintf("the configuration cannot be read: %v; what was last read stays in force", err)
	}
}

// readFile brings one file's tracked state up to date.
func (s *DirStore) readFile(file foundFile, touched bool, now time.Time) {
	t := s.files[file.path]
	if t == nil {
		t = s.track(file.path)
	}
	t.gone = time.Time{}
	delete(s.waiting, file.path)
	if !touched && t.unread == nil && t.empty.IsZero() && unchanged(t.info, file.info) {
		return
	}
	s.looked[file.path] = t
	if s.read(t, file, now) {
		s.waiting[file.path] = true
	}
}

// read takes what a file says now. It says whether to look again soon.
func (s *DirStore) read(t *trackedFile, file foundFile, now time.Time) (again bool) {
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

// unchanged goes by when the system last saw a change too: size and time are as who wrote the file wants them (archives tell
// the same time of each file), and a file that was removed may leave its number to the one that takes its place.
func unchanged(a, b fs.FileInfo) bool {
	return a != nil && os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime()) && changeTime(a).Equal(changeTime(b))
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

// vanished decides about a file that is not there any more: whether it is kept all the same.
func (s *DirStore) vanished(path string, found *finding, now time.Time) (keep bool) {
	delete(s.waiting, path)
	for _, dir := range found.unreadable {
		if within(dir, path) {
			return true
		}
	}
	t := s.files[path]
	if len(t.held) > 0 && waits(&t.gone, now, vanishGrace) {
		s.waiting[path] = true
		return true
	}
	t.held, t.parsed = nil, nil
	s.looked[path] = t
	delete(s.files, path)
	return false
}
