package iptables

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/pilotfish-mesh/pilotfish/iptables/iprange"
)

// Canonical returns the canonical form of a rule set. Two rule sets whose rules are pairwise equivalent have the same
// canonical form. Back ends return rules in this form. Lists are sorted and minimal. Implied conditions and reasons are
// omitted. The order of rules is unchanged, except that in a run of adjacent single-family rules, those for IPv4 are
// first. If a list is already canonical, the result shares it with the argument.
func Canonical(rules *RuleSet) *RuleSet {
	if rules == nil {
		return nil
	}
	out := &RuleSet{Families: rules.Families, Routing: canonicalRouting(rules.Routing)}
	for _, c := range rules.Chains {
		c.Rules = slices.Clone(c.Rules)
		for i := range c.Rules {
			c.Rules[i].Reason = ""
			c.Rules[i].Match.makeCanonical(rules.Families)
		}
		orderFamilies(c.Rules)
		out.Chains = append(out.Chains, c)
	}
	slices.SortFunc(out.Chains, func(a, b Chain) int {
		return cmp.Or(slices.Index(tableOrder, a.Table)-slices.Index(tableOrder, b.Table), cmp.Compare(a.Hook, b.Hook), cmp.Compare(a.Name, b.Name))
	})
	return out
}

// orderFamilies sorts each run of adjacent single-family rules: IPv4 first. iptables stores the families separately, so
// their relative order is lost. The order does not affect packets, because a packet has only one family.
func orderFamilies(rules []Rule) {
	for i := 0; i < len(rules); {
		end, ordered := i, true
		for end < len(rules) && rules[end].Match.family() != 0 {
			ordered = ordered && (end == i || rules[end-1].Match.family() <= rules[end].Match.family())
			end++
		}
		if !ordered {
			slices.SortStableFunc(rules[i:end], func(a, b Rule) int { return cmp.Compare(a.Match.family(), b.Match.family()) })
		}
		i = end + 1
	}
}

// family returns the only address family to which the match applies, or 0 if it applies to both.
func (m *Match) family() Families {
	for _, list := range [][]netip.Prefix{m.Source, m.Destination} {
		if len(list) > 0 {
			return familyOf(list[0].Addr())
		}
	}
	if m.Families == IPv4 || m.Families == IPv6 {
		return m.Families
	}
	return 0
}

// tableOrder is the order in which a packet traverses the tables.
var tableOrder = []Table{Raw, Mangle, NAT, Filter}

func canonicalRouting(r *Routing) *Routing {
	if r == nil {
		return nil
	}
	c := *r
	c.LoopbackAddresses = slices.Clone(r.LoopbackAddresses)
	slices.SortFunc(c.LoopbackAddresses, netip.Prefix.Compare)
	c.LoopbackAddresses = slices.Compact(c.LoopbackAddresses)
	return &c
}

func (m *Match) makeCanonical(all Families) {
	m.Source, m.Destination = iprange.Prefixes(m.Source), iprange.Prefixes(m.Destination)
	m.wholeFamily(&m.Source, m.NotSource)
	m.wholeFamily(&m.Destination, m.NotDestination)
	if m.Families&all == all || len(m.Source)+len(m.Destination) > 0 {
		m.Families = 0
	}
	m.SourcePorts, m.DestinationPorts = canonicalPorts(m.SourcePorts), canonicalPorts(m.DestinationPorts)
	m.UIDs, m.GIDs = sortedSet(m.UIDs), sortedSet(m.GIDs)
	m.States = sortedSet(m.States)
	m.Mark, m.ConnMark = canonicalMark(m.Mark), canonicalMark(m.ConnMark)
}

// wholeFamily replaces a prefix of length 0, such as 0.0.0.0/0, by a condition on the address family.
func (m *Match) wholeFamily(list *[]netip.Prefix, not bool) {
	if !not && len(*list) == 1 && (*list)[0].Bits() == 0 {
		m.Families, *list = familyOf((*list)[0].Addr()), nil
	}
}

func sortedSet[T cmp.Ordered](list []T) []T {
	switch len(list) {
	case 0:
		return nil
	case 1:
		return list
	}
	list = slices.Clone(list)
	slices.Sort(list)
	return slices.Compact(list)
}

func canonicalMark(m *Mark) *Mark {
	if m == nil {
		return nil
	}
	return &Mark{Value: m.Value & m.Mask, Mask: m.Mask}
}

// canonicalPorts sorts the ranges, and merges ranges that overlap or are adjacent.
func canonicalPorts(ranges []PortRange) []PortRange {
	if len(ranges) < 2 {
		return ranges
	}
	sorted := slices.SortedFunc(slices.Values(ranges), func(a, b PortRange) int { return cmp.Compare(a.First, b.First) })
	out := sorted[:1]
	for _, r := range sorted[1:] {
		last := &out[len(out)-1]
		if int(r.First) > int(last.Last)+1 {
			out = append(out, r)
			continue
		}
		last.Last = max(last.Last, r.Last)
	}
	return out
}
