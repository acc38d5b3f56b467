package command

import (
	"fmt"

	"golang.org/x/sys/unix"
)

func checkSupported() error { return nil }

// protectMemory makes this process non-dumpable. The kernel then writes no core file of it, and other processes of its
// user cannot trace it or read its memory, environment and file descriptors. Child processes are not affected.
func protectMemory() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("making the agent non-dumpable: %w", err)
	}
	return nil
}
