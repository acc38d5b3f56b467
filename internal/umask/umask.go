// Package umask changes the file mode creation mask of the process.
package umask

import "syscall"

// ClearOwnerBits clears the owner's bits of the umask of this process and its children. Otherwise the process could
// create directories that it cannot enter or remove. It does not change the bits for group and others. It must be
// called at the start of a command, because the umask applies to all threads.
func ClearOwnerBits() {
	mask := syscall.Umask(0o777) // reading the umask requires setting it
	syscall.Umask(mask &^ 0o700)
}
