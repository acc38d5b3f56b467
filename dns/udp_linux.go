package dns

import (
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
)

// destinationBytes is a sufficient size for the control message that contains a packet's destination address, for IPv4
// and IPv6.
const destinationBytes = 128

// requestDestination makes the kernel report the destination address of each packet in a control message. On a
// dual-stack socket, IPv4 addresses are reported as IPv4-mapped IPv6 addresses.
func requestDestination(conn *net.UDPConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		family, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_DOMAIN)
		switch {
		case err != nil:
			failed = err
		case family == unix.AF_INET6:
			failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1)
		default:
			failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_PKTINFO, 1)
		}
	})
	if err != nil {
		return err
	}
	return failed
}

// destinationOf returns the destination address in the control messages of a packet.
func destinationOf(control []byte) netip.Addr {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return netip.Addr{}
	}
	for _, m := range messages {
		switch {
		case m.Header.Level == unix.IPPROTO_IPV6 && m.Header.Type == unix.IPV6_PKTINFO && len(m.Data) >= unix.SizeofInet6Pktinfo:
			return netip.AddrFrom16([16]byte(m.Data[:16]))
		case m.Header.Level == unix.IPPROTO_IP && m.Header.Type == unix.IP_PKTINFO && len(m.Data) >= unix.SizeofInet4Pktinfo:
			return netip.AddrFrom4([4]byte(m.Data[4:8])) // ipi_spec_dst: a local address even for a broadcast packet
		}
	}
	return netip.Addr{}
}

// sourceOf returns a control message that sets a packet's source address. The kernel chooses the interface.
func sourceOf(own netip.Addr) []byte {
	if own.Is4() {
		return unix.PktInfo4(&unix.Inet4Pktinfo{Spec_dst: own.As4()})
	}
	return unix.PktInfo6(&unix.Inet6Pktinfo{Addr: own.As16()})
}
