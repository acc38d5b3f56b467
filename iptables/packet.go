package iptables

import (
	"fmt"
	"net/netip"
	"slices"
)

// Direction is the way of a packet as the namespace sees it.
type Direction string

// The directions.
const (
	Outbound Direction = "outbound" // sent by a process of the namespace, to itself too
	Inbound  Direction = "inbound"  // came in from a link
)

// Packet is what rules look at: usually the first packet of a connection.
type Packet struct {
	Direction Direction
	Protocol  Protocol
	From, To  netip.AddrPort
	// Interface that the packet leaves by (lo if it is for the namespace itself) or came in by.
	Interface string
	// UID and GID of the process that sends it; nil where no process does.
	UID, GID *uint32
	Mark     uint32
	ConnMark uint32
	State    State // "" is New
	// Socket says that a process of the namespace holds the connection already.
	Socket bool
}

// Family is that of the destination.
func (p *Packet) Family() Families { return familyOf(p.To.Addr()) }

// String says what the packet is, as one would write it for `explain`.
func (p Packet) String() string {
	text := fmt.Sprintf("%s %s from %s to %s by %s", p.Direction, p.Protocol, p.From, p.To, p.Interface)
	if p.UID != nil && p.GID != nil {
		text += fmt.Sprintf(", sent by uid %d, gid %d", *p.UID, *p.GID)
	}
	if p.Mark != 0 {
		text += fmt.Sprintf(", mark %d", p.Mark)
	}
	if p.State != "" && p.State != New {
		text += ", " + string(p.State)
	}
	return text
}

// misses tells the first condition of the match that does not hold for the packet at the hook, in words; "" if all hold.
func (m *Match) misses(p *Packet, hook Hook, of Families) string {
	families := of
	if m.Families != 0 {
		families = m.Families
	}
	for _, c := range []struct {
		holds bool
		why   string
	}{
		{families&p.Family() != 0, "another address family"},
		{m.Protocol == AnyProtocol || m.Protocol == p.Protocol, "another protocol"},
		{m.interfaces(p, hook), "another interface"},
		{within(m.Source, m.NotSource, p.From.Addr()), "another source"},
		{within(m.Destination, m.NotDestination, p.To.Addr()), "another destination"},
		{anyPort(m.SourcePorts, false, p.From.Port()), "another source port"},
		{anyPort(m.DestinationPorts, m.NotDestinationPorts, p.To.Port()), "another port"},
		{owned(m.UIDs, m.NotUIDs, p.UID), "another user"},
		{owned(m.GIDs, m.NotGIDs, p.GID), "another group"},
		{marked(m.Mark, m.NotMark, p.Mark), "another mark"},
		{marked(m.ConnMark, false, p.ConnMark), "another mark of the connection"},
		{len(m.States) == 0 || slices.Contains(m.States, p.state()), "another state of the connection"},
		{!m.Socket || p.Socket, "no process here holds the connection"},
	} {
		if !c.holds {
			return c.why
		}
	}
	return ""
}

func (p *Packet) state() State {
	if p.State == "" {
		return New
	}
	return p.State
}

func (m *Match) interfaces(p *Packet, hook Hook) bool {
	in, out := p.Interface, ""
	if hook == Output {
		in, out = "", p.Interface
	}
	if m.InInterface != "" && m.InInterface != in {
		return false
	}
	return m.OutInterface == "" || (m.OutInterface == out) != m.NotOut
}

func within(list []netip.Prefix, not bool, a netip.Addr) bool {
	if len(list) == 0 {
		return true
	}
	if familyOf(list[0].Addr()) != familyOf(a) {
		return false
	}
	return slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(a) }) != not
}

func anyPort(list []PortRange, not bool, port uint16) bool {
	return len(list) == 0 || slices.ContainsFunc(list, func(r PortRange) bool { return r.Contains(port) }) != not
}

// owned is false for packets that no process sends, negated or not: the kernel compares nothing then.
func owned(list []uint32, not bool, id *uint32) bool {
	return len(list) == 0 || id != nil && slices.Contains(list, *id) != not
}

func marked(m *Mark, not bool, value uint32) bool {
	return m == nil || (value&m.Mask == m.Value) != not
}
