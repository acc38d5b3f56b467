package verify

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/pilotfish-mesh/pilotfish/iptables"
)

// place is where samples are sent: the addresses that there are.
type place struct {
	link      string // by which packets come in, and by which those to the outside leave
	own       map[iptables.Families]netip.Addr
	near, far map[iptables.Families]netip.Addr
}

func (p *place) families() (all []iptables.Families) {
	for _, f := range []iptables.Families{iptables.IPv4, iptables.IPv6} {
		if p.own[f].IsValid() {
			all = append(all, f)
		}
	}
	return all
}

// sample is a packet to send, and the rule that it was made for: "" if it was made for none.
type sample struct {
	iptables.Packet
	rule string
}

// sampler makes packets that show what rules do. What a sample is not about is chosen so that no rule names it.
type sampler struct {
	place
	rules *iptables.RuleSet
	port  uint16
	user  uint32
	group uint32
}

// maxSamples bounds the packets of one run.
const maxSamples = 300

// samples are packets of each kind, and those that meet each rule. left tells how many rules there was no room for.
func samples(rules *iptables.RuleSet, at place) (all []sample, left int) {
	s := &sampler{place: at, rules: rules}
	s.port, s.user, s.group = s.unnamed()
	seen := map[string]bool{}
	add := func(one sample) {
		if key := one.String(); !seen[key] {
			seen[key] = true
			all = append(all, one)
		}
	}
	for _, one := range s.kinds() {
		add(one)
	}
	for _, h := range hooked(rules) {
		if len(all) >= maxSamples {
			left++
			continue
		}
		for _, one := range s.meeting(h) {
			add(one)
		}
	}
	return all, left
}

// unnamed are a port, a user and a group that no rule speaks of.
func (s *sampler) unnamed() (port uint16, user, group uint32) {
	port, user, group = 30123, 10123, 10123
	var ports []iptables.PortRange
	var ids []uint32
	for _, c := range s.rules.Chains {
		for _, r := range c.Rules {
			ports = append(append(ports, r.Match.SourcePorts...), r.Match.DestinationPorts...)
			ids = append(append(ids, r.Match.UIDs...), r.Match.GIDs...)
			ports = append(ports, iptables.PortRange{First: r.Verdict.Port, Last: r.Verdict.Port})
		}
	}
	for range 65535 {
		if !slices.ContainsFunc(ports, func(r iptables.PortRange) bool { return r.Contains(port) }) {
			break
		}
		port = port%65535 + 1
	}
	for slices.Contains(ids, user) {
		user, group = user+1, group+1
	}
	return port, user, group
}

// outside is an address of documentation that no rule names, or names together with all others.
func (s *sampler) outside(f iptables.Families) netip.Addr {
	candidates := []string{"203.0.113.77", "198.51.100.77", "192.0.2.77", "100.64.7.7", "10.77.7.7"}
	if f == iptables.IPv6 {
		candidates = []string{"2001:db8:77::7", "3fff:77::7", "fd77:7::7", "2600:77::7"}
	}
	for _, c := range candidates {
		if a := netip.MustParseAddr(c); !s.names(a) {
			return a
		}
	}
	return netip.MustParseAddr(candidates[0])
}

func (s *sampler) names(a netip.Addr) bool {
	for _, c := range s.rules.Chains {
		for _, r := range c.Rules {
			if slices.ContainsFunc(r.Match.Destination, func(p netip.Prefix) bool { return p.Bits() > 0 && p.Contains(a) }) {
				return true
			}
		}
	}
	return false
}

// kinds are packets that no rule has to speak of.
func (s *sampler) kinds() (all []sample) {
	for _, f := range s.families() {
		loopback := netip.MustParseAddr("127.0.0.1")
		if f == iptables.IPv6 {
			loopback = netip.IPv6Loopback()
		}
		for _, protocol := range []iptables.Protocol{iptables.TCP, iptables.UDP} {
			for _, to := range []netip.Addr{s.outside(f), s.own[f], loopback} {
				p := s.outbound(f, protocol)
				s.send(&p, to)
				all = append(all, sample{Packet: p})
			}
			all = append(all, sample{Packet: s.inbound(f, protocol)})
			question := s.outbound(f, protocol)
			question.To = netip.AddrPortFrom(question.To.Addr(), 53)
			all = append(all, sample{Packet: question})
		}
	}
	return all
}

