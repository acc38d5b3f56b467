package lastgood

import (
	"errors"
	"time"
)

// retryDisk is how long after a failure the disk is tried again; it doubles up to maxRetryDisk.
const retryDisk, maxRetryDisk = time.Minute, time.Hour

// waiting is a wait that doubles.
type waiting struct {
	until time.Time
	last  time.Duration
}

func (w *waiting) begin(now time.Time) {
	w.last = min(max(2*w.last, retryDisk), maxRetryDisk)
	w.until = now.Add(w.last)
}

func (w *waiting) isOver(now time.Time) bool { return !now.Before(w.until) }

func (s *Store) onDisk() bool { return s.disk != nil && s.at == shelf(s.disk) }

// kept is where what counts is; nil for nowhere. Until there is something in memory, it is still on the disk that was left.
func (s *Store) kept() shelf {
	switch {
	case s.memory != nil && s.memory.has():
		return s.memory
	case s.disk != nil:
		return s.disk
	}
	return nil
}

func (s *Store) keptSize() int64 {
	if from := s.kept(); from != nil {
		return from.size()
	}
	return 0
}

// place is how people are told where it is kept.
func (s *Store) place() string {
	if s.onDisk() {
		return s.disk.path(fileName)
	}
	return "memory"
}

// canLeaveDisk says whether memory may do what the disk could not: what is too large for the one is so for the other.
func (s *Store) canLeaveDisk(err error) bool {
	return s.onDisk() && s.memory != nil && !errors.Is(err, ErrTooBig)
}

// leaveDisk goes on in memory.
func (s *Store) leaveDisk(why error) {
	s.at = s.memory
	s.retry = waiting{}
	s.retry.begin(s.config.Now())
	if why == nil {
		return
	}
	s.status.NoDisk = why.Error()
	s.config.Logger.Warn("the last good configuration is kept in memory alone: it outlives Envoy, but not this process",
		"error", why, "remedy", "make a directory writable, and make room there")
}

// returnToDisk writes what counts to the disk, if that can be done again.
func (s *Store) returnToDisk() {
	f, size, err := s.copied(s.disk)
	if err != nil {
		s.retry.begin(s.config.Now())
		s.status.NoDisk = err.Error()
		s.config.Logger.Debug("the last good configuration stays in memory", "error", err, "again", s.retry.until)
		return
	}
	s.memory.close()
	s.at, s.status.NoDisk = s.disk, ""
	s.use(f, size, size)
	s.config.Logger.Info("the last good configuration is kept on disk again", "file", s.place())
}
