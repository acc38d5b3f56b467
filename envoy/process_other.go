//go:build !linux

package envoy

import (
	"fmt"
	"os/exec"
	"runtime"
	"syscall"

	"github.com/pilotfish-mesh/pilotfish/internal/owner"
)

// The parts below only let the package compile: without a death signal an Envoy could outlive its owner.

func errNotLinux() error { return fmt.Errorf("pilotfish runs on Linux; this is %s", runtime.GOOS) }

func ownGroup(*exec.Cmd) {}

func dieWithOwner(cmd *exec.Cmd) { cmd.Err = errNotLinux() }

func runAs(*exec.Cmd, *owner.Owner) {}

func holdThread() (release func()) { return func() {} }

func awaitZombie(int) (syscall.WaitStatus, bool) { return 0, false }

func remains(int) string { return errNotLinux().Error() }

func dying(int) bool { return false }

func unlisten(int) error { return errNotLinux() }

func signalGroup(int, syscall.Signal) error { return errNotLinux() }

func killGroup(int) error { return errNotLinux() }
