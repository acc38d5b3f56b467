package lastgood

import (
	"bufio"
	"maps"
	"slices"
)

// rewrite writes what counts into a new file, which takes the place of the old one. When that fails the old one goes on.
func (s *Store) rewrite() {
	before := s.size
	f, size, err := s.copied(s.at)
	if err != nil {
		s.limit = 2 * s.size
		s.config.Logger.Warn("the last good configuration could not be written anew; it stays longer than it need be",
			"place", s.place(), "error", err)
		return
	}
	_ = s.file.Close()
	s.use(f, size, size)
	s.config.Logger.Debug("the last good configuration was written anew", "place", s.place(), "before", before, "after", size)
}

// copied writes what counts into a file of a shelf, where it takes the place of the one that counted.
func (s *Store) copied(to shelf) (_ file, size int64, err error) {
	old, err := s.load(s.identity)
	if err == nil && old == nil {
		err = ErrEmpty
	}
	if err != nil {
		return nil, 0, err
	}
	defer func() { _ = old.Close() }()
	f, size, err := s.newFile(to, newName)
	if err != nil {
		return nil, 0, err
	}
	defer func() {
		if err != nil {
			_ = f.Close()
			to.remove(newName)
		}
	}()
	w := copier{out: bufio.NewWriterSize(f, 64<<10), size: size}
	for number, typeURL := range old.Types() {
		if err := w.copyType(old, uint64(2*number), typeURL); err != nil {
			return nil, 0, err
		}
	}
	w.write(kindMark, fields(uint64(old.UpToDate.UnixMilli())), nil)
	if w.err == nil {
		w.err = w.out.Flush()
	}
	if w.err == nil {
		w.err = f.Sync()
	}
	if w.err != nil {
		return nil, 0, w.err
	}
	return f, w.size, to.replace()
}

type copier struct {
	out  *bufio.Writer
	size int64
	err  error
}

func (w *copier) write(k kind, fields, content []byte) {
	if w.err == nil {
		w.err = writeRecord(w.out, k, fields, content)
		w.size += int64(len(fields)+len(content)) + recordHead + recordTail
	}
}

// copyType writes all of a type as one response that was accepted, if any was, and what is behind as one that was not.
func (w *copier) copyType(old *Snapshot, stage uint64, typeURL string) error {
	for _, name := range old.Names(typeURL) {
		version, content, _, err := old.Resource(typeURL, name)
		if err != nil {
			return err
		}
		w.write(kindResource, fields(stage, typeURL, name, version), content)
	}
	t := old.types[typeURL]
	if t.accepted {
		w.write(kindResponse, append(fields(stage, typeURL, t.version), 1), nil)
		w.write(kindAccepted, fields(stage), nil)
	}
	if len(t.behind) == 0 {
		return w.err
	}
	for _, name := range slices.Sorted(maps.Keys(t.behind)) {
		w.write(kindRemoved, fields(stage+1, typeURL, name), nil)
	}
	w.write(kindRejected, fields(stage+1), nil)
	return w.err
}
