package iptables

import (
	"fmt"
	"net/netip"
	"slices"
)

// Direction is the direction of a packet relative to the network namespace.
type Direction string

// The directions.
const (
	Outbound Direction = "outbound" // sent by a process of the namespace, possibly to the namespace itself
	Inbound  Direction = "inbound"  // received from a link
)

// Packet has the properties of a packet that rules can match. It usually describes the first packet of a connection.
type Packet struct {
	Direction Direction
	Protocol  Protocol
	From, To  netip.AddrPort
	// Interface is the outgoing interface (lo for local destinations) or the incoming one.
	Interface string
	// Forwarded reports whether the destination of an inbound packet is outside the namespace, as for packets from a
	// virtual machine.
	Forwarded bool
	// UID and GID identify the sending process. They are nil if no process of the namespace sends the packet.
	UID, GID *uint32
	Mark     uint32
	ConnMark uint32
	State    State // "" is New
	// Reply reports whether the packet is sent to the peer that opened the connection.
	Reply bool
}

// Family returns the destination's family.
func (p *Packet) Family() Families { return familyOf(p.To.Addr()) }

// String describes the packet in one line, for the output of `explain`.
func (p Packet) String() string {
	text := fmt.Sprintf("%s %s from %s to %s by %s", p.Direction, p.Protocol, p.From, p.To, p.Interface)
	if p.Forwarded {
		text += ", forwarded"
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

// misses describes the first condition of the match that the packet does not meet at the hook. It returns "" if the
// packet meets all conditions.
func (m *Match) misses(p *Packet, hook Hook, of Families) string {
	families := of
	if m.Families != 0 {
		families = m.Families
	}
	switch {
	case families&p.Family() == 0:
		return "different address family"
	case m.Protocol != AnyProtocol && m.Protocol != p.Protocol:
		return "different protocol"
	case !m.interfaces(p, hook):
		return "different interface"
	case !matchesAddress(m.Source, m.NotSource, p.From.Addr()):
		return "different source address"
	case !matchesAddress(m.Destination, m.NotDestination, p.To.Addr()):
		return "different destination address"
	case !anyPort(m.SourcePorts, false, p.From.Port()):
		return "different source port"
	case !anyPort(m.DestinationPorts, m.NotDestinationPorts, p.To.Port()):
		return "different destination port"
	}
	return m.missesOwnerOrState(p)
}

func (m *Match) missesOwnerOrState(p *Packet) string {
	switch {
	case !matchesOwner(m.UIDs, m.NotUIDs, p.UID):
		return "different user"
	case !matchesOwner(m.GIDs, m.NotGIDs, p.GID):
		return "different group"
	case !matchesMark(m.Mark, m.NotMark, p.Mark):
		return "different packet mark"
	case !matchesMark(m.ConnMark, false, p.ConnMark):
		return "different connection mark"
	case len(m.States) > 0 && !slices.Contains(m.States, p.state()):
		return "different connection state"
	case m.Reply && !p.Reply:
		return "not in the reply direction"
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

func matchesAddress(list []netip.Prefix, not bool, a netip.Addr) bool {
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

// matchesOwner reports whether the packet meets the owner condition. For a packet without a sending process it returns
// false, even if the condition is negated, because the kernel does not match the rule in this case.
func matchesOwner(list []uint32, not bool, id *uint32) bool {
	return len(list) == 0 || id != nil && slices.Contains(list, *id) != not
}

func matchesMark(m *Mark, not bool, value uint32) bool {
	return m == nil || (value&m.Mask == m.Value) != not
}
