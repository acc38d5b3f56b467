package lastgood

// How a Store comes to the file that it writes; callers hold its lock.

import (
	"bufio"
	"bytes"
	"errors"
)

// beside makes a file beside the one that counts.
func (s *Store) beside() error {
	f, size, err := s.newFile(s.at, newName)
	if err == nil {
		s.use(f, size, 0)
		s.fresh = true
	}
	return err
}

// replace lets a file that was begun beside the old one take its place.
func (s *Store) replace() error {
	err := s.file.Sync()
	if err == nil {
		err = s.at.replace()
	}
	s.fresh = s.fresh && err != nil
	return err
}

// resume opens the file for writing after its last mark, or makes a new one.
func (s *Store) resume() error {
	old, err := s.load(s.identity)
	if err != nil && s.onDisk() && !isUseless(err) {
		return err
	}
	if old == nil {
		return s.create()
	}
	end, unanswered := old.end, old.open
	_ = old.Close()
	if s.kept() != s.at { // it is on the disk that was left
		f, size, err := s.copied(s.at)
		if err == nil {
			s.use(f, size, size)
		}
		return err
	}
	f, err := s.at.resume(end)
	if err != nil {
		return err
	}
	s.use(f, end, end)
	for _, stage := range unanswered { // its number is given to another one now
		s.write(kindRejected, fields(stage), nil)
	}
	return nil
}

func isUseless(err error) bool {
	return errors.Is(err, ErrForeign) || errors.Is(err, ErrCorrupt) || errors.Is(err, ErrFormat) || errors.Is(err, ErrEmpty) || errors.Is(err, ErrTooBig)
}

func (s *Store) create() error {
	f, size, err := s.newFile(s.at, fileName)
	if err == nil {
		s.use(f, size, 0)
	}
	return err
}

// newFile makes a file that has nothing but its header.
func (s *Store) newFile(at shelf, name string) (file, int64, error) {
	var head bytes.Buffer
	if err := writeHeader(&head, header{Identity: s.identity, Written: s.config.Now()}); err != nil {
		return nil, 0, err
	}
	f, err := at.create(name)
	if err != nil {
		return nil, 0, err
	}
	if _, err := f.Write(head.Bytes()); err != nil {
		_ = f.Close()
		return nil, 0, err
	}
	return f, int64(head.Len()), nil
}

func (s *Store) use(f file, size, marked int64) {
	s.file, s.out, s.size, s.marked, s.fresh = f, bufio.NewWriterSize(f, writeSize), size, marked, false
	s.limit = min(max(rewriteAt, 2*size), (size+s.config.MaxBytes)/2)
	s.status.Bytes = size
}
