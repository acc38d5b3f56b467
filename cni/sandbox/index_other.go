//go:build !linux

package sandbox

import (
	"errors"
	"net/netip"
	"os"

	"github.com/pilotfish-mesh/pilotfish/cni/agentapi"
)

var errLinux = errors.New("pods run on Linux")

// Index is a snapshot of the processes of pods.
type Index struct{}

// ID identifies a network namespace among those that exist at the same time.
type ID struct{ Device, Inode uint64 }

func (id ID) String() string { return "" }

// Sandbox is the open network namespace of one pod. The caller closes it.
type Sandbox struct {
	ID
	NetNS *os.File
}

// UniqueName works on Linux only.
func (s *Sandbox) UniqueName() (string, error) { return "", errLinux }

// Close closes the namespace.
func (s *Sandbox) Close() {}

// Addresses works on Linux only.
func (s *Sandbox) Addresses() ([]netip.Addr, error) { return nil, errLinux }

// Scan works on Linux only.
func Scan(string, string) (*Index, error) { return nil, errLinux }

// Find works on Linux only.
func (x *Index) Find(*agentapi.Pod, []string, string) (*Sandbox, error) { return nil, errLinux }

// Open works on Linux only.
func (x *Index) Open(string) (*Sandbox, error) { return nil, errLinux }
