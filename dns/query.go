package dns

import (
	"encoding/binary"
	"strings"

	"github.com/miekg/dns"
)

const (
	// maxUDP is the maximum size of a UDP message with EDNS, in bytes. minUDP is the size that every client supports.
	maxUDP = 4096
	minUDP = dns.MinMsgSize
)

// query is a query that a client sent.
type query struct {
	msg      *dns.Msg
	key      question
	id       uint16
	recurse  bool   // the RD bit
	edns     bool   // the query has an OPT record
	tcp      bool   // the query was received over TCP
	size     int    // maximum size of the response in bytes
	spelling []byte // the name in wire format, with the client's letter case, which the response repeats
}

// parseQuery parses a message. If the message is not a supported query, q is nil and refusal is the error response.
// refusal is nil too if the message is a DNS response, because responding to it could cause a loop.
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
	first := m.Question[0]
	if first.Qclass != dns.ClassINET || first.Qtype == dns.TypeAXFR || first.Qtype == dns.TypeIXFR {
		return nil, refuse(wire, dns.RcodeRefused)
	}
	q = &query{msg: m, id: m.Id, recurse: m.RecursionDesired, tcp: tcp, size: minUDP}
	q.key = question{name: strings.ToLower(first.Name), qtype: first.Qtype, class: first.Qclass, nocheck: m.CheckingDisabled}
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

// refuse returns an error response that consists of the header only. It is never larger than the query, so it cannot be
// used for amplification attacks.
func refuse(wire []byte, rcode int) []byte {
	out := make([]byte, headerBytes)
	copy(out, wire[:4])
	out[2] = out[2]&^0x06 | 0x80
	out[3] = 0x80 | byte(rcode)
	binary.BigEndian.PutUint64(out[4:], 0)
	return out
}

// fail returns an error response that repeats the question.
func (q *query) fail(rcode int) []byte {
	m := new(dns.Msg)
	m.SetRcode(q.msg, rcode)
	m.RecursionAvailable = true
	return q.pack(m)
}

// truncated returns an empty response with the TC bit, so that the client repeats the query over TCP.
func (q *query) truncated() []byte {
	m := new(dns.Msg)
	m.SetReply(q.msg)
	m.RecursionAvailable, m.Truncated = true, true
	return q.pack(m)
}

// pack adds an OPT record if the query has one, and packs the response within the client's maximum size.
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
