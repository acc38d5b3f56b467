package dns

import (
	"net"
	"net/netip"
)

// peer is who asked by UDP, and at which of our addresses: the answer has to come from there, or he drops it.
type peer struct {
	address netip.AddrPort
	own     netip.Addr // not valid when the socket has one address only, which answers then come from
}

// packets reads and writes at a socket.
type packets struct {
	conn *net.UDPConn
	room []byte // for what the kernel tells of a packet; nil when it is not asked
}

func newPackets(conn *net.UDPConn) *packets {
	p := &packets{conn: conn}
	if at, ok := conn.LocalAddr().(*net.UDPAddr); ok && at.IP.IsUnspecified() && askForDestination(conn) == nil {
		p.room = make([]byte, destinationBytes)
	}
	return p
}

func (p *packets) read(buffer []byte) (n int, from peer, err error) {
	if p.room == nil {
		n, from.address, err = p.conn.ReadFromUDPAddrPort(buffer)
		return n, from, err
	}
	n, told, _, address, err := p.conn.ReadMsgUDPAddrPort(buffer, p.room)
	if err != nil {
		return 0, peer{}, err
	}
	return n, peer{address, destinationOf(p.room[:told])}, nil
}

// write leaves out what is empty. That somebody cannot be reached is his own affair.
func (p *packets) write(out []byte, to peer) {
	switch {
	case len(out) == 0:
	case to.own.IsValid():
		_, _, _ = p.conn.WriteMsgUDPAddrPort(out, sourceOf(to.own), to.address)
	default:
		_, _ = p.conn.WriteToUDPAddrPort(out, to.address)
	}
}
