package lastgood

import (
	"bufio"
	"maps"
	"slices"
)

// rewrite copies the accepted configuration to a new file, which replaces the log. If that fails, the store continues
// with the old file.
func (s *Store) rewrite() {
	before := s.size
	f, size, err := s.copyTo(s.active)
	if err != nil {
		s.rewriteSize = 2 * s.size
		s.config.Logger.Warn("the log of the last good configuration could not be rewritten; it stays longer than necessary",
			"place", s.location(), "error", err)
		return
	}
	_ = s.file.Close()
	s.setFile(f, size, size)
	s.config.Logger.Debug("the log of the last good configuration was rewritten", "place", s.location(), "before", before, "after", size)
}

// copyTo writes the accepted configuration to a new file in to, which replaces the file there. It returns the open file
// and its size.
func (s *Store) copyTo(to storage) (_ file, size int64, err error) {
	old, err := s.load(s.identity)
	if err == nil && old == nil {
		err = ErrEmpty
	}
	if err != nil {
		return nil, 0, err
	}
	defer func() { _ = old.Close() }()
	f, size, err := s.createWithHeader(to, newFileName)
	if err != nil {
		return nil, 0, err
	}
	defer func() {
		if err != nil {
			_ = f.Close()
			to.remove(newFileName)
		}
	}()
	w := copier{out: bufio.NewWriterSize(f, 64<<10), size: size}
	for number, typeURL := range old.Types() {
		if err := w.copyType(old, uint64(2*number), typeURL); err != nil {
			return nil, 0, err
		}
	}
	w.write(kindCheckpoint, encodeFields(uint64(old.UpToDate.UnixMilli())), nil)
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
		w.size += int64(len(fields)+len(content)) + recordHeaderLen + checksumLen
	}
}

// copyType writes the resources of a type as one accepted response, if one was accepted, and its outdated resources as
// a rejected response.
func (w *copier) copyType(old *Snapshot, stage uint64, typeURL string) error {
	for _, name := range old.Names(typeURL) {
		version, content, _, err := old.Resource(typeURL, name)
		if err != nil {
			return err
		}
		w.write(kindResource, encodeFields(stage, typeURL, name, version), content)
	}
	t := old.types[typeURL]
	if t.accepted {
		w.write(kindResponse, append(encodeFields(stage, typeURL, t.version), 1), nil)
		w.write(kindAccepted, encodeFields(stage), nil)
	}
	if len(t.outdated) == 0 {
		return w.err
	}
	for _, name := range slices.Sorted(maps.Keys(t.outdated)) {
		w.write(kindRemoved, encodeFields(stage+1, typeURL, name), nil)
	}
	w.write(kindRejected, encodeFields(stage+1), nil)
	return w.err
}
