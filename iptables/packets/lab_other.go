//go:build !linux

package packets

import (
	"context"
	"errors"
	"net/netip"

	"github.com/pilotfish-mesh/pilotfish/iptables"
)

// Lab is the outside world of a namespace for the time of tests.
type Lab struct{}

// Open fails: there are no network namespaces.
func Open(context.Context, Config) (*Lab, error) {
	return nil, errors.New("packets can be tested on Linux only")
}

// Families are those that packets can be sent of.
func (*Lab) Families() []iptables.Families { return nil }

// Own are the addresses that others would call the namespace by.
func (*Lab) Own(iptables.Families) ([]netip.Addr, error) { return nil, nil }

// Ends are the two ends of the Lab's link.
func (*Lab) Ends(iptables.Families) (near, far netip.Addr) { return netip.Addr{}, netip.Addr{} }

// Link is the name of the link in the namespace that packets from outside come in by.
func (*Lab) Link() string { return "" }

// Send sends packets, and tells in their order what became of each.
func (*Lab) Send(context.Context, []Packet) ([]Arrival, error) { return nil, nil }

// Close takes everything away that the Lab made.
func (*Lab) Close() error { return nil }

// Sockets test packets with nothing but sockets.
type Sockets struct{ Lab }

// OpenSockets fails: there are no network namespaces.
func OpenSockets(Config, []uint16) (*Sockets, error) {
	return nil, errors.New("packets can be tested on Linux only")
}

// Sender is who packets can be sent as.
type Sender struct {
	UID, GID uint32
	Anybody  bool
}

// SenderIn tells who this process can send packets as in a network namespace.
func SenderIn(int) Sender { return Sender{} }
