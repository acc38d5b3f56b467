package dns

import (
	"net"
	"net/netip"
)

// peer is a UDP client and the local address to which it sent its query. A client drops answers from any other address.
type peer struct {
	address netip.AddrPort
	own     netip.Addr // invalid when the socket has only one address, from which answers are then sent
}

// packets reads from and writes to a UDP socket.
type packets struct {
	conn *net.UDPConn
	room []byte // for the control message of a packet; nil when the kernel sends none
}

func newPackets(conn *net.UDPConn) *packets {
	p := &packets{conn: conn}
	if at, ok := conn.LocalAddr().(*net.UDPAddr); ok && at.IP.IsUnspecified() && requestDestination(conn) == nil {
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

// write sends an answer; it ignores empty answers. Send errors are ignored, because they concern only that client.
func (p *packets) write(out []byte, to peer) {
	switch {
	case len(out) == 0:
	case to.own.IsValid():
		_, _, _ = p.conn.WriteMsgUDPAddrPort(out, sourceOf(to.own), to.address)
	default:
		_, _ = p.conn.WriteToUDPAddrPort(out, to.address)
	}
}
