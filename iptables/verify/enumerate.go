package verify

import (
	"context"
	"iter"
	"net/netip"
	"slices"

	"github.com/pilotfish-mesh/pilotfish/iptables"
)

// candidates yields packets from every owner that the rules name to every port and address that the rules name, and to
// some other ports and addresses. There can be millions of packets, so they are generated only when needed.
func (s *sampler) candidates() iter.Seq[iptables.Packet] {
	return func(yield func(iptables.Packet) bool) {
		for some := range s.packetGroups(s.collectNames()) {
			for _, p := range some {
				if !yield(p) {
					return
				}
			}
		}
	}
}

// packetGroups yields the packets in groups with the same port or address.
func (s *sampler) packetGroups(n ruleReferences) iter.Seq[[]iptables.Packet] {
	return func(yield func([]iptables.Packet) bool) {
		for _, f := range s.families() {
			if !s.eachPort(f, n, yield) || !s.eachAddress(f, n, yield) || !s.eachInterface(f, n, yield) {
				return
			}
		}
	}
}

// eachPort yields a group of packets for each port. It returns false if yield returned false.
func (s *sampler) eachPort(f iptables.Families, n ruleReferences, yield func([]iptables.Packet) bool) bool {
	for _, port := range n.ports {
		some := []iptables.Packet{s.inbound(f, iptables.TCP, port)}
		for _, to := range []netip.Addr{s.outsideAddress(f), s.own[f], loopback(f)} {
			some = append(some, s.packetsPerOwner(n, to, port)...)
		}
		if !yield(some) {
			return false
		}
	}
	return true
}

func (s *sampler) eachAddress(f iptables.Families, n ruleReferences, yield func([]iptables.Packet) bool) bool {
	for _, to := range n.addresses[f] {
		if !yield(append(s.packetsPerOwner(n, to, s.port), s.packetsPerOwner(n, to, 53)...)) {
			return false
		}
	}
	return true
}

func (s *sampler) eachInterface(f iptables.Families, n ruleReferences, yield func([]iptables.Packet) bool) bool {
	for _, name := range n.interfaces {
		for _, port := range n.ports {
			if !yield(s.packetsThroughInterface(name, s.outsideAddress(f), port)) {
				return false
			}
		}
		for _, to := range n.addresses[f] {
			if !yield(s.packetsBehindInterface(name, to)) {
				return false
			}
		}
	}
	return true
}

// packetsThroughInterface returns packets to port that leave or arrive through the interface called name.
func (s *sampler) packetsThroughInterface(name string, outside netip.Addr, port uint16) (all []iptables.Packet) {
	for _, protocol := range []iptables.Protocol{iptables.TCP, iptables.UDP} {
		out := s.outbound(protocol, outside, port)
		in := s.inbound(familyOf(outside), protocol, port)
		behind := in
		behind.To = out.To // the namespace forwards it to another host
		all = append(all, out, in, behind)
	}
	return throughInterface(name, all)
}

// packetsBehindInterface returns packets with the destination to that arrive through the interface called name.
func (s *sampler) packetsBehindInterface(name string, to netip.Addr) []iptables.Packet {
	connection, question := s.inbound(familyOf(to), iptables.TCP, s.port), s.inbound(familyOf(to), iptables.UDP, 53)
	connection.To, question.To = netip.AddrPortFrom(to, s.port), netip.AddrPortFrom(to, 53)
	return throughInterface(name, []iptables.Packet{connection, question})
}

func throughInterface(name string, all []iptables.Packet) []iptables.Packet {
	for i := range all {
		all[i].Interface, all[i].From = name, netip.AddrPort{}
	}
	return all
}

// ruleReferences contains the values that the rules match, without duplicates.
type ruleReferences struct {
	ports      []uint16
	uids, gids []uint32
	addresses  map[iptables.Families][]netip.Addr // destinations
	sources    map[iptables.Families][]netip.Addr // sources
	interfaces []string                           // without lo
}

func (s *sampler) collectNames() ruleReferences {
	n := ruleReferences{ports: []uint16{s.port, 53}, addresses: map[iptables.Families][]netip.Addr{}, sources: map[iptables.Families][]netip.Addr{}}
	n.gids = appendUnique(n.gids, s.user) // a group that no rule names
	for _, c := range s.rules.Chains {
		for _, r := range c.Rules {
			for _, name := range []string{r.Match.InInterface, r.Match.OutInterface} {
				if name != "" && name != "lo" {
					n.interfaces = appendUnique(n.interfaces, name)
				}
			}
			for _, p := range r.Match.DestinationPorts {
				n.ports = appendUnique(n.ports, p.First)
			}
			for _, uid := range r.Match.UIDs {
				n.uids = appendUnique(n.uids, uid)
			}
			for _, gid := range r.Match.GIDs {
				n.gids = appendUnique(n.gids, gid)
			}
			for _, p := range r.Match.Destination {
				f := familyOf(p.Addr())
				n.addresses[f] = appendUnique(n.addresses[f], addressIn(p))
			}
			for _, p := range r.Match.Source {
				if f := familyOf(p.Addr()); s.expectsAddress(p) {
					n.sources[f] = appendUnique(n.sources[f], p.Addr())
				}
			}
		}
	}
	return n
}

