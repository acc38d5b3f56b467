package lastgood

// Methods that open and replace the file of a Store; callers hold mu.

import (
	"bufio"
	"bytes"
	"errors"
)

// createReplacement creates a file that replaces the current one at its first checkpoint.
func (s *Store) createReplacement() error {
	f, size, err := s.createWithHeader(s.active, newFileName)
	if err == nil {
		s.setFile(f, size, 0)
		s.isNew = true
	}
	return err
}

// replaceFile replaces the current file by the new one.
func (s *Store) replaceFile() error {
	err := s.file.Sync()
	if err == nil {
		err = s.active.replace()
	}
	s.isNew = s.isNew && err != nil
	return err
}

// resumeFile opens the file for writing after its last checkpoint. It creates a new file if there is none or it cannot
// be used.
func (s *Store) resumeFile() error {
	old, err := s.load(s.identity)
	if err != nil && s.isOnDisk() && !isUseless(err) {
		return err
	}
	if old == nil {
		return s.createFile()
	}
	end, unanswered := old.checkpointEnd, old.pending
	_ = old.Close()
	if s.currentStorage() != s.active { // the file is on the disk that failed
		f, size, err := s.copyTo(s.active)
		if err == nil {
			s.setFile(f, size, size)
		}
		return err
	}
	f, err := s.active.openAppend(end)
	if err != nil {
		return err
	}
	s.setFile(f, end, end)
	for _, stage := range unanswered { // the numbers are used again
		s.write(kindRejected, encodeFields(stage), nil)
	}
	return nil
}

func isUseless(err error) bool {
	return errors.Is(err, ErrForeign) || errors.Is(err, ErrCorrupt) || errors.Is(err, ErrFormat) || errors.Is(err, ErrEmpty) || errors.Is(err, ErrTooBig)
}

func (s *Store) createFile() error {
	f, size, err := s.createWithHeader(s.active, fileName)
	if err == nil {
		s.setFile(f, size, 0)
	}
	return err
}

// createWithHeader creates a file that contains only its header.
func (s *Store) createWithHeader(at storage, name string) (file, int64, error) {
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

func (s *Store) setFile(f file, size, marked int64) {
	s.file, s.out, s.size, s.checkpointEnd, s.isNew = f, bufio.NewWriterSize(f, writeBufferSize), size, marked, false
	s.rewriteSize = min(max(minRewriteSize, 2*size), (size+s.config.MaxBytes)/2)
	s.status.Bytes = size
}
