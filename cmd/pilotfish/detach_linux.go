package main

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// detachedAttributes starts the background process in its own session, so that it survives its terminal.
func detachedAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }

// silence redirects standard output and error to /dev/null, so that the reader of the pipe receives EOF.
func silence() {
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		return
	}
	defer null.Close()
	_ = unix.Dup3(int(null.Fd()), int(os.Stdout.Fd()), 0)
	_ = unix.Dup3(int(null.Fd()), int(os.Stderr.Fd()), 0)
}
