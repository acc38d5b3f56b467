package trace

import (
	"encoding/binary"
	"errors"
	"net/netip"

	"github.com/mdlayher/netlink"
)

// Attributes of the kernel's trace messages (linux/netfilter/nf_tables.h).
const (
	attributeTable     = 1
	attributeChain     = 2
	attributeHandle    = 3
	attributeKind      = 4
	attributeVerdict   = 5
	attributeID        = 6
	attributeNetwork   = 8
	attributeTransport = 9
	attributeIn        = 10
	attributeOut       = 12
	attributeMark      = 14
	attributeProtocol  = 15
	attributePolicy    = 16

	verdictCode  = 1
	verdictChain = 2
)

// Message kinds.
const (
	kindPolicy = 1 // the packet reached the end of a base chain
	kindReturn = 2 // the packet reached the end of a chain that is not a base chain
	kindRule   = 3 // the packet matched a rule
)

// Verdicts.
const (
	verdictDrop     = 0
	verdictAccept   = 1
	verdictContinue = -1
	verdictJump     = -3
	verdictGoto     = -4
	verdictReturn   = -5
)

// message is one trace message of the kernel. It is about one packet.
type message struct {
	id           uint32 // the packet's trace ID
	family       byte   // address family of the table
	table, chain string
	handle       uint64
	kind         uint32
	verdict      int32
	to           string // target chain of a jump or goto verdict
	policy       uint32
	mark         uint32
	in, out      uint32 // interface indexes
	headers      headers
}

// headers contains those parts of a packet's headers that the tracer uses. It is the zero value if the message has no
// headers.
type headers struct {
	protocol byte
	from, to netip.AddrPort
	known    bool
}

var errShort = errors.New("the trace message is too short")

// decode parses the data of a netlink message: struct nfgenmsg, followed by attributes.
func decode(data []byte) (message, error) {
	if len(data) < 4 {
		return message{}, errShort
	}
	m := message{family: data[0], verdict: verdictContinue}
	var network, transport []byte
	var protocol uint32
	d, err := attributes(data[4:])
	if err != nil {
		return m, err
	}
	for d.Next() {
		switch d.Type() {
		case attributeTable:
			m.table = d.String()
		case attributeChain:
			m.chain = d.String()
		case attributeHandle:
			m.handle = d.Uint64()
		case attributeKind:
			m.kind = d.Uint32()
		case attributeVerdict:
			d.Nested(m.decodeVerdict)
		case attributeID:
			m.id = d.Uint32()
		case attributeNetwork:
			network = d.Bytes()
		case attributeTransport:
			transport = d.Bytes()
		case attributeIn:
			m.in = d.Uint32()
		case attributeOut:
			m.out = d.Uint32()
		case attributeMark:
			m.mark = d.Uint32()
		case attributeProtocol:
			protocol = d.Uint32()
		case attributePolicy:
			m.policy = d.Uint32()
		}
	}
	m.headers = decodeHeaders(protocol, network, transport)
	return m, d.Err()
}

func attributes(data []byte) (*netlink.AttributeDecoder, error) {
	d, err := netlink.NewAttributeDecoder(data)
	if err == nil {
		d.ByteOrder = binary.BigEndian
	}
	return d, err
}

func (m *message) decodeVerdict(d *netlink.AttributeDecoder) error {
	d.ByteOrder = binary.BigEndian
	for d.Next() {
		switch d.Type() {
		case verdictCode:
			m.verdict = int32(d.Uint32())
		case verdictChain:
			m.to = d.String()
		}
	}
	return d.Err()
}

// decodeHeaders parses addresses and ports. protocol is the NFPROTO number of the network header, or 0 if it is
// unknown.
func decodeHeaders(protocol uint32, network, transport []byte) headers {
	var h headers
	var from, to netip.Addr
	switch {
	case len(network) >= 20 && network[0]>>4 == 4 && protocol != 10:
		h.protocol = network[9]
		from, to = netip.AddrFrom4([4]byte(network[12:])), netip.AddrFrom4([4]byte(network[16:]))
	case len(network) >= 40 && network[0]>>4 == 6 && protocol != 2:
		h.protocol = network[6]
		from, to = netip.AddrFrom16([16]byte(network[8:])), netip.AddrFrom16([16]byte(network[24:]))
	default:
		return h
	}
	var ports [2]uint16
	if len(transport) >= 4 {
		ports = [2]uint16{binary.BigEndian.Uint16(transport), binary.BigEndian.Uint16(transport[2:])}
	}
	h.from, h.to, h.known = netip.AddrPortFrom(from, ports[0]), netip.AddrPortFrom(to, ports[1]), true
	return h
}
