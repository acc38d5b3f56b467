package mesh

import (
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"syscall"
)

// unsupportedError reports that a mesh cannot run on this operating system.
type unsupportedError struct{ OS string }

func (e *unsupportedError) Error() string {
	return fmt.Sprintf("a mesh cannot run on %s: use a machine, a virtual machine or a container with Linux", e.OS)
}

// checkPlatform returns an error on operating systems other than Linux.
func checkPlatform() error {
	if runtime.GOOS != "linux" {
		return &unsupportedError{OS: runtime.GOOS}
	}
	return nil
}

// EndSignals returns the signals that request an orderly end. It includes SIGHUP unless the process ignores it, as with
// nohup.
func EndSignals() []os.Signal {
	signals := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) {
		signals = append(signals, syscall.SIGHUP)
	}
	return signals
}
