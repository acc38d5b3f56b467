package testenv

import (
	"os"
	"syscall"
	"testing"
)

// Program writes a file that is to be run. While it is open no other goroutine of the test may start a program: that would
// have it open, too, for a moment, and what somebody has open for writing cannot be run ("text file busy").
func Program(t testing.TB, path string, text []byte) {
	t.Helper()
	syscall.ForkLock.RLock()
	err := os.WriteFile(path, text, 0o755)
	syscall.ForkLock.RUnlock()
	if err != nil {
		t.Fatal(err)
	}
}
