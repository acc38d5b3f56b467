//go:build !linux

package nft

import (
	"context"
	"errors"

	"github.com/pilotfish-mesh/pilotfish/iptables"
	"github.com/pilotfish-mesh/pilotfish/iptables/namespace"
)

// Backend is not available on this system.
type Backend struct{}

var errLinux = errors.Join(ErrUnsupported, errors.New("redirection is supported on Linux only"))

// New always fails on this system.
func New(Config) (*Backend, error) { return nil, errLinux }

// WithLock returns b.
func (b *Backend) WithLock(*namespace.Lock) *Backend { return b }

// Name returns "nftables".
func (*Backend) Name() string { return Name }

// Apply always fails on this system.
func (*Backend) Apply(context.Context, *iptables.RuleSet) error { return errLinux }

// Read always fails on this system.
func (*Backend) Read(context.Context) (*iptables.Installed, error) { return nil, errLinux }

// Clean always fails on this system.
func (*Backend) Clean(context.Context) error { return errLinux }

// ChainsOfIPTables always fails on this system.
func (*Backend) ChainsOfIPTables(context.Context, ...string) ([]string, error) { return nil, errLinux }

// Foreign always fails on this system.
func (*Backend) Foreign(context.Context) ([]iptables.ForeignChain, error) { return nil, errLinux }
