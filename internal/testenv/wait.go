package testenv

import (
	"bytes"
	"sync"
	"testing"
	"time"
)

// defaultTimeout is the timeout of Eventually. It is generous because only failing tests wait this long.
const defaultTimeout = 2 * time.Minute

// Eventually polls check until it returns nil. At the timeout it fails the test with the last error. what describes the
// expected event.
func Eventually(t testing.TB, what string, check func() error) {
	t.Helper()
	deadline := time.Now().Add(defaultTimeout)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: not fulfilled within %s: %v", what, defaultTimeout, err)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// Buffer collects output that several goroutines write.
type Buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Write appends p to the buffer.
func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

// String returns everything that was written so far.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}
