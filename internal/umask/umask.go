// Package umask is about the file mode mask that a process starts with.
package umask

import "syscall"

// SpareOwner has the process's mask, and that of what it starts, take nothing away from the owner of what is made: directories
// that their maker may not enter help nobody, and would stay behind. What the mask says of group and others stays. A command
// calls it first of all, as the mask is the whole process's.
func SpareOwner() {
	mask := syscall.Umask(0o777) // it cannot be read without being set
	syscall.Umask(mask &^ 0o700)
}
