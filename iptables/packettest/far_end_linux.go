package packettest

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// farEnd is the end of the harness's link that is outside the namespace. It observes every frame that leaves the
// namespace through the link, and opens the inbound connections. It implements a minimal TCP, because a real TCP stack
// would need all addresses as its own.
type farEnd struct {
	file *os.File
	near net.HardwareAddr
}

// openFarEnd opens the packet socket. It must be called on a thread in the namespace of the far end.
func openFarEnd(w *vethPair) (*farEnd, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, permission("opening a packet socket (CAP_NET_RAW)", err)
	}
	const all = unix.ETH_P_ALL<<8&0xff00 | unix.ETH_P_ALL>>8 // in network byte order
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: w.far.Attrs().Index}); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("binding a packet socket to %s: %w", farLink, err)
	}
	return &farEnd{file: os.NewFile(uintptr(fd), farLink), near: w.near.HardwareAddr}, nil
}

// send writes a frame. It ignores errors, because a frame that was not sent is reported as not arrived.
func (w *farEnd) send(f frame) { _, _ = w.file.Write(f.encode(w.near)) }

// read calls f with each frame that leaves the namespace, until the far end is closed.
func (w *farEnd) read(f func(frame)) {
	buffer := make([]byte, 65536)
	for {
		n, err := w.file.Read(buffer)
		if errors.Is(err, unix.ENETDOWN) {
			continue // the kernel reports this error once, when the link is created
		}
		if err != nil {
			return
		}
		if n < ethernetLength || isOwnHardware([6]byte(buffer[6:])) {
			continue
		}
		if got, ok := decode(buffer[:n]); ok {
			f(got)
		}
	}
}

// resetConnection sends a TCP reset in response to the SYN of an outbound connection.
func (w *farEnd) resetConnection(f frame) {
	w.send(frame{sender: ownHardware, protocol: protocolTCP, from: f.to, to: f.from, flags: flagRST | flagACK, ack: f.sequence + 1})
}

// sendFirst sends the first packet of an inbound attempt: a SYN or a datagram.
func (w *farEnd) sendFirst(a *attempt, from netip.AddrPort, sender [6]byte) {
	f := frame{protocol: protocolUDP, from: from, to: a.packet.Destination, payload: a.token[:]}
	if a.isTCP() {
		f = frame{protocol: protocolTCP, from: from, to: a.packet.Destination, flags: flagSYN, sequence: a.sequence}
	}
	f.sender = sender
	w.send(f)
}

// completeHandshake completes a connection's handshake and sends the token.
func (w *farEnd) completeHandshake(a *attempt, f frame, sender [6]byte) {
	next := frame{sender: sender, protocol: protocolTCP, from: f.to, to: f.from, flags: flagACK, sequence: a.sequence + 1, ack: f.sequence + 1}
	w.send(next)
	next.flags, next.payload = flagACK|flagPSH, a.token[:]
	w.send(next)
}
