package dns

import (
	"encoding/binary"
	"strings"

	"github.com/miekg/dns"
)

const (
	// maxUDP is the maximum UDP message size with EDNS. minUDP is the size that every client supports.
	maxUDP = 4096
	minUDP = dns.MinMsgSize
)

// query is a received query.
type query struct {
	msg      *dns.Msg
	key      question
	id       uint16
	recurse  bool
	edns     bool
	tcp      bool
	size     int    // maximum size of the answer
	spelling []byte // the name as spelled in the query: answers repeat it byte by byte
}

// parseQuery parses a message. For a message that is not a valid query, refusal is the response, or nil for none: a
// response to a response would cause a loop.
func parseQuery(wire []byte, tcp bool) (q *query, refusal []byte) {
	if len(wire) < headerBytes || wire[2]&0x80 != 0 {
		return nil, nil
	}
	m := new(dns.Msg)
	if err := m.Unpack(wire); err != nil {
		return nil, refuse(wire, dns.RcodeFormatError)
	}
	switch {
	case m.Opcode != dns.OpcodeQuery:
		return nil, refuse(wire, dns.RcodeNotImplemented)
	case len(m.Question) != 1 || len(m.Answer) > 0:
		return nil, refuse(wire, dns.RcodeFormatError)
	}
	asked := m.Question[0]
	if asked.Qclass != dns.ClassINET || asked.Qtype == dns.TypeAXFR || asked.Qtype == dns.TypeIXFR {
		return nil, refuse(wire, dns.RcodeRefused)
	}
	q = &query{msg: m, id: m.Id, recurse: m.RecursionDesired, tcp: tcp, size: minUDP}
	q.key = question{name: strings.ToLower(asked.Name), qtype: asked.Qtype, class: asked.Qclass, nocheck: m.CheckingDisabled}
	if end := skipName(wire, headerBytes); end > headerBytes {
		q.spelling = wire[headerBytes:end]
	}
	if opt := m.IsEdns0(); opt != nil {
		q.edns, q.key.dnssec = true, opt.Do()
		q.size = min(max(int(opt.UDPSize()), minUDP), maxUDP)
		if opt.Version() != 0 {
			return nil, q.fail(dns.RcodeBadVers)
		}
	}
	if tcp {
		q.size = dns.MaxMsgSize
	}
	return q, nil
}

// refuse returns a response that consists of the header only, which is never larger than the query.
func refuse(wire []byte, rcode int) []byte {
	out := make([]byte, headerBytes)
	copy(out, wire[:4])
	out[2] = out[2]&^0x06 | 0x80
	out[3] = 0x80 | byte(rcode)
	binary.BigEndian.PutUint64(out[4:], 0)
	return out
}

// fail returns an error response.
func (q *query) fail(rcode int) []byte {
	m := new(dns.Msg)
	m.SetRcode(q.msg, rcode)
	m.RecursionAvailable = true
	return q.pack(m)
}

// truncated returns a response that makes the client use TCP.
func (q *query) truncated() []byte {
	m := new(dns.Msg)
	m.SetReply(q.msg)
	m.RecursionAvailable, m.Truncated = true, true
	return q.pack(m)
}

func (q *query) pack(m *dns.Msg) []byte {
	if q.edns {
		m.SetEdns0(maxUDP, q.key.dnssec)
		m.IsEdns0().SetExtendedRcode(uint16(m.Rcode))
	}
	m.Truncate(q.size)
	wire, err := m.Pack()
	if err != nil {
		return nil
	}
	return wire
}
