package main

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// detachedAttributes put the background process into a session of its own: it survives its terminal.
func detachedAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }

// silence points standard output and error to nowhere, so that whoever waits for the end of the pipe gets it.
func silence() {
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		return
	}
	defer null.Close()
	_ = unix.Dup3(int(null.Fd()), int(os.Stdout.Fd()), 0)
	_ = unix.Dup3(int(null.Fd()), int(os.Stderr.Fd()), 0)
}
