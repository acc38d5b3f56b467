package testenv

import (
	"bytes"
	"sync"
	"testing"
	"time"
)

// patience is how long Eventually waits: long enough for the slowest machine, since only a broken promise takes it.
const patience = 2 * time.Minute

// Eventually waits until check returns nil, and fails the test with what check said last when it does not.
func Eventually(t testing.TB, what string, check func() error) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %s: %v", what, patience, err)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// Buffer collects output that several goroutines write.
type Buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Write appends.
func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

// String is what was written so far.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}
