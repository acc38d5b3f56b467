package mesh

import (
	"fmt"
	"os"

	"github.com/spf13/pflag"
)

// CaptureFlags say whether workloads' traffic is captured; without one it is wherever that is possible for root.
type CaptureFlags struct{ On, Off bool }

// Register adds the flags to a command's.
func (c *CaptureFlags) Register(f *pflag.FlagSet) {
	f.BoolVar(&c.On, "capture", false, "give each workload a network namespace and capture its traffic, or fail (the default for root, where it is possible; others need newgidmap and a line in /etc/subgid)")
	f.BoolVar(&c.Off, "no-capture", false, "use loopback addresses and tell applications of their proxies (the default for other users)")
}

// Elsewhere runs this program again, in a user namespace, when an ordinary user asks for capture, and returns RanElsewhere
// after its end; nil when the command is to go on here. A command calls it before it does anything else.
func (c CaptureFlags) Elsewhere() error {
	if !c.On || c.Off || os.Geteuid() == 0 || mayMakeNamespaces() {
		return nil
	}
	status, err := runInUserNamespace()
	if err != nil {
		return fmt.Errorf("--capture without root: %w", err)
	}
	return RanElsewhere(status)
}

// RanElsewhere is the exit status of a process that ran in the place of this one, and has said what there is to say.
type RanElsewhere int

func (r RanElsewhere) Error() string { return fmt.Sprintf("ended with status %d", int(r)) }

// Network is the network that the flags ask for. A note says why it is not the usual one.
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
