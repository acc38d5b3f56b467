package dns

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"
)

// meshAnswer answers a query from the table. ok is false if the table does not contain the name, or does not contain
// records of the requested type.
func (x *index) meshAnswer(q *query, ttl time.Duration) (m *dns.Msg, ok bool) {
	if q.key.qtype == dns.TypePTR {
		return x.pointerAnswer(q, ttl)
	}
	if q.key.qtype == dns.TypeSRV {
		return x.serviceAnswer(q, ttl)
	}
	if !isAddress(q.key.qtype) {
		return nil, false
	}
	found, ok := x.find(q.key.name)
	if !ok {
		return nil, false
	}
	m = reply(q)
	owner := q.msg.Question[0].Name
	if found.alias != "" {
		m.Answer = append(m.Answer, &dns.CNAME{Hdr: header(owner, dns.TypeCNAME, ttl), Target: found.alias})
		owner = found.alias
	}
	m.Answer = append(m.Answer, addressRecords(owner, found.record, q.key.qtype, ttl)...)
	return m, true
}

func isAddress(qtype uint16) bool {
	return qtype == dns.TypeA || qtype == dns.TypeAAAA || qtype == dns.TypeANY
}

// reply returns an empty, successful response to a query.
func reply(q *query) *dns.Msg {
	m := new(dns.Msg)
	m.SetReply(q.msg)
	m.Authoritative, m.RecursionAvailable = true, true
	return m
}

func header(name string, rrtype uint16, ttl time.Duration) dns.RR_Header {
	return dns.RR_Header{Name: name, Rrtype: rrtype, Class: dns.ClassINET, Ttl: uint32(ttl / time.Second)}
}

// addressRecords returns the A and AAAA records of a host for a query type. They are in random order, which distributes
// the load of clients that use the first address.
func addressRecords(owner string, r *record, qtype uint16, ttl time.Duration) []dns.RR {
	var rrs []dns.RR
	if qtype != dns.TypeAAAA {
		for _, ip := range r.v4 {
			rrs = append(rrs, &dns.A{Hdr: header(owner, dns.TypeA, ttl), A: ip.AsSlice()})
		}
	}
	if qtype != dns.TypeA {
		for _, ip := range r.v6 {
			rrs = append(rrs, &dns.AAAA{Hdr: header(owner, dns.TypeAAAA, ttl), AAAA: ip.AsSlice()})
		}
	}
	rand.Shuffle(len(rrs), func(i, j int) { rrs[i], rrs[j] = rrs[j], rrs[i] })
	return rrs
}

// pointerAnswer answers PTR queries for addresses of hosts in the table.
func (x *index) pointerAnswer(q *query, ttl time.Duration) (*dns.Msg, bool) {
	hosts := x.pointers(q.key.name)
	if len(hosts) == 0 {
		return nil, false
	}
	m := reply(q)
	for _, host := range hosts {
		m.Answer = append(m.Answer, &dns.PTR{Hdr: header(q.msg.Question[0].Name, dns.TypePTR, ttl), Ptr: host})
	}
	return m, true
}

// serviceAnswer answers SRV queries for _port._protocol.host if the table contains the ports of the host.
func (x *index) serviceAnswer(q *query, ttl time.Duration) (*dns.Msg, bool) {
	labels := strings.SplitN(q.key.name, ".", 3)
	if len(labels) != 3 || !strings.HasPrefix(labels[0], "_") || !strings.HasPrefix(labels[1], "_") {
		return nil, false
	}
	found, ok := x.find(labels[2])
	if !ok || len(found.record.ports) == 0 {
		return nil, false
	}
	target := found.record.host
	if found.alias != "" {
		target = found.alias
	}
	if strings.HasPrefix(target, "*.") {
		target = labels[2]
	}
	m := reply(q)
	for _, port := range found.record.ports {
		if strings.EqualFold(labels[0][1:], port.Name) && strings.EqualFold(labels[1][1:], port.Protocol) {
			m.Answer = append(m.Answer, &dns.SRV{
				Hdr: header(q.msg.Question[0].Name, dns.TypeSRV, ttl), Weight: 1, Port: port.Number, Target: target,
			})
		}
	}
	if len(m.Answer) > 0 {
		m.Extra = addressRecords(target, found.record, dns.TypeANY, ttl)
	}
	return m, true
}

// texts returns addresses as strings.
func texts(ips ...[]netip.Addr) []string {
	all := []string{}
	for _, ip := range slices.Concat(ips...) {
		all = append(all, ip.String())
	}
	return all
}
