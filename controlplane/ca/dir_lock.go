package ca

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
)

// Timeout and poll interval for the lock. A rotation step of another process lasts milliseconds.
const (
	lockTimeout      = 5 * time.Second
	lockPollInterval = 10 * time.Millisecond
)

// lock serializes root rotations, even between processes, so that no step is executed twice. It takes a file lock on
// the authority's directory, which the kernel releases when the process ends.
func (s dirStore) lock() (unlock func(), err error) {
	dir, err := os.Open(s.path())
	if err != nil {
		return nil, s.explain("rotating roots", err)
	}
	for deadline := time.Now().Add(lockTimeout); ; time.Sleep(lockPollInterval) {
		err := syscall.Flock(int(dir.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { _ = dir.Close() }, nil
		}
		if busy := errors.Is(err, syscall.EWOULDBLOCK) || errors.Is(err, syscall.EINTR); !busy || time.Now().After(deadline) {
			_ = dir.Close()
			return nil, fmt.Errorf("rotating roots: another process is rotating roots in %s and holds the lock (%w): try again later", s.path(), err)
		}
	}
}
