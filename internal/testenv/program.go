package testenv

import (
	"os"
	"syscall"
	"testing"
)

// Program writes an executable file. While the file is open, no goroutine of this process can start a program.
// Otherwise the child process would inherit the open file for a moment, and the kernel would refuse to run the program
// ("text file busy").
func Program(t testing.TB, path string, text []byte) {
	t.Helper()
	syscall.ForkLock.RLock()
	err := os.WriteFile(path, text, 0o755)
	syscall.ForkLock.RUnlock()
	if err != nil {
		t.Fatal(err)
	}
}
