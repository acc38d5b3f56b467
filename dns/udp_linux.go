package dns

import (
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
)

// destinationBytes is the size of a control message with a packet's destination address and interface, of either
// family.
const destinationBytes = 128

// requestDestination makes the kernel report the destination address of each packet. A dual-stack socket reports IPv4
// as mapped addresses.
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

func destinationOf(told []byte) netip.Addr {
	messages, err := unix.ParseSocketControlMessage(told)
	if err != nil {
		return netip.Addr{}
	}
	for _, m := range messages {
		switch {
		case m.Header.Level == unix.IPPROTO_IPV6 && m.Header.Type == unix.IPV6_PKTINFO && len(m.Data) >= unix.SizeofInet6Pktinfo:
			return netip.AddrFrom16([16]byte(m.Data[:16]))
		case m.Header.Level == unix.IPPROTO_IP && m.Header.Type == unix.IP_PKTINFO && len(m.Data) >= unix.SizeofInet4Pktinfo:
			return netip.AddrFrom4([4]byte(m.Data[4:8])) // the field after the interface; the packet's own destination may be a broadcast address
		}
	}
	return netip.Addr{}
}

// sourceOf returns a control message that sets the source address. The kernel chooses the interface.
func sourceOf(own netip.Addr) []byte {
	if own.Is4() {
		return unix.PktInfo4(&unix.Inet4Pktinfo{Spec_dst: own.As4()})
	}
	return unix.PktInfo6(&unix.Inet6Pktinfo{Addr: own.As16()})
}
