package dns

import (
	"bytes"
	"encoding/binary"
	"errors"
	"time"

	"github.com/miekg/dns"
)

const (
	headerBytes = 12
	// staleTTL is the TTL that clients receive with a stale answer, in seconds (RFC 8767).
	staleTTL = 30
	// maxTTL limits how long a positive answer is cached, and maxNegative how long a negative one is.
	maxTTL      = time.Hour
	maxNegative = 5 * time.Minute
)

// answer is a resolver's answer as a packed message. For each client, append replaces the few bytes that differ between
// queries.
type answer struct {
	wire   []byte // the packed message without the OPT record
	ttls   []int  // offsets of the TTLs in wire
	rcode  int
	stored time.Time     // when the answer was received
	life   time.Duration // how long the answer may be cached, from its TTLs; 0: it is not cached
	server string        // address of the resolver
}

// age returns the age of the answer, by the monotonic or the wall clock, whichever is larger. Only the wall clock
// advances while the machine is suspended.
func (a *answer) age(now time.Time) time.Duration {
	return max(now.Sub(a.stored), now.Round(0).Sub(a.stored.Round(0)), 0)
}

func (a *answer) fresh(now time.Time) bool { return a.age(now) < a.life }

// newAnswer packs the parts of a resolver's response that a stub resolver reads: the answer section and, for negative
// answers, the SOA record. With dnssec it packs the whole authority section.
func newAnswer(m *dns.Msg, server string, dnssec bool, now time.Time) (*answer, error) {
	kept := &dns.Msg{MsgHdr: m.MsgHdr, Question: m.Question, Answer: m.Answer, Compress: true}
	kept.Authoritative, kept.RecursionAvailable, kept.Truncated = false, true, false
	for _, rr := range m.Ns {
		if _, soa := rr.(*dns.SOA); soa || dnssec {
			kept.Ns = append(kept.Ns, rr)
		}
	}
	wire, err := kept.Pack()
	if err != nil {
		return nil, err
	}
	ttls, err := findTTLs(wire)
	if err != nil {
		return nil, err
	}
	return &answer{wire: wire, ttls: ttls, rcode: m.Rcode, stored: now, life: lifetime(m), server: server}, nil
}

// lifetime returns how long an answer may be cached: the minimum of its TTLs or, for a negative answer, the limit in
// its SOA record (RFC 2308). It returns 0 for failures, and for negative answers without an SOA record.
func lifetime(m *dns.Msg) time.Duration {
	if m.Rcode != dns.RcodeSuccess && m.Rcode != dns.RcodeNameError {
		return 0
	}
	if isNegative(m) {
		for _, rr := range m.Ns {
			if soa, ok := rr.(*dns.SOA); ok {
				return min(time.Duration(min(soa.Minttl, soa.Hdr.Ttl))*time.Second, maxNegative)
			}
		}
		return 0
	}
	life := maxTTL
	for _, rr := range m.Answer {
		life = min(life, time.Duration(rr.Header().Ttl)*time.Second)
	}
	return life
}

// isNegative reports whether a response lacks records of the requested type. An alias (CNAME) without such records at
// its target is also negative.
func isNegative(m *dns.Msg) bool {
	if m.Rcode == dns.RcodeNameError {
		return true
	}
	qtype := m.Question[0].Qtype
	for _, rr := range m.Answer {
		if t := rr.Header().Rrtype; t == qtype || qtype == dns.TypeANY {
			return false
		}
	}
	return true
}

var errShort = errors.New("the DNS message is truncated or malformed")

// findTTLs returns the offsets of all TTLs in a packed message.
func findTTLs(wire []byte) ([]int, error) {
	if len(wire) < headerBytes {
		return nil, errShort
	}
	counts := [4]int{}
	for i := range counts {
		counts[i] = int(binary.BigEndian.Uint16(wire[4+2*i:]))
	}
	at := headerBytes
	for range counts[0] {
		if at = skipName(wire, at) + 4; at > len(wire) || at < headerBytes+4 {
			return nil, errShort
		}
	}
	var ttls []int
	for range counts[1] + counts[2] + counts[3] {
		at = skipName(wire, at)
		if at < 0 || at+10 > len(wire) {
			return nil, errShort
		}
		if binary.BigEndian.Uint16(wire[at:]) != dns.TypeOPT {
			ttls = append(ttls, at+4)
		}
		at += 10 + int(binary.BigEndian.Uint16(wire[at+8:]))
	}
	if at > len(wire) {
		return nil, errShort
	}
	return ttls, nil
}

// skipName returns the offset that follows the name at start, or a large negative number if the name is invalid.
func skipName(wire []byte, start int) int {
	at := start
	for at >= 0 && at < len(wire) {
		switch n := int(wire[at]); {
		case n == 0:
			return at + 1
		case n >= 0xC0:
			return at + 2
		case n >= 0x40:
			return -1 << 20
		default:
			at += 1 + n
		}
	}
	return -1 << 20
}

// write returns the message for a client. It has the ID, flags and spelling of the name from the client's query, and
// the remaining TTLs.
func (a *answer) write(q *query, now time.Time) []byte {
	return a.append(make([]byte, 0, len(a.wire)+optBytes), q, now)
}

// append is like write, but writes to an empty buffer that the caller provides.
func (a *answer) append(out []byte, q *query, now time.Time) []byte {
	out = append(out, a.wire...)
	binary.BigEndian.PutUint16(out, q.id)
	out[2] = out[2]&^1 | boolBit(q.recurse, 1)
	out[3] = out[3]&^0x10 | boolBit(q.key.nocheck, 0x10)
	if n := headerBytes + len(q.spelling); n <= len(out) && bytes.EqualFold(out[headerBytes:n], q.spelling) {
		copy(out[headerBytes:], q.spelling)
	}
	age := a.age(now)
	aged := uint32(min(age, maxTTL) / time.Second)
	stale := age >= a.life && a.life > 0
	for _, at := range a.ttls {
		ttl := binary.BigEndian.Uint32(out[at:])
		switch {
		case stale:
			ttl = staleTTL
		default:
			ttl = min(ttl, uint32(maxTTL/time.Second)) - min(aged, min(ttl, uint32(maxTTL/time.Second)))
		}
		binary.BigEndian.PutUint32(out[at:], ttl)
	}
	if q.edns {
		out = appendOPT(out, q.key.dnssec)
	}
	return fit(out, q)
}

func boolBit(b bool, bit byte) byte {
	if b {
		return bit
	}
	return 0
}

// appendOPT appends an OPT record (EDNS) without options. It contains the maximum size of a UDP query to this server.
func appendOPT(wire []byte, dnssec bool) []byte {
	binary.BigEndian.PutUint16(wire[10:], binary.BigEndian.Uint16(wire[10:])+1)
	return append(wire, 0, 0, byte(dns.TypeOPT), maxUDP>>8, maxUDP&0xff, 0, 0, boolBit(dnssec, 0x80), 0, 0, 0)
}

// fit truncates a message that exceeds the client's maximum size and sets the TC bit, so that the client repeats the
// query over TCP. It returns nil if the message cannot be unpacked or packed.
func fit(wire []byte, q *query) []byte {
	if len(wire) <= q.size {
		return wire
	}
	var m dns.Msg
	if m.Unpack(wire) != nil {
		return nil
	}
	m.Truncate(q.size)
	short, err := m.Pack()
	if err != nil {
		return nil
	}
	return short
}
