//go:build !linux

package sandbox

import (
	"errors"
	"net/netip"
	"os"

	"github.com/pilotfish-mesh/pilotfish/cni/agentapi"
)

var errLinux = errors.New("pods run on Linux")

// Index is the processes of pods at one moment.
type Index struct{}

// ID tells a network namespace from all others that exist at the same time.
type ID struct{ Device, Inode uint64 }

func (id ID) String() string { return "" }

// Sandbox is the network of one pod, until it is closed.
type Sandbox struct {
	ID
	NetNS *os.File
}

// Lasting works on Linux only.
func (s *Sandbox) Lasting() (string, error) { return "", errLinux }

// Close lets it go.
func (s *Sandbox) Close() {}

// Addresses works on Linux only.
func (s *Sandbox) Addresses() ([]netip.Addr, error) { return nil, errLinux }

// Scan works on Linux only.
func Scan(string, string) (*Index, error) { return nil, errLinux }

// Find works on Linux only.
func (x *Index) Find(*agentapi.Pod, []string, string) (*Sandbox, error) { return nil, errLinux }

// Open works on Linux only.
func (x *Index) Open(string) (*Sandbox, error) { return nil, errLinux }
