package dns

import (
	"net"
	"net/netip"
)

// peer is a UDP client and the local address to which it sent its query. The response must be sent from that address,
// because clients drop responses from other addresses.
type peer struct {
	address netip.AddrPort
	own     netip.Addr // local address; invalid if the socket is bound to one address
}

// packets reads queries from a UDP socket and writes responses.
type packets struct {
	conn *net.UDPConn
	room []byte // buffer for a packet's control message; nil if the local address is not requested from the kernel
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
	n, control, _, address, err := p.conn.ReadMsgUDPAddrPort(buffer, p.room)
	if err != nil {
		return 0, peer{}, err
	}
	return n, peer{address, destinationOf(p.room[:control])}, nil
}

// write sends a response from the address to which the client sent its query. It ignores an empty response. It also
// ignores errors, because they affect only this client.
func (p *packets) write(out []byte, to peer) {
	switch {
	case len(out) == 0:
	case to.own.IsValid():
		_, _, _ = p.conn.WriteMsgUDPAddrPort(out, sourceOf(to.own), to.address)
	default:
		_, _ = p.conn.WriteToUDPAddrPort(out, to.address)
	}
}
