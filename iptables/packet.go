package iptables

import (
	"fmt"
	"net/netip"
	"slices"
)

// Direction is the direction of a packet, seen from the namespace.
type Direction string

// The directions.
const (
	Outbound Direction = "outbound" // sent by a process of the namespace, possibly to the namespace itself
	Inbound  Direction = "inbound"  // received from a link
)

// Packet has the properties that rules match. It is usually the first packet of a connection.
type Packet struct {
	Direction Direction
	Protocol  Protocol
	From, To  netip.AddrPort
	// Interface is the outgoing interface (lo for local destinations) or the incoming one.
	Interface string
	// Forwarded reports that an inbound packet is for a destination outside the namespace, such as a virtual machine's
	// packet.
	Forwarded bool
	// UID and GID are those of the sending process; nil if no process sends the packet.
	UID, GID *uint32
	Mark     uint32
	ConnMark uint32
	State    State // "" is New
	// Reply reports that the packet is sent to the peer that opened the connection.
	Reply bool
}

// Family returns the destination's family.
func (p *Packet) Family() Families { return familyOf(p.To.Addr()) }

// String describes the packet in the syntax of `explain`.
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

// misses returns a description of the first condition that the packet does not meet at the hook, or "" if it meets all.
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
	case !matchesAddress(m.Source, m.NotSource, p.From.Addr()):
		return "another source"
	case !matchesAddress(m.Destination, m.NotDestination, p.To.Addr()):
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
	case !matchesOwner(m.UIDs, m.NotUIDs, p.UID):
		return "another user"
	case !matchesOwner(m.GIDs, m.NotGIDs, p.GID):
		return "another group"
	case !matchesMark(m.Mark, m.NotMark, p.Mark):
		return "another mark"
	case !matchesMark(m.ConnMark, false, p.ConnMark):
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

// matchesOwner reports whether the owner condition holds. It is false for packets without a sending process, even if
// negated: the kernel then compares nothing.
func matchesOwner(list []uint32, not bool, id *uint32) bool {
	return len(list) == 0 || id != nil && slices.Contains(list, *id) != not
}

func matchesMark(m *Mark, not bool, value uint32) bool {
	return m == nil || (value&m.Mask == m.Value) != not
}
