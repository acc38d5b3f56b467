//go:build !linux

package nft

import (
	"context"
	"errors"

	"github.com/pilotfish-mesh/pilotfish/iptables"
	"github.com/pilotfish-mesh/pilotfish/iptables/namespace"
)

// Backend is of Linux.
type Backend struct{}

var errLinux = errors.Join(ErrUnsupported, errors.New("redirection works on Linux only"))

// New fails.
func New(Config) (*Backend, error) { return nil, errLinux }

// In gives the same.
func (b *Backend) In(*namespace.Turn) *Backend { return b }

// Name is "nftables".
func (*Backend) Name() string { return Name }

// Apply fails.
func (*Backend) Apply(context.Context, *iptables.RuleSet) error { return errLinux }

// Read fails.
func (*Backend) Read(context.Context) (*iptables.Installed, error) { return nil, errLinux }

// Clean fails.
func (*Backend) Clean(context.Context) error { return errLinux }

// ChainsOfIPTables fails.
func (*Backend) ChainsOfIPTables(context.Context, ...string) ([]string, error) { return nil, errLinux }

// Foreign fails.
func (*Backend) Foreign(context.Context) ([]iptables.ForeignChain, error) { return nil, errLinux }
