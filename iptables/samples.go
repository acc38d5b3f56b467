package iptables

import (
	"net/netip"
	"slices"
)

// sampler creates sample packets for the comparison of rule sets: usual packets, and packets for each address, port,
// interface, owner and mark that a rule names. The most common packets are first.
type sampler struct {
	families Families
	uids     []uint32
	gids     []uint32
	owners   []identity // an application, followed by the owners that rules name
	cidrs    []netip.Prefix
	sources  []netip.Prefix
	ports    []PortRange
	sports   []PortRange
	out, in  []string
	marks    []uint32
	included []uint32 // captured groups: only processes in one of them are captured
	states   []State
	packets  []Packet
}

// identity is the user and group of a sending process.
type identity struct{ uid, gid uint32 }

// maxIdentities is the maximum number of owners that are combined with every port.
const maxIdentities = 6

// makeSamples returns packets that cover the conditions of all the rule sets.
func makeSamples(sets ...*RuleSet) []Packet {
	s := &sampler{ports: []PortRange{{443, 443}, {53, 53}}}
	for _, set := range sets {
		s.families |= set.Families
		for _, c := range set.Chains {
			for i := range c.Rules {
				s.addMatch(&c.Rules[i].Match)
			}
		}
	}
	s.families = BothFamilies // the sets may differ in a family even if no rule names it
	s.addIdentities()
	s.outbound()
	s.inbound()
	s.addUnusualPackets()
	return s.packets
}

func (s *sampler) addMatch(m *Match) {
	s.cidrs = merge(s.cidrs, m.Destination)
	s.sources = merge(s.sources, m.Source)
	s.ports = merge(s.ports, m.DestinationPorts)
	s.sports = merge(s.sports, m.SourcePorts)
	s.states = merge(s.states, m.States)
	s.uids = merge(s.uids, m.UIDs)
	if m.NotGIDs {
		s.included = merge(s.included, m.GIDs)
	} else {
		s.gids = merge(s.gids, m.GIDs)
	}
	for _, mark := range []*Mark{m.Mark, m.ConnMark} {
		if mark != nil {
			s.marks = merge(s.marks, []uint32{mark.Value})
		}
	}
	if m.InInterface != "" {
		s.in = merge(s.in, []string{m.InInterface})
	}
	if m.OutInterface != "" {
		s.out = merge(s.out, []string{m.OutInterface})
	}
}

func merge[T comparable](to, more []T) []T {
	for _, v := range more {
		if !slices.Contains(to, v) {
			to = append(to, v)
		}
	}
	return to
}

// addIdentities adds an application, each user and group that a rule names, and a process outside all captured groups.
// The proxy's users and groups are separate identities, so that a packet matches the owner rule of only one of them.
func (s *sampler) addIdentities() {
	stranger := uint32(1000)
	for slices.Contains(s.uids, stranger) || slices.Contains(s.gids, stranger) || slices.Contains(s.included, stranger) {
		stranger++
	}
	group := stranger
	if len(s.included) > 0 {
		group = s.included[0]
	}
	s.owners = []identity{{stranger, group}}
	for _, uid := range s.uids {
		s.owners = append(s.owners, identity{uid, group})
	}
	for _, gid := range append(slices.Clone(s.gids), s.included...) {
		s.owners = append(s.owners, identity{stranger, gid})
	}
	if group != stranger {
		s.owners = append(s.owners, identity{stranger, stranger})
	}
}

// target is a destination address with the outgoing interface.
type target struct {
	addr netip.Addr
	by   string
}

// The sample addresses of the namespace and of remote hosts. They are from the address blocks for documentation.
var (
	sampleOwn    = map[Families]netip.Addr{IPv4: netip.MustParseAddr("192.0.2.5"), IPv6: netip.MustParseAddr("2001:db8::5")}
	sampleRemote = map[Families]netip.Addr{IPv4: netip.MustParseAddr("198.51.100.7"), IPv6: netip.MustParseAddr("2001:db8:1::7")}
	sampleLocal  = map[Families]netip.Addr{IPv4: netip.MustParseAddr("127.0.0.1"), IPv6: netip.MustParseAddr("::1")}
)

const sampleInterface = "eth0"

func (s *sampler) eachFamily(f func(Families)) {
	for _, family := range []Families{IPv4, IPv6} {
		if s.families&family != 0 {
			f(family)
		}
	}
}

// usualTargets returns the destinations that are combined with every owner and every port.
func usualTargets(f Families) []target {
	return []target{{sampleRemote[f], sampleInterface}, {sampleOwn[f], loopback}, {sampleLocal[f], loopback}}
}

// listedTargets returns the first address of each prefix that a rule names, and the address after it.
func (s *sampler) listedTargets(f Families) (all []target) {
	if f == IPv4 {
		all = append(all, target{netip.MustParseAddr("127.0.0.2"), loopback})
	}
	for _, p := range s.cidrs {
		if familyOf(p.Addr()) != f {
			continue
		}
		by := sampleInterface
		if p.Addr().IsLoopback() {
			by = loopback
		}
		all = append(all, target{p.Addr(), by})
		if next := p.Addr().Next(); next.IsValid() {
			all = append(all, target{next, by})
		}
	}
	return all
}

