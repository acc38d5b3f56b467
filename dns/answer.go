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
	// staleTTL is what a stale answer says, after RFC 8767.
	staleTTL = 30
	// longestTTL and longestNegative bound how long an answer is believed.
	longestTTL      = time.Hour
	longestNegative = 5 * time.Minute
)

// answer is a resolver's answer as it goes to whoever asks, but for the few bytes that differ each time.
type answer struct {
	wire   []byte // without OPT record
	ttls   []int  // where TTLs are
	rcode  int
	stored time.Time
	life   time.Duration // for which it may be given again
	server string
}

// age is how old the answer is, by the clock that ran on while the machine was suspended, or by the one that nobody sets,
// whichever says more.
func (a *answer) age(now time.Time) time.Duration {
	return max(now.Sub(a.stored), now.Round(0).Sub(a.stored.Round(0)), 0)
}

func (a *answer) fresh(now time.Time) bool { return a.age(now) < a.life }

// newAnswer keeps of a message what a stub resolver reads: the answers and, for those that say no, the SOA record.
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

// lifetime is how long an answer may be given again: the least of its TTLs, or what the SOA record says of a negative one
// (RFC 2308). Failures, and negative answers without it, are not kept.
func lifetime(m *dns.Msg) time.Duration {
	if m.Rcode != dns.RcodeSuccess && m.Rcode != dns.RcodeNameError {
		return 0
	}
	if isNegative(m) {
		for _, rr := range m.Ns {
			if soa, ok := rr.(*dns.SOA); ok {
				return min(time.Duration(min(soa.Minttl, soa.Hdr.Ttl))*time.Second, longestNegative)
			}
		}
		return 0
	}
	life := longestTTL
	for _, rr := range m.Answer {
		life = min(life, time.Duration(rr.Header().Ttl)*time.Second)
	}
	return life
}

// isNegative also holds for an alias that leads to nothing.
func isNegative(m *dns.Msg) bool {
	if m.Rcode == dns.RcodeNameError {
		return true
	}
	asked := m.Question[0].Qtype
	for _, rr := range m.Answer {
		if t := rr.Header().Rrtype; t == asked || asked == dns.TypeANY {
			return false
		}
	}
	return true
}

var errShort = errors.New("the message ends too early")

// findTTLs gives the places of all TTLs in a packed message.
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

// skipName is where a name ends, or far below zero.
func skipName(wire []byte, at int) int {
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

// write makes the message for one who asks: with his id and flags, his spelling of the name, and what is left of the TTLs.
func (a *answer) write(q *query, now time.Time) []byte {
	return a.append(make([]byte, 0, len(a.wire)+optBytes), q, now)
}

// append is write into a buffer that is there already, and empty.
func (a *answer) append(out []byte, q *query, now time.Time) []byte {
	out = append(out, a.wire...)
	binary.BigEndian.PutUint16(out, q.id)
	out[2] = out[2]&^1 | boolBit(q.recurse, 1)
	out[3] = out[3]&^0x10 | boolBit(q.key.nocheck, 0x10)
	if n := headerBytes + len(q.spelling); n <= len(out) && bytes.EqualFold(out[headerBytes:n], q.spelling) {
		copy(out[headerBytes:], q.spelling)
	}
	age := a.age(now)
	aged := uint32(min(age, longestTTL) / time.Second)
	stale := age >= a.life && a.life > 0
	for _, at := range a.ttls {
		ttl := binary.BigEndian.Uint32(out[at:])
		switch {
		case stale:
			ttl = staleTTL
		default:
			ttl = min(ttl, uint32(longestTTL/time.Second)) - min(aged, min(ttl, uint32(longestTTL/time.Second)))
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

// appendOPT adds an empty OPT record, which says how large a question may be.
func appendOPT(wire []byte, dnssec bool) []byte {
	binary.BigEndian.PutUint16(wire[10:], binary.BigEndian.Uint16(wire[10:])+1)
	return append(wire, 0, 0, byte(dns.TypeOPT), largestUDP>>8, largestUDP&0xff, 0, 0, boolBit(dnssec, 0x80), 0, 0, 0)
}

// fit truncates what is larger than the one who asks can take; he then comes again by TCP.
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
