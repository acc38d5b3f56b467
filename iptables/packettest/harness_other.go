//go:build !linux

package packettest

import (
	"context"
	"errors"
	"net/netip"

	"github.com/pilotfish-mesh/pilotfish/iptables"
)

// Harness is not available on this system.
type Harness struct{}

// Open returns an error, because network namespaces exist only on Linux.
func Open(context.Context, Config) (*Harness, error) {
	return nil, errors.New("test packets are supported on Linux only")
}

// Families returns nil.
func (*Harness) Families() []iptables.Families { return nil }

// Addresses returns nil.
func (*Harness) Addresses(iptables.Families) ([]netip.Addr, error) { return nil, nil }

// Ends returns invalid addresses.
func (*Harness) Ends(iptables.Families) (near, far netip.Addr) { return netip.Addr{}, netip.Addr{} }

// Link returns "".
func (*Harness) Link() string { return "" }

// Send returns nil.
func (*Harness) Send(context.Context, []Packet) ([]Arrival, error) { return nil, nil }

// Close does nothing.
func (*Harness) Close() error { return nil }

// Sockets is not available on this system.
type Sockets struct{ Harness }

// OpenSockets returns an error, because network namespaces exist only on Linux.
func OpenSockets(Config, []uint16) (*Sockets, error) {
	return nil, errors.New("test packets are supported on Linux only")
}

// Sender describes the users and groups as which the process can send packets.
type Sender struct {
	UID, GID uint32
	AnyUser  bool
}

// SenderIn returns a zero Sender.
func SenderIn(int) Sender { return Sender{} }
