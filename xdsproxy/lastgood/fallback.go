package lastgood

import (
	"errors"
	"time"
)

// minDiskRetry is the delay until the disk is tried again after a failure. It doubles up to maxDiskRetry.
const minDiskRetry, maxDiskRetry = time.Minute, time.Hour

// diskBackoff is an exponential backoff without jitter.
type diskBackoff struct {
	next  time.Time
	delay time.Duration
}

func (w *diskBackoff) schedule(now time.Time) {
	w.delay = min(max(2*w.delay, minDiskRetry), maxDiskRetry)
	w.next = now.Add(w.delay)
}

func (w *diskBackoff) isDue(now time.Time) bool { return !now.Before(w.next) }

func (s *Store) isOnDisk() bool { return s.disk != nil && s.active == storage(s.disk) }

// currentStorage returns the storage with the current file, or nil if there is none. After a switch to memory it is the
// disk until memory has a file.
func (s *Store) currentStorage() storage {
	switch {
	case s.memory != nil && s.memory.hasFile():
		return s.memory
	case s.disk != nil:
		return s.disk
	}
	return nil
}

func (s *Store) currentSize() int64 {
	if from := s.currentStorage(); from != nil {
		return from.size()
	}
	return 0
}

// location returns where the file is stored, for messages.
func (s *Store) location() string {
	if s.isOnDisk() {
		return s.disk.path(fileName)
	}
	return "memory"
}

// canSwitchToMemory reports whether memory can be used after a disk error. Content that is too large for the disk is
// too large for memory.
func (s *Store) canSwitchToMemory(err error) bool {
	return s.isOnDisk() && s.memory != nil && !errors.Is(err, ErrTooBig)
}

// switchToMemory continues in memory.
func (s *Store) switchToMemory(why error) {
	s.active = s.memory
	s.retry = diskBackoff{}
	s.retry.schedule(s.config.Now())
	if why == nil {
		return
	}
	s.status.NoDisk = why.Error()
	s.config.Logger.Warn("the last good configuration is stored only in memory: it survives a restart of Envoy, but not of this process",
		"error", why, "remedy", "make the directory writable, or free disk space")
}

// switchToDisk copies the configuration to the disk and continues there. On failure it schedules the next attempt.
func (s *Store) switchToDisk() {
	f, size, err := s.copyTo(s.disk)
	if err != nil {
		s.retry.schedule(s.config.Now())
		s.status.NoDisk = err.Error()
		s.config.Logger.Debug("the last good configuration stays in memory", "error", err, "again", s.retry.next)
		return
	}
	s.memory.close()
	s.active, s.status.NoDisk = s.disk, ""
	s.setFile(f, size, size)
	s.config.Logger.Info("the last good configuration is stored on disk again", "file", s.location())
}
