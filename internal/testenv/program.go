package testenv

import (
	"os"
	"syscall"
	"testing"
)

// Program writes an executable file. While the file is open, no other goroutine of the test may start a program: the
// child would inherit the open file for a moment, and the kernel refuses to run a file that is open for writing ("text
// file busy").
func Program(t testing.TB, path string, text []byte) {
	t.Helper()
	syscall.ForkLock.RLock()
	err := os.WriteFile(path, text, 0o755)
	syscall.ForkLock.RUnlock()
	if err != nil {
		t.Fatal(err)
	}
}
