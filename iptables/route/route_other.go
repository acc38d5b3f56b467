//go:build !linux

package route

import (
	"errors"

	"github.com/pilotfish-mesh/pilotfish/iptables"
	"github.com/pilotfish-mesh/pilotfish/iptables/namespace"
)

// Routes are of Linux.
type Routes struct{}

var errLinux = errors.New("policy routing is of Linux")

// New gives routes that fail.
func New(Config) *Routes { return &Routes{} }

// In gives the same.
func (r *Routes) In(*namespace.Turn) *Routes { return r }

// Complete fails.
func (*Routes) Complete(*iptables.Installed) error { return errLinux }

// Add fails.
func (*Routes) Add(*iptables.Routing, iptables.Families) (Undo, error) { return nil, errLinux }

// Prune fails.
func (*Routes) Prune(*iptables.Routing, iptables.Families) (Undo, error) { return nil, errLinux }
