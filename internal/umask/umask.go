// Package umask is about the file mode mask that a process starts with.
package umask

import "syscall"

// ClearOwnerBits clears the owner's bits of the umask of the process and its children. Otherwise the process could create
// directories that it cannot enter or remove. The bits for group and others stay. A command calls ClearOwnerBits first,
// because the umask belongs to the whole process.
func ClearOwnerBits() {
	mask := syscall.Umask(0o777) // it cannot be read without being set
	syscall.Umask(mask &^ 0o700)
}
