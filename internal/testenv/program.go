package testenv

import (
	"os"
	"syscall"
	"testing"
)

// Program writes an executable file. No other goroutine can start a program while the file is open. Otherwise the child
// would inherit the open file for a moment, and the kernel would refuse to run it ("text file busy").
func Program(t testing.TB, path string, text []byte) {
	t.Helper()
	syscall.ForkLock.RLock()
	err := os.WriteFile(path, text, 0o755)
	syscall.ForkLock.RUnlock()
	if err != nil {
		t.Fatal(err)
	}
}