func (s *sampler) outbound() {
	s.eachFamily(func(f Families) {
		for _, who := range s.owners {
			for _, to := range append(usualTargets(f), s.listedTargets(f)...) {
				s.addOutbound(f, who, to, TCP, 443)
				s.addOutbound(f, who, to, TCP, 53)
				s.addOutbound(f, who, to, UDP, 53)
			}
		}
		for _, who := range s.owners[:min(len(s.owners), maxIdentities)] {
			for _, to := range usualTargets(f) {
				s.eachPort(func(p uint16) {
					s.addOutbound(f, who, to, TCP, p)
					s.addOutbound(f, who, to, UDP, p)
				})
			}
			for _, by := range s.out {
				s.addOutbound(f, who, target{sampleRemote[f], by}, TCP, 443)
				s.addOutbound(f, who, target{sampleRemote[f], by}, UDP, 53)
			}
		}
	})
}

func (s *sampler) eachPort(f func(uint16)) {
	for _, r := range s.ports {
		f(r.First)
		if r.Last != r.First {
			f(r.Last)
		}
		if r.Last < 1<<16-1 {
			f(r.Last + 1)
		}
	}
}

const ephemeral = 40000

func (s *sampler) addOutbound(f Families, who identity, to target, protocol Protocol, port uint16) {
	from := sampleOwn[f]
	if to.addr.IsLoopback() {
		from = sampleLocal[f]
	}
	s.packets = append(s.packets, Packet{Direction: Outbound, Protocol: protocol, From: netip.AddrPortFrom(from, ephemeral),
		To: netip.AddrPortFrom(to.addr, port), Interface: to.by, UID: &who.uid, GID: &who.gid})
}

func (s *sampler) inbound() {
	s.eachFamily(func(f Families) {
		for _, by := range merge([]string{sampleInterface}, s.in) {
			if by == loopback {
				continue // the namespace itself sends packets on lo
			}
			s.eachPort(func(p uint16) { s.addInbound(f, by, TCP, sampleOwn[f], p) })
			s.addInbound(f, by, UDP, sampleOwn[f], 53)
			for _, to := range s.listedTargets(f) {
				s.addInbound(f, by, TCP, to.addr, 443)
				s.addInbound(f, by, UDP, to.addr, 53)
			}
			s.addInbound(f, by, TCP, sampleRemote[f], 443)
			s.addInbound(f, by, UDP, sampleRemote[f], 53)
		}
	})
}

func (s *sampler) addInbound(f Families, by string, protocol Protocol, to netip.Addr, port uint16) *Packet {
	s.packets = append(s.packets, Packet{Direction: Inbound, Protocol: protocol, From: netip.AddrPortFrom(sampleRemote[f], ephemeral),
		To: netip.AddrPortFrom(to, port), Interface: by, Forwarded: to != sampleOwn[f]})
	return &s.packets[len(s.packets)-1]
}

// addUnusualPackets adds variants of the packets so far: with source addresses that rules name, with marks, and with
// other connection states.
func (s *sampler) addUnusualPackets() {
	// Use only the first six ports, to limit the number of packets.
	some := s.ports[:min(len(s.ports), 6)]
	for _, p := range slices.Clone(s.packets) {
		a := p.To.Addr()
		if p.Protocol != TCP || a != sampleOwn[p.Family()] && a != sampleRemote[p.Family()] || !anyPort(some, false, p.To.Port()) {
			continue
		}
		for _, mark := range s.marks {
			marked, answer := p, p
			marked.Mark = mark
			answer.ConnMark, answer.State = mark, Established
			s.packets = append(s.packets, marked, answer)
		}
		for _, state := range merge([]State{Established}, s.states) {
			later, reply := p, p
			later.State, reply.State, reply.Reply = state, state, true
			s.packets = append(s.packets, later, reply)
		}
		for _, source := range s.sources {
			if familyOf(source.Addr()) == p.Family() {
				from := p
				from.From = netip.AddrPortFrom(source.Addr(), ephemeral)
				s.packets = append(s.packets, from)
			}
		}
	}
	s.addReplies()
}

// addReplies adds DNS responses from resolvers and from the agent.
func (s *sampler) addReplies() {
	s.eachFamily(func(f Families) {
		for _, r := range s.sports {
			for _, source := range append([]netip.Prefix{netip.PrefixFrom(sampleRemote[f], sampleRemote[f].BitLen())}, s.sources...) {
				if familyOf(source.Addr()) != f {
					continue
				}
				p := s.addInbound(f, sampleInterface, UDP, sampleOwn[f], ephemeral)
				p.From = netip.AddrPortFrom(source.Addr(), r.First)
			}
			for _, who := range s.owners[:min(len(s.owners), maxIdentities)] {
				s.addOutbound(f, who, target{sampleOwn[f], loopback}, UDP, ephemeral)
				p := &s.packets[len(s.packets)-1]
				p.From = netip.AddrPortFrom(p.From.Addr(), r.First)
			}
		}
	})
}
