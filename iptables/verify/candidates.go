package verify

import (
	"context"
	"iter"
	"net/netip"
	"slices"

	"github.com/pilotfish-mesh/pilotfish/iptables"
)

// candidates are packets of every owner that rules speak of to every port and address that they speak of, and beside them.
// They can be millions, and are made as they are asked for.
func (s *sampler) candidates() iter.Seq[iptables.Packet] {
	return func(yield func(iptables.Packet) bool) {
		for some := range s.groups(s.named()) {
			for _, p := range some {
				if !yield(p) {
					return
				}
			}
		}
	}
}

// groups are those of one port or address each.
func (s *sampler) groups(n names) iter.Seq[[]iptables.Packet] {
	return func(yield func([]iptables.Packet) bool) {
		for _, f := range s.families() {
			if !s.toPorts(f, n, yield) || !s.toAddresses(f, n, yield) || !s.byInterfaces(f, n, yield) {
				return
			}
		}
	}
}

// toPorts is false once yield is.
func (s *sampler) toPorts(f iptables.Families, n names, yield func([]iptables.Packet) bool) bool {
	for _, port := range n.ports {
		some := []iptables.Packet{s.inbound(f, iptables.TCP, port)}
		for _, to := range []netip.Addr{s.outside(f), s.own[f], loopback(f)} {
			some = append(some, s.owned(n, to, port)...)
		}
		if !yield(some) {
			return false
		}
	}
	return true
}

func (s *sampler) toAddresses(f iptables.Families, n names, yield func([]iptables.Packet) bool) bool {
	for _, to := range n.addresses[f] {
		if !yield(append(s.owned(n, to, s.port), s.owned(n, to, 53)...)) {
			return false
		}
	}
	return true
}

func (s *sampler) byInterfaces(f iptables.Families, n names, yield func([]iptables.Packet) bool) bool {
	for _, name := range n.interfaces {
		for _, port := range n.ports {
			if !yield(s.byInterface(name, s.outside(f), port)) {
				return false
			}
		}
		for _, to := range n.addresses[f] {
			if !yield(s.behindInterface(name, to)) {
				return false
			}
		}
	}
	return true
}

// byInterface are packets to a port that leave and come in by an interface.
func (s *sampler) byInterface(name string, outside netip.Addr, port uint16) (all []iptables.Packet) {
	for _, protocol := range []iptables.Protocol{iptables.TCP, iptables.UDP} {
		out := s.outbound(protocol, outside, port)
		in := s.inbound(family(outside), protocol, port)
		behind := in
		behind.To = out.To // for somebody behind the pod
		all = append(all, out, in, behind)
	}
	return through(name, all)
}

// behindInterface are packets to an address that come in by an interface.
func (s *sampler) behindInterface(name string, to netip.Addr) []iptables.Packet {
	connection, question := s.inbound(family(to), iptables.TCP, s.port), s.inbound(family(to), iptables.UDP, 53)
	connection.To, question.To = netip.AddrPortFrom(to, s.port), netip.AddrPortFrom(to, 53)
	return through(name, []iptables.Packet{connection, question})
}

func through(name string, all []iptables.Packet) []iptables.Packet {
	for i := range all {
		all[i].Interface, all[i].From = name, netip.AddrPort{}
	}
	return all
}

// names are what rules speak of, each once.
type names struct {
	ports      []uint16
	uids, gids []uint32
	addresses  map[iptables.Families][]netip.Addr // to send to
	sources    map[iptables.Families][]netip.Addr // to send from
	interfaces []string                           // lo aside
}

func (s *sampler) named() names {
	n := names{ports: []uint16{s.port, 53}, addresses: map[iptables.Families][]netip.Addr{}, sources: map[iptables.Families][]netip.Addr{}}
	n.gids = once(n.gids, s.user) // somebody of no group
	for _, c := range s.rules.Chains {
		for _, r := range c.Rules {
			for _, name := range []string{r.Match.InInterface, r.Match.OutInterface} {
				if name != "" && name != "lo" {
					n.interfaces = once(n.interfaces, name)
				}
			}
			for _, p := range r.Match.DestinationPorts {
				n.ports = once(n.ports, p.First)
			}
			for _, uid := range r.Match.UIDs {
				n.uids = once(n.uids, uid)
			}
			for _, gid := range r.Match.GIDs {
				n.gids = once(n.gids, gid)
			}
			for _, p := range r.Match.Destination {
				f := family(p.Addr())
				n.addresses[f] = once(n.addresses[f], someOf(p))
			}
			for _, p := range r.Match.Source {
				if f := family(p.Addr()); s.holds(p) {
					n.sources[f] = once(n.sources[f], p.Addr())
				}
			}
		}
	}
	return n
}

func once[T comparable](list []T, v T) []T {
	if slices.Contains(list, v) {
		return list
	}
	return append(list, v)
}

// owned are packets to one place of an application and of each owner that rules speak of, each from every source.
func (s *sampler) owned(n names, to netip.Addr, port uint16) (all []iptables.Packet) {
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
			for _, source := range n.sources[family(to)] {
				p.From = netip.AddrPortFrom(source, 0)
				all = append(all, p)
			}
		}
	}
	return all
}

// mostWork is how many rules are gone through to find packets. What common options come to takes some thousands; lists of
// a thousand entries beside each other would take minutes.
const mostWork = 20_000_000

// telling finds for each rule a packet that can be sent and would end up elsewhere without it. Where there is none (another
// rule does the same, or its effect is not to be seen by where packets arrive), one that meets the rule will do. left tells
// how many rules no packet had met yet when that became more work than is done, or the context was over.
func (s *sampler) telling(ctx context.Context) (all []sample, left int) {
	type half struct { // a rule is in force for each family on its own
		rule *iptables.Rule
		of   iptables.Families
	}
	told, met := map[half]bool{}, map[half]bool{}
	seen := map[*iptables.Rule]bool{}
	var second []sample
	each, work := count(s.rules), 0
	for p := range s.candidates() {
		if work > mostWork || ctx.Err() != nil {
			left = each - len(seen)
			break
		}
		work += each
		if !s.sends(&p) {
			continue
		}
		e := iptables.Explain(s.rules, p)
		for _, step := range e.Steps {
			h := half{step.Rule, p.Family()}
			if step.Missed != "" {
				continue
			}
			seen[step.Rule] = true
			if told[h] || step.Table == iptables.Raw {
				continue
			}
			work += 2 * each
			if wanted(iptables.Explain(without(s.rules, step.Rule), p)) != wanted(e) {
				told[h] = true
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

func count(rules *iptables.RuleSet) (n int) {
	for _, c := range rules.Chains {
		n += len(c.Rules)
	}
	return n
}

// without is the rule set without one of its rules.
func without(rules *iptables.RuleSet, not *iptables.Rule) *iptables.RuleSet {
	damaged := *rules
	damaged.Chains = slices.Clone(rules.Chains)
	for i, c := range damaged.Chains {
		for j := range c.Rules {
			if &c.Rules[j] == not {
				damaged.Chains[i].Rules = slices.Delete(slices.Clone(c.Rules), j, j+1)
				return &damaged
			}
		}
	}
	return &damaged
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
