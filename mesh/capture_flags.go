package mesh

import (
	"fmt"
	"os"

	"github.com/spf13/pflag"
)

// CaptureFlags hold --capture and --no-capture. Without either, root captures traffic where the kernel allows it, and
// other users do not.
type CaptureFlags struct{ On, Off bool }

// Register adds the flags to the flag set of a command.
func (c *CaptureFlags) Register(f *pflag.FlagSet) {
	f.BoolVar(&c.On, "capture", false, "give each workload a network namespace and capture its traffic, or fail (the default for root, where it is possible; others need newgidmap and a line in /etc/subgid)")
	f.BoolVar(&c.Off, "no-capture", false, "use loopback addresses, and configure applications to use their proxies (the default for other users)")
}

// Reexec runs this program again in a user namespace if an ordinary user requests capture. It returns ReexecError after
// that process ended, and nil if the command should continue here. A command calls it first.
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

// Network returns the network that the flags select. note is not empty when root's default, capture, is not possible.
func (c CaptureFlags) Network() (n Network, note string, err error) {
	switch {
	case c.On && c.Off:
		return nil, "", fmt.Errorf("--capture and --no-capture contradict each other: keep one")
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
	return Loopback{}, fmt.Sprintf("The traffic of workloads is not captured, as with --no-capture: %v", err), nil
}