// outbound is a packet of an application to the outside.
func (s *sampler) outbound(f iptables.Families, protocol iptables.Protocol) iptables.Packet {
	return iptables.Packet{
		Direction: iptables.Outbound, Protocol: protocol, Interface: s.link, UID: &s.user, GID: &s.group,
		From: netip.AddrPortFrom(s.near[f], 0), To: netip.AddrPortFrom(s.outside(f), s.port),
	}
}

func (s *sampler) inbound(f iptables.Families, protocol iptables.Protocol) iptables.Packet {
	return iptables.Packet{
		Direction: iptables.Inbound, Protocol: protocol, Interface: s.link,
		From: netip.AddrPortFrom(s.far[f], 0), To: netip.AddrPortFrom(s.own[f], s.port),
	}
}

// send gives the packet a destination, and what follows from it.
func (s *sampler) send(p *iptables.Packet, to netip.Addr) {
	p.To = netip.AddrPortFrom(to, p.To.Port())
	if iptables.IsLocal(to, []netip.Addr{s.own[family(to)], s.near[family(to)]}) {
		p.Interface, p.From = "lo", netip.AddrPortFrom(to, 0)
	}
}

func family(a netip.Addr) iptables.Families {
	if a.Is4() {
		return iptables.IPv4
	}
	return iptables.IPv6
}

// hook is a rule, the hook from which a packet gets there, and the rules that lead it.
type hook struct {
	hook iptables.Hook
	rule *iptables.Rule
	path []*iptables.Rule
}

// hooked are all rules with the ways to them. Zones of connection tracking cannot be seen by where packets arrive.
func hooked(rules *iptables.RuleSet) (all []hook) {
	for i := range rules.Chains {
		if c := &rules.Chains[i]; c.Hook != "" && c.Table != iptables.Raw {
			all = append(all, below(rules, c, c.Hook, nil)...)
		}
	}
	return all
}

func below(rules *iptables.RuleSet, c *iptables.Chain, at iptables.Hook, path []*iptables.Rule) (all []hook) {
	if len(path) > 8 {
		return nil
	}
	for i := range c.Rules {
		r := &c.Rules[i]
		all = append(all, hook{at, r, path})
		for j := range rules.Chains {
			if to := &rules.Chains[j]; r.Verdict.Action == iptables.Jump && to.Table == c.Table && to.Name == r.Verdict.Chain {
				all = append(all, below(rules, to, at, append(slices.Clone(path), r))...)
			}
		}
	}
	return all
}

// meeting are packets that the rule holds for, one of a family. There is none for rules that other ones shadow, and for
// interfaces that the Lab cannot send by.
func (s *sampler) meeting(h hook) (all []sample) {
	for _, f := range s.families() {
		p, ok := s.fit(h, f)
		if ok && s.meets(p, h.rule) {
			all = append(all, sample{Packet: p, rule: h.rule.ID})
		}
	}
	return all
}

func (s *sampler) meets(p iptables.Packet, r *iptables.Rule) bool {
	return slices.ContainsFunc(iptables.Explain(s.rules, p).Steps, func(step iptables.Step) bool {
		return step.Rule == r && step.Missed == ""
	})
}

func (s *sampler) fit(h hook, f iptables.Families) (iptables.Packet, bool) {
	p := s.outbound(f, iptables.TCP)
	if h.hook != iptables.Output {
		p = s.inbound(f, iptables.TCP)
	}
	for _, r := range append(slices.Clone(h.path), h.rule) {
		if !s.fitMatch(&p, &r.Match, f) {
			return p, false
		}
	}
	return p, true
}

// fitMatch changes the packet so that the match holds for it, if it can.
func (s *sampler) fitMatch(p *iptables.Packet, m *iptables.Match, f iptables.Families) bool {
	// A mark would make the packet look like one that transparent proxying marked.
	marked := m.Mark != nil && !m.NotMark || m.ConnMark != nil
	if m.Families != 0 && m.Families&f == 0 || m.Socket || len(m.SourcePorts) > 0 || marked {
		return false
	}
	if len(m.States) > 0 && !slices.Contains(m.States, iptables.New) {
		return false
	}
	if m.Protocol != iptables.AnyProtocol {
		p.Protocol = m.Protocol
	}
	if len(m.DestinationPorts) > 0 && !m.NotDestinationPorts {
		p.To = netip.AddrPortFrom(p.To.Addr(), m.DestinationPorts[0].First)
	}
	return s.fitOwner(p, m) && s.fitInterface(p, m, f) && s.fitAddresses(p, m, f)
}

