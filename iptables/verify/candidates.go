package verify

import (
	"net/netip"
	"slices"

	"github.com/pilotfish-mesh/pilotfish/iptables"
)

// candidates are packets of every owner that rules speak of to every port and address that they speak of, and beside them.
func (s *sampler) candidates() (all []iptables.Packet) {
	named := s.named()
	for _, f := range s.families() {
		usual := []netip.Addr{s.outside(f), s.own[f], loopback(f)}
		for _, port := range named.ports {
			all = append(all, s.inbound(f, iptables.TCP, port))
			for _, to := range usual {
				all = append(all, s.owned(named, to, port)...)
			}
		}
		for _, to := range named.addresses[f] {
			all = append(all, s.owned(named, to, s.port)...)
			all = append(all, s.owned(named, to, 53)...)
		}
		all = append(all, s.byInterface(f, named)...)
	}
	return all
}

// byInterface are packets that leave and come in by the interfaces that rules speak of.
func (s *sampler) byInterface(f iptables.Families, n names) (all []iptables.Packet) {
	for _, name := range n.interfaces {
		add := func(p iptables.Packet) {
			p.Interface, p.From = name, netip.AddrPort{}
			all = append(all, p)
		}
		for _, port := range n.ports {
			for _, protocol := range []iptables.Protocol{iptables.TCP, iptables.UDP} {
				out := s.outbound(protocol, s.outside(f), port)
				add(out)
				in := s.inbound(f, protocol, port)
				add(in)
				in.To = out.To // for somebody behind the pod
				add(in)
			}
		}
		for _, to := range n.addresses[f] {
			in := s.inbound(f, iptables.TCP, s.port)
			in.To = netip.AddrPortFrom(to, s.port)
			add(in)
			in.Protocol, in.To = iptables.UDP, netip.AddrPortFrom(to, 53)
			add(in)
		}
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

// telling finds for each rule a packet that would end up elsewhere without it. Where there is none (another rule does the
// same, or its effect is not to be seen by where packets arrive), one that meets the rule will do.
func telling(rules *iptables.RuleSet, candidates []iptables.Packet) (all []sample) {
	type half struct { // a rule is in force for each family on its own
		rule *iptables.Rule
		of   iptables.Families
	}
	told, met := map[half]bool{}, map[half]bool{}
	var second []sample
	for _, p := range candidates {
		e := iptables.Explain(rules, p)
		for _, step := range e.Steps {
			h := half{step.Rule, p.Family()}
			if step.Missed != "" || told[h] || step.Table == iptables.Raw {
				continue
			}
			if wanted(iptables.Explain(without(rules, step.Rule), p)) != wanted(e) {
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
	return append(all, slices.DeleteFunc(second, byRule)...)
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
