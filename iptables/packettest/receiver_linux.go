package packettest

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pilotfish-mesh/pilotfish/iptables"
)

var (
	loopback4 = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	loopback6 = netip.IPv6Loopback()
)

// receiver receives the packets that ruleSet diverts to its socket, and determines their original destination.
type receiver struct {
	socketKey
	plain    bool // packets are not diverted to the socket; it receives only packets to its own address
	stream   net.Listener
	datagram *net.UDPConn
}

// newReceivers returns a receiver for each combination of address family, protocol and transparency. It must be called on
// a thread in the namespace.
func newReceivers(families []iptables.Families, transparent []bool) (all []*receiver, err error) {
	for _, f := range families {
		for _, p := range []byte{protocolTCP, protocolUDP} {
			for _, marked := range transparent {
				c := &receiver{socketKey: socketKey{family: f, protocol: p, transparent: marked}}
				if err := c.listen(netip.AddrPortFrom(loopback(f), 0)); err != nil {
					return all, permission("opening a socket for test packets", err)
				}
				all = append(all, c)
			}
		}
	}
	return all, nil
}

func loopback(f iptables.Families) netip.Addr {
	if f == iptables.IPv6 {
		return loopback6
	}
	return loopback4
}

func unspecified(f iptables.Families) netip.Addr {
	if f == iptables.IPv6 {
		return netip.IPv6Unspecified()
	}
	return netip.IPv4Unspecified()
}

// network returns the network name for package net, such as "tcp4".
func network(protocol string, f iptables.Families) string {
	if f == iptables.IPv6 {
		return protocol + "6"
	}
	return protocol + "4"
}

func (c *receiver) listen(at netip.AddrPort) error {
	config := net.ListenConfig{Control: c.options}
	if c.protocol == protocolTCP {
		l, err := config.Listen(context.Background(), network("tcp", c.family), at.String())
		if err != nil {
			return err
		}
		c.stream, c.port = l, portOf(l.Addr())
		return nil
	}
	l, err := config.ListenPacket(context.Background(), network("udp", c.family), at.String())
	if err != nil {
		return err
	}
	c.datagram, c.port = l.(*net.UDPConn), portOf(l.LocalAddr())
	return nil
}

// listenForProxy listens on the transparent proxy's port, unless the proxy already does. The kernel drops packets of TPROXY
// rules if no socket exists. The listeners receive no packets, because ruleSet diverts the test packets to receivers. It
// must be called on a thread in the namespace.
func listenForProxy(families []iptables.Families, port uint16) (all []net.Listener, err error) {
	if port == 0 {
		return nil, nil
	}
	for _, f := range families {
		c := &receiver{socketKey: socketKey{family: f, protocol: protocolTCP}}
		err := c.listen(netip.AddrPortFrom(unspecified(f), port))
		if errors.Is(err, unix.EADDRINUSE) {
			continue
		}
		if err != nil {
			return all, permission("listening on the proxy's port", err)
		}
		all = append(all, c.stream)
	}
	return all, nil
}

func portOf(a net.Addr) uint16 {
	_, port, _ := net.SplitHostPort(a.String())
	n, _ := strconv.ParseUint(port, 10, 16)
	return uint16(n)
}

// options sets socket options, so that the socket receives packets for other addresses and their original destination.
func (c *receiver) options(_, _ string, raw syscall.RawConn) error {
	level, transparent, original := unix.SOL_IP, unix.IP_TRANSPARENT, unix.IP_RECVORIGDSTADDR
	if c.family == iptables.IPv6 {
		level, transparent, original = unix.SOL_IPV6, unix.IPV6_TRANSPARENT, unix.IPV6_RECVORIGDSTADDR
	}
	var err error
	if failed := raw.Control(func(fd uintptr) {
		if !c.plain {
			err = os.NewSyscallError("setsockopt", unix.SetsockoptInt(int(fd), level, transparent, 1))
		}
		if err == nil && c.protocol == protocolUDP {
			err = os.NewSyscallError("setsockopt", unix.SetsockoptInt(int(fd), level, original, 1))
		}
	}); failed != nil {
		return failed
	}
	return err
}

func (c *receiver) Close() error {
	if c.stream != nil {
		return c.stream.Close()
	}
	return c.datagram.Close()
}

// serve calls arrived for each received token. It returns when the receiver is closed.
func (c *receiver) serve(arrived func(token, Arrival), timeout time.Duration) {
	if c.stream != nil {
		c.accept(arrived, timeout)
		return
	}
	var buffer [64]byte
	oob := make([]byte, 256)
	for {
		n, more, _, from, err := c.datagram.ReadMsgUDPAddrPort(buffer[:], oob)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if at, ok := originalDestination(oob[:more]); err == nil && ok && n == len(token{}) {
			arrived(token(buffer[:n]), Arrival{Where: Here, At: at, From: unmap(from), Transparent: c.transparent})
		}
	}
}

// accept handles the connections one at a time. This is sufficient, because they are few and their tokens arrive
// immediately.
func (c *receiver) accept(arrived func(token, Arrival), timeout time.Duration) {
	for {
		conn, err := c.stream.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue
		}
		var t token
		_ = conn.SetDeadline(time.Now().Add(timeout))
		if n, err := conn.Read(t[:]); err == nil && n == len(t) {
			at, _ := netip.ParseAddrPort(conn.LocalAddr().String())
			from, _ := netip.ParseAddrPort(conn.RemoteAddr().String())
			arrived(t, Arrival{Where: Here, At: unmap(at), From: unmap(from), Transparent: c.transparent})
		}
		_ = conn.(*net.TCPConn).SetLinger(0) // make close send a reset, so that no TIME_WAIT entry remains
		_ = conn.Close()
	}
}

func unmap(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap().WithZone(""), a.Port())
}

// originalDestination returns a datagram's destination address. It is in the control messages in oob.
func originalDestination(oob []byte) (netip.AddrPort, bool) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return netip.AddrPort{}, false
	}
	for _, m := range messages {
		address, err := unix.ParseOrigDstAddr(&m)
		if err != nil {
			continue
		}
		switch a := address.(type) {
		case *unix.SockaddrInet4:
			return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port)), true
		case *unix.SockaddrInet6:
			return netip.AddrPortFrom(netip.AddrFrom16(a.Addr), uint16(a.Port)), true
		}
	}
	return netip.AddrPort{}, false
}
