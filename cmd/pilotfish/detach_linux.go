package main

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// detachedAttributes returns process attributes for a new session, so that closing the terminal does not stop the
// background process.
func detachedAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }

// silence redirects stdout and stderr to /dev/null. This closes the pipe to the foreground process, which then reads
// EOF.
func silence() {
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		return
	}
	defer null.Close()
	_ = unix.Dup3(int(null.Fd()), int(os.Stdout.Fd()), 0)
	_ = unix.Dup3(int(null.Fd()), int(os.Stderr.Fd()), 0)
}
