// Package packets sends test packets through the network stack of a namespace and tells where they arrive: what its
// redirection does is seen, not inferred.
//
// A Lab is a small outside world for the time of the tests: a link whose far end answers for every address, so that a
// namespace needs no network beyond to be tested, and nothing of a test reaches a network that there is. What arrives in
// the namespace itself is taken over by sockets of the Lab after all redirection was done and before any process would
// see it: an Envoy that listens at a capture port is not disturbed, and one that does not run yet is not missed.
package packets

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"github.com/pilotfish-mesh/pilotfish/iptables"
)

// Config is what a Lab works in.
type Config struct {
	// NetNS is a file descriptor of the namespace; 0 or less: that of the calling thread.
	NetNS int
	// TransparentMark is what the namespace's rules put on packets for transparent proxying; zero: they do not do so.
	// TransparentPort is the proxy's port for them, where the Lab stands in for a proxy that does not run: the kernel hands
	// a packet to a socket that there is, or drops it.
	TransparentMark iptables.Mark
	TransparentPort uint16
	// Timeout is how long a packet may take; it is 1 second if it is 0.
	Timeout time.Duration
	Log     *slog.Logger
}

// Packet is the first packet of a connection, or a datagram.
type Packet struct {
	// Inbound packets come from outside, the others from a socket of the namespace.
	Inbound  bool
	Protocol iptables.Protocol // TCP or UDP
	// Interface is one that the namespace has, by which the packet comes in or leaves; the Lab's own link if it is "".
	Interface string
	// Source and SourcePort are where the socket is bound; zero values leave it to the Lab.
	Source      netip.Addr
	SourcePort  uint16
	Destination netip.AddrPort
	// Mark is the socket's. One with a mark may have an address of somebody else's as Source, as a transparent proxy's has.
	Mark uint32
	// Answered datagrams that leave the namespace are answered from where they went, and arrive when the answer is back.
	Answered bool
	// Answerer owns the socket that answers a datagram where it arrives in the namespace, as a process there would; nil: nobody
	// answers. It arrives when the answer is back.
	Answerer *Owner
	// UID and GID own the socket.
	UID, GID uint32
}

// Owner is whose a socket is.
type Owner struct{ UID, GID uint32 }

// Where says where a packet got to.
type Where string

// The places.
const (
	Nowhere Where = "nowhere" // within the time
	Here    Where = "here"    // at a socket of the namespace
	Outside Where = "outside" // it left the namespace
)

// Arrival is what became of a packet.
type Arrival struct {
	Where Where
	// At is the address and port with which the packet arrived, after all translation.
	At netip.AddrPort
	// From is whom the receiver saw as sender.
	From netip.AddrPort
	// Transparent packets carried the mark of transparent proxying: the socket that they are for is not that of At.
	Transparent bool
	// Stranger says that what came back was no answer to connection tracking, and might be dropped by a firewall.
	Stranger bool
	// Unanswered says that the answer of the packet's Answerer did not come back.
	Unanswered bool
	// Took is the time from the first packet to the proof of arrival.
	Took time.Duration
	// Err says why the packet could not be sent, or what the network stack answered instead of delivering it.
	Err error
}

// ErrNotPermitted is returned where the process may not do what a Lab needs. It needs CAP_NET_ADMIN and CAP_NET_RAW in the
// namespace, and CAP_SETUID and CAP_SETGID to send as somebody else.
var ErrNotPermitted = errors.New("not permitted")

// ErrHeld is returned for packets that were not sent, as a process that runs might have got them.
var ErrHeld = errors.New("a port that the packet may arrive at is another process's")

// ErrNoRoute is returned for packets that no way leads out for.
var ErrNoRoute = errors.New("the namespace has no route there")

// ErrNoPassage is returned for packets that cannot be sent by the interface that they should pass.
var ErrNoPassage = errors.New("packets cannot be sent as those of the interface")

// ErrNoAddress is told of packets that came in by an interface without an address of their family, and were dropped: the
// kernel redirects what comes in to an address of the interface.
var ErrNoAddress = errors.New("the kernel redirects what comes in by an interface to an address of it")

// ErrBroadcast is returned for packets to an address of all on a network, which nobody connects to.
var ErrBroadcast = errors.New("the address is that of all on a network, and nobody connects to it")

// ErrNoSuchFamily is returned for packets of a family that the namespace has not.
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
	case a.Stranger:
		return "outside, as " + a.At.String() + ", and connection tracking does not know the answer for one"
	}
	return "outside, as " + a.At.String()
}
