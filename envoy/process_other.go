//go:build !linux

package envoy

import (
	"fmt"
	"os/exec"
	"runtime"
	"syscall"

	"github.com/pilotfish-mesh/pilotfish/internal/owner"
)

// The functions below exist only so that the package compiles. Start works on Linux only: other systems have no
// parent-death signal, so Envoy could outlive the agent.

func errNotLinux() error {
	return fmt.Errorf("pilotfish supports only Linux, and this machine runs %s", runtime.GOOS)
}

func setProcessGroup(*exec.Cmd) {}

func setDeathSignal(cmd *exec.Cmd) { cmd.Err = errNotLinux() }

func setCredential(*exec.Cmd, *owner.Owner) {}

func setNoNewPrivs() error { return errNotLinux() }

// HasPrivileges works on Linux only.
func HasPrivileges(string) bool { return false }

func lockThread() (release func()) { return func() {} }

func awaitZombie(int) (syscall.WaitStatus, bool) { return 0, false }

func describeThreads(int) string { return errNotLinux().Error() }

func isDying(int) bool { return false }

func closeListeners(int) error { return errNotLinux() }

func signalGroup(int, syscall.Signal) error { return errNotLinux() }

func killGroup(int) error { return errNotLinux() }
