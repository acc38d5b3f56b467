package mesh

import (
	"fmt"
	"os"

	"github.com/spf13/pflag"
)

// CaptureFlags contains --capture and --no-capture. If neither is set, a mesh of root captures traffic if the kernel
// supports it, and a mesh of another user does not.
type CaptureFlags struct{ On, Off bool }

// Register adds the flags to the flag set of a command.
func (c *CaptureFlags) Register(f *pflag.FlagSet) {
	f.BoolVar(&c.On, "capture", false, "run each workload in its own network namespace, and redirect its traffic to its sidecar; fail if the kernel does not support that. This is the default for root. Other users need newgidmap and a line in /etc/subgid")
	f.BoolVar(&c.Off, "no-capture", false, "use loopback addresses without redirection; applications must be configured to use their sidecars. This is the default for users other than root")
}

// Reexec runs this program again in a user namespace if --capture is set and this process is neither root nor able to
// create network namespaces. It waits for that process and returns its exit status as a ReexecError. It returns nil if
// the command should continue in this process. A command must call it before any other step.
func (c CaptureFlags) Reexec() error {
	if !c.On || c.Off || os.Geteuid() == 0 || canCreateNamespaces() {
		return nil
	}
	status, err := runInUserNamespace()
	if err != nil {
		return fmt.Errorf("starting the mesh for --capture in a user namespace, because this user is not root: %w", err)
	}
	return ReexecError(status)
}

// ReexecError is the exit status of the process that Reexec started. That process has printed its own errors.
type ReexecError int

func (r ReexecError) Error() string {
	return fmt.Sprintf("the process in the user namespace ended with status %d", int(r))
}

// Network returns the network that the flags select. note is not empty if neither flag is set and root would capture
// traffic, but the kernel does not support it.
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
		return nil, "", fmt.Errorf("checking the requirements of --capture: %w", err)
	}
	return Loopback{}, fmt.Sprintf("Running without redirection of the workloads' traffic, as with --no-capture: %v", err), nil
}
