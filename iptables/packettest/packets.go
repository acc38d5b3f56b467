// Package packettest sends test packets through the network stack of a namespace and reports where they arrive. It
// measures the effect of redirection, and does not read the rules.
//
// A Harness simulates the network outside the namespace by a link, whose far end replies on behalf of every address.
// Test packets do not reach a real network. The harness diverts packets that arrive in the namespace to its own
// sockets, after redirection and before any process receives them. Envoy need not run, and a running Envoy does not
// receive test packets.
package packettest

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"github.com/pilotfish-mesh/pilotfish/iptables"
)

// Config configures a Harness or Sockets.
type Config struct {
	// NetNS is a file descriptor of the network namespace. 0 or less selects the calling thread's namespace.
	NetNS int
	// TransparentMark is the mark that the TPROXY rules set; zero if there are no such rules. TransparentPort is the
	// proxy's port for these packets. If the proxy does not run, the harness listens on that port, because the kernel
	// drops packets of TPROXY rules if no socket exists.
	TransparentMark iptables.Mark
	TransparentPort uint16
	// Timeout is the maximum time until a packet arrives; 0 means 1 second.
	Timeout time.Duration
	Log     *slog.Logger
}

// Packet is the first packet of a connection, or a datagram.
type Packet struct {
	// Inbound reports whether the packet arrives from outside. If not, a socket in the namespace sends it.
	Inbound  bool
	Protocol iptables.Protocol // TCP or UDP
	// Interface is an interface of the namespace through which the packet arrives or leaves; "" means the harness's
	// link.
	Interface string
	// Source and SourcePort are the address to which the socket is bound. If they are zero, the harness selects them.
	Source      netip.Addr
	SourcePort  uint16
	Destination netip.AddrPort
	// Mark is the socket's mark. If it is set, Source may be an address outside the namespace, as for the sockets of a
	// transparent proxy.
	Mark uint32
	// Answered makes the far end reply to a datagram. The packet then counts as arrived only when its sender receives
	// the reply.
	Answered bool
	// Answerer makes the harness reply to a datagram that arrives in the namespace, through a socket of this owner. If
	// it is nil, there is no reply. With a reply, the packet counts as arrived only when its sender receives the reply.
	Answerer *Owner
	// UID and GID are the owner of the sending socket.
	UID, GID uint32
}

// Owner is the user and group that own a socket.
type Owner struct{ UID, GID uint32 }

// Where is the kind of place at which a packet arrived.
type Where string

// The values of Where.
const (
	Nowhere Where = "nowhere" // it did not arrive before the timeout
	Here    Where = "here"    // at a socket of the namespace
	Outside Where = "outside" // it left the namespace
)

// Arrival is the result of sending one packet.
type Arrival struct {
	Where Where
	// At is the packet's destination on arrival, after NAT.
	At netip.AddrPort
	// From is the source address that the receiver saw.
	From netip.AddrPort
	// Transparent reports whether a TPROXY rule delivered the packet. The mark of the packet shows this. The receiving
	// socket is then the proxy's socket, which does not have the address At.
	Transparent bool
	// NotTracked reports whether conntrack failed to recognize the reply as a reply. A firewall might drop such a
	// reply.
	NotTracked bool
	// Unanswered reports whether the reply of the packet's Answerer did not arrive at the sender.
	Unanswered bool
	// Took is the time from the send until the harness observed the arrival.
	Took time.Duration
	// Err is the reason why the packet could not be sent, or the error that the network stack returned for it.
	Err error
}

// ErrNotPermitted is returned if the process lacks privileges. A Harness needs CAP_NET_ADMIN and CAP_NET_RAW in the
// namespace, and CAP_SETUID and CAP_SETGID to send as another user.
var ErrNotPermitted = errors.New("not permitted")

// ErrPortInUse is returned for packets that were not sent because another process might have received them.
var ErrPortInUse = errors.New("another process listens on a port where the packet may arrive")

// ErrNoRoute is returned for packets to a destination without a route.
var ErrNoRoute = errors.New("the namespace has no route to the destination")

// ErrInterfaceUnusable is returned for packets that cannot be sent through their interface.
var ErrInterfaceUnusable = errors.New("test packets cannot be sent through the interface")

// ErrNoAddress is returned for inbound packets that were dropped because their interface has no address of the family.
// The kernel redirects inbound packets to an address of the interface.
var ErrNoAddress = errors.New("the kernel redirects inbound packets to an address of their interface")

// ErrBroadcast is returned for packets to a broadcast address, to which no application connects.
var ErrBroadcast = errors.New("a broadcast address is not tested, because applications do not connect to it")

// ErrNoSuchFamily is returned for packets of an address family that the namespace does not have.
var ErrNoSuchFamily = errors.New("the namespace does not support this address family")

const defaultTimeout = time.Second

func (p Packet) String() string {
	direction := fmt.Sprintf("out, uid %d gid %d", p.UID, p.GID)
	if p.Inbound {
		direction = "in"
	}
	return fmt.Sprintf("%s/%s %s", p.Destination, p.Protocol, direction)
}

func (a Arrival) String() string {
	switch {
	case a.Where == Nowhere && a.Err != nil:
		return fmt.Sprintf("not delivered: %v", a.Err)
	case a.Where == Nowhere:
		return "not delivered"
	case a.Transparent:
		return fmt.Sprintf("the transparent proxy, with destination %s", a.At)
	case a.Where == Here && a.Unanswered:
		return a.At.String() + ", but the reply does not arrive"
	case a.Where == Here:
		return a.At.String()
	case a.NotTracked:
		return "outside, with destination " + a.At.String() + ", but conntrack does not recognize the reply"
	}
	return "outside, with destination " + a.At.String()
}
