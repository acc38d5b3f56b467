package iptables

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// String returns "IPv4", "IPv6" or "IPv4 and IPv6".
func (f Families) String() string {
	switch f {
	case IPv4:
		return "IPv4"
	case IPv6:
		return "IPv6"
	case BothFamilies:
		return "IPv4 and IPv6"
	}
	return "no address family"
}

// MarshalText implements encoding.TextMarshaler for JSON reports.
func (f Families) MarshalText() ([]byte, error) { return []byte(f.String()), nil }

// MarshalText implements encoding.TextMarshaler for JSON reports.
func (p PortRange) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// String returns the value, followed by the mask if the mask does not cover all bits.
func (m Mark) String() string {
	if m.Mask == allBits {
		return decimal(m.Value)
	}
	return fmt.Sprintf("%d/%#x", m.Value, m.Mask)
}

// MarshalText implements encoding.TextMarshaler for JSON reports.
func (m Mark) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// String describes the rule in words: "TCP to port 80 → ISTIO_REDIRECT".
func (r *Rule) String() string { return r.Match.String() + " → " + r.Verdict.String() }

// String describes the conditions in words: "TCP to port 80".
func (m *Match) String() string {
	var parts []string
	add := func(holds bool, format string, args ...any) {
		if holds {
			parts = append(parts, fmt.Sprintf(format, args...))
		}
	}
	add(m.Families != 0, "%s", m.Families)
	if m.Protocol == AnyProtocol {
		parts = append(parts, "everything")
	} else {
		parts = append(parts, strings.ToUpper(string(m.Protocol)))
	}
	add(m.InInterface != "", "from interface %s", m.InInterface)
	add(m.OutInterface != "", "%sto interface %s", negation(m.NotOut), m.OutInterface)
	add(len(m.Source) > 0, "%sfrom %s", negation(m.NotSource), joined(m.Source, plainPrefix))
	add(len(m.SourcePorts) > 0, "from port %s", joined(m.SourcePorts, PortRange.String))
	add(len(m.Destination) > 0, "%sto %s", negation(m.NotDestination), joined(m.Destination, plainPrefix))
	add(len(m.DestinationPorts) > 0, "%sto port %s", negation(m.NotDestinationPorts), joined(m.DestinationPorts, PortRange.String))
	add(len(m.UIDs) > 0, "%sof uid %s", negation(m.NotUIDs), joined(m.UIDs, decimal))
	add(len(m.GIDs) > 0, "%sof gid %s", negation(m.NotGIDs), joined(m.GIDs, decimal))
	add(m.Mark != nil, "%smarked %s", negation(m.NotMark), m.Mark)
	add(m.ConnMark != nil, "of a connection marked %s", m.ConnMark)
	add(len(m.States) > 0, "of %s connections", joined(m.States, func(s State) string { return string(s) }))
	add(m.Reply, "in the reply direction")
	return strings.Join(parts, " ")
}

func negation(not bool) string {
	if not {
		return "not "
	}
	return ""
}

func plainPrefix(p netip.Prefix) string {
	if p.IsSingleIP() {
		return p.Addr().String()
	}
	return p.String()
}

// String describes the verdict in words.
func (v *Verdict) String() string {
	switch v.Action {
	case Jump:
		return v.Chain
	case Return:
		return "return"
	case Accept:
		return "accept"
	case Drop:
		return "drop"
	case Reject:
		return "reject"
	case Redirect:
		return "port " + portText(v.Port)
	case TransparentProxy:
		return fmt.Sprintf("port %d with unchanged addresses, mark %s", v.Port, v.Mark)
	case SetMark:
		return "set mark " + v.Mark.String()
	case SaveMark:
		return "save the packet's mark in the connection"
	case RestoreMark:
		return "restore the packet's mark from the connection"
	case Zone:
		return fmt.Sprintf("conntrack zone %d", v.ZoneID)
	}
	return string(v.Action)
}

// String describes the routing, and the addresses that Apply adds to the namespace.
func (r *Routing) String() string {
	var b strings.Builder
	if r.Mark != 0 {
		fmt.Fprintf(&b, "routing\n  packets marked %d → this host, for any destination (policy rule %d, table %d)\n", r.Mark, r.Priority, r.Table)
	}
	if len(r.LoopbackAddresses) > 0 {
		b.WriteString("addresses\n")
	}
	for _, a := range r.LoopbackAddresses {
		fmt.Fprintf(&b, "  %s on lo\n", a)
	}
	return b.String()
}

// Prose describes the rule set in words. Chains are in the order in which a packet traverses them: each chain precedes
// the chains that it jumps to.
func (r *RuleSet) Prose() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n", r.Families)
	for _, c := range r.readingOrder() {
		if c.Hook != "" {
			fmt.Fprintf(&b, "\n%s, %s\n", c.Table, strings.ToLower(string(c.Hook)))
		} else {
			fmt.Fprintf(&b, "\n%s, chain %s\n", c.Table, c.Name)
		}
		for j := range c.Rules {
			fmt.Fprintf(&b, "  %s\n", &c.Rules[j])
			if c.Rules[j].Reason != "" || c.Rules[j].ID != "" {
				fmt.Fprintf(&b, "      %s: %s\n", c.Rules[j].ID, c.Rules[j].Reason)
			}
		}
	}
	if r.Routing != nil {
		fmt.Fprintf(&b, "\n%s", r.Routing)
	}
	return b.String()
}

// readingOrder returns the chains, starting with the base chains, in the order of a packet's path.
func (r *RuleSet) readingOrder() []*Chain {
	var order []*Chain
	var add func(c *Chain)
	add = func(c *Chain) {
		if slices.Contains(order, c) {
			return
		}
		order = append(order, c)
		for i := range c.Rules {
			for j := range r.Chains {
				if to := &r.Chains[j]; c.Rules[i].Verdict.Action == Jump && to.Table == c.Table && to.Name == c.Rules[i].Verdict.Chain {
					add(to)
				}
			}
		}
	}
	for _, way := range [][]Hook{{Prerouting, Input, Forward}, {Output}} {
		for _, t := range tableOrder {
			for i := range r.Chains {
				if c := &r.Chains[i]; c.Table == t && slices.Contains(way, c.Hook) {
					add(c)
				}
			}
		}
	}
	for i := range r.Chains {
		add(&r.Chains[i])
	}
	return order
}
