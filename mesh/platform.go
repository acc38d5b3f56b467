package mesh

import (
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"syscall"
)

// UnsupportedError says that a mesh cannot run on this operating system.
type UnsupportedError struct{ OS string }

func (e *UnsupportedError) Error() string {
	return fmt.Sprintf("pilotfish runs meshes on Linux; this is %s: use a Linux machine, a virtual machine or a container", e.OS)
}

// checkPlatform refuses what the mesh's processes, addresses and clean-up cannot work on.
func checkPlatform() error {
	if runtime.GOOS != "linux" {
		return &UnsupportedError{OS: runtime.GOOS}
	}
	return nil
}

// EndSignals ask for an ordered end. A hang-up ends it too, unless the user wants it to go on (nohup).
func EndSignals() []os.Signal {
	signals := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) {
		signals = append(signals, syscall.SIGHUP)
	}
	return signals
}
