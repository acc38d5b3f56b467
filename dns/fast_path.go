package dns

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/miekg/dns"
)

// fastQuery is a query in the most common form: one name of plain ASCII characters, and an optional OPT record. The
// server answers such queries from the table or the cache without a dns.Msg, because unpacking and packing dns.Msg
// would use most of the CPU time. All other queries are unpacked.
type fastQuery struct {
	query
	wire   []byte // as received
	end    int    // offset of the question's end
	length int    // length of the name
	name   [256]byte
}

// lowered returns the query's name, fully qualified and in lower case.
func (p *fastQuery) lowered() []byte { return p.name[:p.length] }

const (
	flagResponse, flagAuthoritative, flagTruncated, flagRecurse = 0x80, 0x04, 0x02, 0x01 // in the third byte of a message
	flagAvailable, flagNoCheck                                  = 0x80, 0x10             // in the fourth byte of a message
	optBytes, recordHead                                        = 11, 12                 // sizes of an empty OPT record and of a record's header
)

// parse parses a message. It returns false for a message that must be unpacked.
func (p *fastQuery) parse(wire []byte) bool {
	if len(wire) < headerBytes || wire[2]&^flagRecurse != 0 || binary.BigEndian.Uint32(wire[4:]) != 1<<16 || binary.BigEndian.Uint16(wire[8:]) != 0 {
		return false
	}
	at := p.parseName(wire)
	if at == 0 || at+4 > len(wire) || binary.BigEndian.Uint16(wire[at+2:]) != dns.ClassINET {
		return false
	}
	p.wire, p.end = wire, at+4
	p.id, p.recurse, p.size, p.spelling = binary.BigEndian.Uint16(wire), wire[2]&flagRecurse != 0, minUDP, wire[headerBytes:at]
	p.key.qtype, p.key.class, p.key.nocheck = binary.BigEndian.Uint16(wire[at:]), dns.ClassINET, wire[3]&flagNoCheck != 0
	if p.key.qtype == dns.TypeANY || p.key.qtype == dns.TypeAXFR || p.key.qtype == dns.TypeIXFR {
		return false
	}
	switch binary.BigEndian.Uint16(wire[10:]) {
	case 0:
		return p.end == len(wire)
	case 1:
		return p.parseOPT(wire[p.end:])
	}
	return false
}

// parseName copies the name to p.name in lower case. It returns the offset after the name, or 0 for a name that must be
// unpacked.
func (p *fastQuery) parseName(wire []byte) int {
	at, n := headerBytes, 0
	for at < len(wire) && wire[at] != 0 {
		length := int(wire[at])
		if length > 63 || at+1+length >= len(wire) || n+length+1 > 254 {
			return 0
		}
		for _, b := range wire[at+1 : at+1+length] {
			switch {
			case b >= 'A' && b <= 'Z':
				b += 'a' - 'A'
			case b >= 'a' && b <= 'z', b >= '0' && b <= '9', b == '-', b == '_', b == '*':
			default:
				return 0
			}
			p.name[n] = b
			n++
		}
		p.name[n] = '.'
		n++
		at += 1 + length
	}
	if p.length = n; n == 0 || at >= len(wire) {
		return 0
	}
	return at + 1
}

// parseOPT parses an OPT record, which must end the message. It returns false for a message that must be unpacked.
func (p *fastQuery) parseOPT(opt []byte) bool {
	if len(opt) < optBytes || opt[0] != 0 || binary.BigEndian.Uint16(opt[1:]) != dns.TypeOPT || opt[6] != 0 ||
		len(opt) != optBytes+int(binary.BigEndian.Uint16(opt[9:])) {
		return false
	}
	p.edns, p.key.dnssec = true, opt[7]&0x80 != 0
	p.size = min(max(int(binary.BigEndian.Uint16(opt[3:])), minUDP), maxUDP)
	return true
}

