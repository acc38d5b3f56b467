//go:build !linux

package sandbox

import (
	"errors"
	"net/netip"
	"os"

	"github.com/pilotfish-mesh/pilotfish/cni/agentapi"
)

var errLinux = errors.New("network namespaces of pods are supported only on Linux")

// Index is a snapshot of the processes of all pods on the node.
type Index struct{}

// ID identifies an existing network namespace.
type ID struct{ Device, Inode uint64 }

func (id ID) String() string { return "" }

// Sandbox is the open network namespace of one pod. The caller must call Close.
type Sandbox struct {
	ID
	NetNS *os.File
}

// UniqueName returns an error; it is implemented only on Linux.
func (s *Sandbox) UniqueName() (string, error) { return "", errLinux }

// Close closes the namespace.
func (s *Sandbox) Close() {}

// Addresses returns an error; it is implemented only on Linux.
func (s *Sandbox) Addresses() ([]netip.Addr, error) { return nil, errLinux }

// Scan returns an error; it is implemented only on Linux.
func Scan(string, string) (*Index, error) { return nil, errLinux }

// Find returns an error; it is implemented only on Linux.
func (x *Index) Find(*agentapi.Pod, []string, string) (*Sandbox, error) { return nil, errLinux }

// Open returns an error; it is implemented only on Linux.
func (x *Index) Open(string) (*Sandbox, error) { return nil, errLinux }
