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
	// Forwarded packets come in, but are for somewhere beyond the namespace, as a virtual machine's are.
	Forwarded bool
	// UID and GID of the process that sends it; nil where no process does.
	UID, GID *uint32
	Mark     uint32
	ConnMark uint32
	State    State // "" is New
	// Reply says that it goes to who began the connection.
	Reply bool
}

// Family is that of the destination.
func (p *Packet) Family() Families { return familyOf(p.To.Addr()) }

// String says what the packet is, as one would write it for `explain`.
func (p Packet) String() string {
	text := fmt.Sprintf("%s %s from %s to %s by %s", p.Direction, p.Protocol, p.From, p.To, p.Interface)
	if p.Forwarded {
		text += ", passed on"
	}
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
	switch {
	case families&p.Family() == 0:
		return "another address family"
	case m.Protocol != AnyProtocol && m.Protocol != p.Protocol:
		return "another protocol"
	case !m.interfaces(p, hook):
		return "another interface"
	case !within(m.Source, m.NotSource, p.From.Addr()):
		return "another source"
	case !within(m.Destination, m.NotDestination, p.To.Addr()):
		return "another destination"
	case !anyPort(m.SourcePorts, false, p.From.Port()):
		return "another source port"
	case !anyPort(m.DestinationPorts, m.NotDestinationPorts, p.To.Port()):
		return "another port"
	}
	return m.missesOwnerOrState(p)
}

func (m *Match) missesOwnerOrState(p *Packet) string {
	switch {
	case !owned(m.UIDs, m.NotUIDs, p.UID):
		return "another user"
	case !owned(m.GIDs, m.NotGIDs, p.GID):
		return "another group"
	case !marked(m.Mark, m.NotMark, p.Mark):
		return "another mark"
	case !marked(m.ConnMark, false, p.ConnMark):
		return "another mark of the connection"
	case len(m.States) > 0 && !slices.Contains(m.States, p.state()):
		return "another state of the connection"
	case m.Reply && !p.Reply:
		return "no answer"
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