func appendUnique[T comparable](list []T, v T) []T {
	if slices.Contains(list, v) {
		return list
	}
	return append(list, v)
}

// packetsPerOwner returns packets to one address and port: from an application, and from each owner that the rules name.
// For a local destination, it adds a packet from each source address that the rules name.
func (s *sampler) packetsPerOwner(n ruleReferences, to netip.Addr, port uint16) (all []iptables.Packet) {
	for _, protocol := range []iptables.Protocol{iptables.TCP, iptables.UDP} {
		p := s.outbound(protocol, to, port)
		owners := []iptables.Packet{p}
		for i := range n.uids {
			p.UID = &n.uids[i]
			owners = append(owners, p)
		}
		p.UID = &s.user
		for i := range n.gids {
			p.GID = &n.gids[i]
			owners = append(owners, p)
		}
		for _, p := range owners {
			all = append(all, p)
			if p.Interface != "lo" {
				continue
			}
			for _, source := range n.sources[familyOf(to)] {
				p.From = netip.AddrPortFrom(source, 0)
				all = append(all, p)
			}
		}
	}
	return all
}

// maxWork limits the number of rule evaluations in findSamples. Common options need a few thousand. With two lists of a
// thousand entries, findSamples would need minutes without this limit.
const maxWork = 20_000_000

// For each rule, findSamples searches for a packet that can be sent, and that would arrive elsewhere without the rule.
// If no such packet exists, for example because another rule has the same effect, it returns a packet that matches the
// rule. left is the number of rules without a matching packet when maxWork was reached or the context ended.
func (s *sampler) findSamples(ctx context.Context) (all []sample, left int) {
	type half struct { // a rule for both address families needs a packet of each
		rule *iptables.Rule
		of   iptables.Families
	}
	proven, met := map[half]bool{}, map[half]bool{}
	seen := map[*iptables.Rule]bool{}
	var second []sample
	each, work := countRules(s.rules), 0
	for p := range s.candidates() {
		if work > maxWork || ctx.Err() != nil {
			left = each - len(seen)
			break
		}
		work += each
		if !s.canSend(&p) {
			continue
		}
		e := iptables.Explain(s.rules, p)
		for _, step := range e.Steps {
			h := half{step.Rule, p.Family()}
			if step.Missed != "" {
				continue
			}
			seen[step.Rule] = true
			if proven[h] || step.Table == iptables.Raw {
				continue
			}
			work += 2 * each
			if expectedOutcome(iptables.Explain(withoutRule(s.rules, step.Rule), p)) != expectedOutcome(e) {
				proven[h] = true
				all = append(all, sample{Packet: p, rule: step.Rule.ID})
			} else if !met[h] {
				met[h] = true
				second = append(second, sample{Packet: p, rule: step.Rule.ID})
			}
		}
	}
	byRule := func(s sample) bool {
		return slices.ContainsFunc(all, func(o sample) bool { return o.rule == s.rule && o.Family() == s.Family() })
	}
	return append(all, slices.DeleteFunc(second, byRule)...), left
}

func countRules(rules *iptables.RuleSet) (n int) {
	for _, c := range rules.Chains {
		n += len(c.Rules)
	}
	return n
}

// withoutRule returns a copy of rules without the rule omitted.
func withoutRule(rules *iptables.RuleSet, omitted *iptables.Rule) *iptables.RuleSet {
	damaged := *rules
	damaged.Chains = slices.Clone(rules.Chains)
	for i, c := range damaged.Chains {
		for j := range c.Rules {
			if &c.Rules[j] == omitted {
				damaged.Chains[i].Rules = slices.Delete(slices.Clone(c.Rules), j, j+1)
				return &damaged
			}
		}
	}
	return &damaged
}

// expectsAddress reports whether lo should have the address, because it is in 127.0.0.0/8 or the rule set adds it.
func (s *sampler) expectsAddress(p netip.Prefix) bool {
	return p.Addr().Is4() && p.Addr().IsLoopback() ||
		s.rules.Routing != nil && slices.Contains(s.rules.Routing.LoopbackAddresses, p)
}

// addressIn returns an address in the prefix. It does not return the first address, because that can be the network
// address.
func addressIn(p netip.Prefix) netip.Addr {
	if p.IsSingleIP() || p.Bits() == 0 {
		return p.Addr()
	}
	return p.Masked().Addr().Next()
}
