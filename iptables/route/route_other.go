//go:build !linux

package route

import (
	"errors"

	"github.com/pilotfish-mesh/pilotfish/iptables"
	"github.com/pilotfish-mesh/pilotfish/iptables/namespace"
)

// Routes is not available on this system.
type Routes struct{}

var errLinux = errors.New("policy routing is supported on Linux only")

// New returns a Routes whose methods always fail.
func New(Config) *Routes { return &Routes{} }

// WithLock returns r.
func (r *Routes) WithLock(*namespace.Lock) *Routes { return r }

// SetRouting always fails on this system.
func (*Routes) SetRouting(*iptables.Installed) error { return errLinux }

// Add always fails on this system.
func (*Routes) Add(*iptables.Routing, iptables.Families) (Undo, error) { return nil, errLinux }

// Prune always fails on this system.
func (*Routes) Prune(*iptables.Routing, iptables.Families) (Undo, error) { return nil, errLinux }
