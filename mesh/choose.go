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
	f.BoolVar(&c.On, "capture", false, "give each workload a network namespace and capture its traffic, or fail (the default for root, where it is possible)")
	f.BoolVar(&c.Off, "no-capture", false, "use loopback addresses and tell applications of their proxies (the default for other users)")
}

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