func (s *sampler) fitOwner(p *iptables.Packet, m *iptables.Match) bool {
	if len(m.UIDs)+len(m.GIDs) > 0 && p.Direction == iptables.Inbound {
		return false
	}
	if len(m.UIDs) > 0 && !m.NotUIDs {
		p.UID = &m.UIDs[0]
	}
	if len(m.GIDs) > 0 && !m.NotGIDs {
		p.GID = &m.GIDs[0]
	}
	return true
}

func (s *sampler) fitInterface(p *iptables.Packet, m *iptables.Match, f iptables.Families) bool {
	switch {
	case m.InInterface == "lo": // what comes in there was sent from here
		if p.Direction == iptables.Inbound {
			*p = s.outbound(f, p.Protocol)
			s.send(p, s.own[f])
		}
		return true
	case m.InInterface != "" && m.InInterface != s.link:
		return false
	case m.OutInterface == "" || m.NotOut:
		return true
	case m.OutInterface == "lo":
		if p.Interface != "lo" {
			s.send(p, s.own[f])
		}
		return true
	}
	return m.OutInterface == s.link
}

func (s *sampler) fitAddresses(p *iptables.Packet, m *iptables.Match, f iptables.Families) bool {
	if len(m.Source) > 0 && !m.NotSource {
		if family(m.Source[0].Addr()) != f || p.Direction == iptables.Inbound {
			return false
		}
		if !s.holds(m.Source[0]) {
			return false
		}
		p.From = netip.AddrPortFrom(m.Source[0].Addr(), 0)
	}
	if len(m.Destination) == 0 {
		return true
	}
	if family(m.Destination[0].Addr()) != f {
		return false
	}
	if m.NotDestination {
		if slices.ContainsFunc(m.Destination, func(d netip.Prefix) bool { return d.Contains(p.To.Addr()) }) {
			s.send(p, s.own[f])
		}
		return true
	}
	if p.Direction == iptables.Inbound {
		return false // where it comes in to is not ours to choose
	}
	s.send(p, someOf(m.Destination[0]))
	return true
}

// holds tells whether the namespace should have the address as a loopback one.
func (s *sampler) holds(p netip.Prefix) bool {
	return p.Addr().Is4() && p.Addr().IsLoopback() ||
		s.rules.Routing != nil && slices.Contains(s.rules.Routing.LoopbackAddresses, p)
}

// someOf is an address of the prefix: not its first if there are others, since that may be the network's own.
func someOf(p netip.Prefix) netip.Addr {
	if p.IsSingleIP() || p.Bits() == 0 {
		return p.Addr()
	}
	return p.Masked().Addr().Next()
}

// subject says whose packet it is, for reports.
func (s *sample) subject() string {
	kind := fmt.Sprintf("%s %s", family(s.To.Addr()), upper(s.Protocol))
	switch {
	case s.Direction == iptables.Inbound:
		return fmt.Sprintf("inbound %s to port %d", kind, s.To.Port())
	case s.To.Addr().IsLoopback():
		return fmt.Sprintf("%s within the pod to %s from %s", kind, s.To, s.owner())
	case s.Interface == "lo":
		return fmt.Sprintf("%s to the pod's own address, port %d, from %s", kind, s.To.Port(), s.owner())
	}
	return fmt.Sprintf("outbound %s to %s from %s", kind, s.To, s.owner())
}

func (s *sample) owner() string {
	text := fmt.Sprintf("uid %d, gid %d", *s.UID, *s.GID)
	if s.From.Addr().IsValid() && s.Interface == "lo" && s.From.Addr() != s.To.Addr() {
		text += ", source " + s.From.Addr().String()
	}
	return text
}

func upper(p iptables.Protocol) string {
	if p == iptables.UDP {
		return "UDP"
	}
	return "TCP"
}