// serveFast answers a query from the table or the cache and appends the response to out. It returns nil if the query
// must be unpacked or forwarded.
func (s *Server) serveFast(wire, out []byte) []byte {
	x := s.index.Load()
	if x == nil {
		return nil
	}
	var p fastQuery
	if !p.parse(wire) {
		return nil
	}
	if p.key.qtype == dns.TypeA || p.key.qtype == dns.TypeAAAA {
		if found, ok := x.findBytes(p.lowered()); ok {
			out = found.append(&p, out, s.config.TTL)
			if out != nil {
				s.metrics.mesh.Inc()
			}
			return out
		}
	} else if p.key.qtype == dns.TypePTR || p.key.qtype == dns.TypeSRV {
		return nil
	}
	now := s.config.Now()
	a := s.forward.cache.getBytes(p.lowered(), p.key)
	if a == nil || !a.fresh(now) || a.rcode == dns.RcodeNameError {
		return nil
	}
	s.metrics.cached.Inc()
	return a.append(out, &p.query, now)
}

// findBytes is like find, with the name as bytes. It does not allocate a string for most names.
func (x *index) findBytes(name []byte) (match, bool) {
	if r := x.names[string(name)]; r != nil {
		return match{record: r, rule: ruleName}, true
	}
	if x.expand == "" && len(x.wildcard) == 0 {
		return match{}, false
	}
	return x.find(string(name))
}

// append appends the same response as meshAnswer to out: a CNAME record if the match has an alias, and the addresses in
// random order. It returns nil if the CNAME record does not fit.
func (m match) append(p *fastQuery, out []byte, ttl time.Duration) []byte {
	out = append(out, p.wire[:p.end]...)
	clear(out[4:headerBytes])
	out[5] = 1
	out[2] = flagResponse | flagAuthoritative | boolBit(p.recurse, flagRecurse)
	out[3] = flagAvailable | boolBit(p.key.nocheck, flagNoCheck)
	room := p.size
	if p.edns {
		room -= optBytes
	}
	owner, seconds, answers := headerBytes, uint32(ttl/time.Second), 0
	if m.alias != "" {
		if len(out)+recordHead+len(m.alias)+1 > room {
			return nil
		}
		owner = len(out) + recordHead
		out = appendRecord(out, headerBytes, dns.TypeCNAME, seconds, len(m.alias)+1)
		out = append(append(out, p.spelling[:len(m.alias)]...), 0)
		answers++
	}
	ips, size := m.record.v4, 4
	if p.key.qtype == dns.TypeAAAA {
		ips, size = m.record.v6, 16
	}
	start, fits, first := len(out), (room-len(out))/(recordHead+size), 0
	if fits = min(fits, len(ips)); fits < len(ips) { // the response contains a random subset of the addresses
		out[2] |= flagTruncated
		first = rand.IntN(len(ips))
	}
	for i := range fits {
		out = appendRecord(out, owner, p.key.qtype, seconds, size)
		out = appendAddress(out, ips[(first+i)%len(ips)])
	}
	shuffle(out[start:], recordHead+size)
	binary.BigEndian.PutUint16(out[6:], uint16(answers+fits))
	if p.edns {
		out = appendOPT(out, p.key.dnssec)
	}
	return out
}

// appendRecord appends a record's header. owner is the offset in the message of the record's name, and length the
// length of the data, which the caller appends.
func appendRecord(out []byte, owner int, rrtype uint16, ttl uint32, length int) []byte {
	out = binary.BigEndian.AppendUint16(out, 0xC000|uint16(owner))
	out = binary.BigEndian.AppendUint16(out, rrtype)
	out = binary.BigEndian.AppendUint16(out, dns.ClassINET)
	out = binary.BigEndian.AppendUint32(out, ttl)
	return binary.BigEndian.AppendUint16(out, uint16(length))
}

func appendAddress(out []byte, ip netip.Addr) []byte {
	if ip.Is4() {
		four := ip.As4()
		return append(out, four[:]...)
	}
	sixteen := ip.As16()
	return append(out, sixteen[:]...)
}

// shuffle puts records of equal size in random order.
func shuffle(records []byte, size int) {
	n := len(records) / size
	if n < 2 {
		return
	}
	var spare [recordHead + 16]byte
	rand.Shuffle(n, func(i, j int) {
		a, b := records[i*size:(i+1)*size], records[j*size:(j+1)*size]
		copy(spare[:size], a)
		copy(a, b)
		copy(b, spare[:size])
	})
}
