package packets

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// wire is the far end of the link: everything that leaves the namespace is seen there, and connections into it start
// there. It is a TCP of as few words as will do, since a real one would need a network stack with every address.
type wire struct {
	file *os.File
	near net.HardwareAddr
}

// openWire is called on a thread in the namespace of the far end.
func openWire(w *world) (*wire, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, permission("a packet socket (CAP_NET_RAW)", err)
	}
	const all = unix.ETH_P_ALL<<8&0xff00 | unix.ETH_P_ALL>>8 // in the network's order
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: w.far.Attrs().Index}); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("a packet socket at %s: %w", farLink, err)
	}
	return &wire{file: os.NewFile(uintptr(fd), farLink), near: w.near.HardwareAddr}, nil
}

// send is best effort: what is lost is seen to be so.
func (w *wire) send(f frame) { _, _ = w.file.Write(f.encode(w.near)) }

// read calls f with each frame that leaves the namespace, until the wire is closed.
func (w *wire) read(f func(frame)) {
	buffer := make([]byte, 65536)
	for {
		n, err := w.file.Read(buffer)
		if errors.Is(err, unix.ENETDOWN) {
			continue // told once, when the link was made
		}
		if err != nil {
			return
		}
		if n < ethernetLength || own([6]byte(buffer[6:])) {
			continue
		}
		if got, ok := decode(buffer[:n]); ok {
			f(got)
		}
	}
}

// refuse ends a connection that left the namespace.
func (w *wire) refuse(f frame) {
	w.send(frame{sender: ownHardware, protocol: protocolTCP, from: f.to, to: f.from, flags: flagRST | flagACK, ack: f.sequence + 1})
}

// begin opens a connection into the namespace, or sends it a datagram.
func (w *wire) begin(a *attempt, from netip.AddrPort, sender [6]byte) {
	f := frame{protocol: protocolUDP, from: from, to: a.packet.Destination, payload: a.token[:]}
	if a.tcp() {
		f = frame{protocol: protocolTCP, from: from, to: a.packet.Destination, flags: flagSYN, sequence: a.sequence}
	}
	f.sender = sender
	w.send(f)
}

// proceed answers a connection's second packet with the third, and with the token.
func (w *wire) proceed(a *attempt, f frame, sender [6]byte) {
	next := frame{sender: sender, protocol: protocolTCP, from: f.to, to: f.from, flags: flagACK, sequence: a.sequence + 1, ack: f.sequence + 1}
	w.send(next)
	next.flags, next.payload = flagACK|flagPSH, a.token[:]
	w.send(next)
}
