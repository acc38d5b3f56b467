package ca

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
)

// How long who changes the roots waits for another process that does, which takes milliseconds, and how often it looks.
const (
	lockWait = 5 * time.Second
	lockLook = 10 * time.Millisecond
)

// lock keeps all others that change the roots waiting, also other processes: two that took one step at the same time would
// take it twice. The lock is on the directory, and ends with the process.
func (s state) lock() (unlock func(), err error) {
	dir, err := os.Open(s.path())
	if err != nil {
		return nil, s.explain("rotating roots", err)
	}
	for deadline := time.Now().Add(lockWait); ; time.Sleep(lockLook) {
		err := syscall.Flock(int(dir.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { _ = dir.Close() }, nil
		}
		if busy := errors.Is(err, syscall.EWOULDBLOCK) || errors.Is(err, syscall.EINTR); !busy || time.Now().After(deadline) {
			_ = dir.Close()
			return nil, fmt.Errorf("rotating roots: %s is locked by another process that rotates them: %w; try again", s.path(), err)
		}
	}
}
