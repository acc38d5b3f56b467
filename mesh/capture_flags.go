package mesh

import (
	"fmt"
	"os"

	"github.com/spf13/pflag"
)

// CaptureFlags contains --capture and --no-capture. If neither is set, root captures traffic where the kernel allows
// it, and other users do not.
type CaptureFlags struct{ On, Off bool }

// Register adds the flags to the flag set of a command.
func (c *CaptureFlags) Register(f *pflag.FlagSet) {
	f.BoolVar(&c.On, "capture", false, "run each workload in its own network namespace and redirect its traffic, or fail (the default for root where possible; other users need newgidmap and a line in /etc/subgid)")
	f.BoolVar(&c.Off, "no-capture", false, "use loopback addresses, and configure applications to use their proxies (the default for other users)")
}

// Reexec runs this program again in a user namespace if an ordinary user requests --capture. It returns a ReexecError
// after that process has ended. It returns nil if the command should continue in this process. A command must call it
// before anything else.
func (c CaptureFlags) Reexec() error {
	if !c.On || c.Off || os.Geteuid() == 0 || canCreateNamespaces() {
		return nil
	}
	status, err := runInUserNamespace()
	if err != nil {
		return fmt.Errorf("--capture without root: %w", err)
	}
	return ReexecError(status)
}

// ReexecError is the exit status of the process that ran instead of this one. That process has printed its own errors.
type ReexecError int

func (r ReexecError) Error() string { return fmt.Sprintf("ended with status %d", int(r)) }

// Network returns the network that the flags select. note is not empty if capture is the default, as for root, but not
// possible.
func (c CaptureFlags) Network() (n Network, note string, err error) {
	switch {
	case c.On && c.Off:
		return nil, "", fmt.Errorf("--capture and --no-capture exclude each other: remove one")
	case c.Off || !c.On && os.Geteuid() != 0:
		return Loopback{}, "", nil
	}
	err = CanCapture()
	switch {
	case err == nil:
		return Captured{}, "", nil
	case c.On:
		return nil, "", fmt.Errorf("--capture: %w", err)
	}
	return Loopback{}, fmt.Sprintf("Running without redirection of the workloads' traffic, as with --no-capture: %v", err), nil
}
