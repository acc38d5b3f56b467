package testenv

import (
	"bytes"
	"sync"
	"testing"
	"time"
)

// defaultTimeout is the timeout of Eventually. It is generous because only failing tests wait this long.
const defaultTimeout = 2 * time.Minute

// Eventually waits until check returns nil. At the timeout it fails the test with the last error of check.
func Eventually(t testing.TB, what string, check func() error) {
	t.Helper()
	deadline := time.Now().Add(defaultTimeout)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %s: %v", what, defaultTimeout, err)
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
