// Package packettest sends test packets through the network stack of a namespace and reports where they arrive. It
// observes the effect of redirection instead of inferring it from rules.
//
// A Harness simulates the outside world during the tests: a link whose far end replies for every address. The namespace
// therefore needs no other network, and no test packet reaches a real one. Packets that arrive in the namespace itself
// are diverted to sockets of the harness, after all redirection and before any process receives them. An Envoy that
// listens on a capture port is not disturbed, and none needs to run.
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
	// NetNS is a file descriptor of the namespace; 0 or less: that of the calling thread.
	NetNS int
	// TransparentMark is the mark that the namespace's rules set on packets for transparent proxying; zero if they set
	// none. TransparentPort is the proxy's port for them. If no proxy runs, the harness listens there, because the
	// kernel drops such a packet unless a socket exists.
	TransparentMark iptables.Mark
	TransparentPort uint16
	// Timeout is the maximum time until a packet arrives; 0 means 1 second.
	Timeout time.Duration
	Log     *slog.Logger
}

// Packet is the first packet of a connection, or a datagram.
type Packet struct {
	// Inbound packets arrive from outside. The others are sent by a socket in the namespace.
	Inbound  bool
	Protocol iptables.Protocol // TCP or UDP
	// Interface is an interface of the namespace through which the packet arrives or leaves; "" means the harness's
	// link.
	Interface string
	// Source and SourcePort are the address that the socket is bound to. If they are zero, the harness chooses.
	Source      netip.Addr
	SourcePort  uint16
	Destination netip.AddrPort
	// Mark is the socket's mark. With a mark, Source may be an address outside the namespace, as for a transparent
	// proxy.
	Mark uint32
	// Answered requests a reply to a datagram from its destination outside. The packet has arrived when the reply is
	// back.
	Answered bool
	// Answerer owns the socket in the namespace that replies to a datagram, like a process there; nil means no reply.
	// The packet has arrived when the reply is back.
	Answerer *Owner
	// UID and GID own the socket.
	UID, GID uint32
}

// Owner is the user and group that own a socket.
type Owner struct{ UID, GID uint32 }

// Where is the kind of place where a packet arrived.
type Where string

// The values of Where.
const (
	Nowhere Where = "nowhere" // not before the timeout
	Here    Where = "here"    // at a socket of the namespace
	Outside Where = "outside" // it left the namespace
)

// Arrival is the result of sending a packet.
type Arrival struct {
	Where Where
	// At is the destination with which the packet arrived, after all address translation.
	At netip.AddrPort
	// From is the source address that the receiver saw.
	From netip.AddrPort
	// Transparent packets carried the mark of transparent proxying. Their socket is not the one at At.
	Transparent bool
	// NotTracked: conntrack did not recognize the reply as one, so a firewall might drop it.
	NotTracked bool
	// Unanswered: the reply of the packet's Answerer did not arrive.
	Unanswered bool
	// Took is the time from sending to the proof of arrival.
	Took time.Duration
	// Err is the reason why the packet could not be sent, or the error that the network stack returned.
	Err error
}

// ErrNotPermitted is returned if the process lacks privileges. A Harness needs CAP_NET_ADMIN and CAP_NET_RAW in the
// namespace, and CAP_SETUID and CAP_SETGID to send as another user.
var ErrNotPermitted = errors.New("not permitted")

// ErrPortInUse is returned for packets that were not sent because another process might have received them.
var ErrPortInUse = errors.New("a port that the packet may arrive at is another process's")

// ErrNoRoute is returned for packets to a destination without a route.
var ErrNoRoute = errors.New("the namespace has no route there")

// ErrInterfaceUnusable is returned for packets that cannot be sent through their interface.
var ErrInterfaceUnusable = errors.New("packets cannot be sent as those of the interface")

// ErrNoAddress is returned for inbound packets that were dropped because their interface has no address of the family.
// The kernel redirects inbound packets to an address of the interface.
var ErrNoAddress = errors.New("the kernel redirects what comes in by an interface to an address of it")

// ErrBroadcast is returned for packets to a broadcast address, to which no application connects.
var ErrBroadcast = errors.New("the address is that of all on a network, and nobody connects to it")

// ErrNoSuchFamily is returned for packets of an address family that the namespace does not have.
var ErrNoSuchFamily = errors.New("the namespace has no addresses of this family, and takes none")

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
		return fmt.Sprintf("nowhere: %v", a.Err)
	case a.Where == Nowhere:
		return "nowhere"
	case a.Transparent:
		return fmt.Sprintf("the transparent proxy, as %s", a.At)
	case a.Where == Here && a.Unanswered:
		return a.At.String() + ", and the answer does not come back"
	case a.Where == Here:
		return a.At.String()
	case a.NotTracked:
		return "outside, as " + a.At.String() + ", and connection tracking does not know the answer for one"
	}
	return "outside, as " + a.At.String()
}
