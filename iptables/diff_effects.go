package iptables

import (
	"fmt"
	"strings"
)

// outcome is that part of a simulation's result that determines where a packet and its replies are delivered.
type outcome struct {
	end  End
	port uint16
	zone uint16
	mark uint32
	conn uint32 // the connection's mark
}

func outcomes(rules *RuleSet, packets []Packet) []outcome {
	all := make([]outcome, len(packets))
	w := walk{rules: rules, index: newIndex(rules), quiet: true}
	for i := range packets {
		w.packet, w.e, w.ended, w.left, w.callers = packets[i], Explanation{}, false, w.left[:0], w.callers[:0]
		w.run()
		all[i] = outcome{w.e.End, w.e.Port, w.e.Zone, w.packet.Mark, w.packet.ConnMark}
		if w.ended {
			all[i].mark, all[i].conn = 0, 0
		}
	}
	return all
}

// maxEffects is the maximum number of effects that are described for one difference.
const maxEffects = 4

// describeEffects describes the packets whose outcome differs from the wanted one. It describes packets of the same
// kind once.
func describeEffects(packets []Packet, want, got []outcome) string {
	var list []effect
	for i, p := range packets {
		if want[i] == got[i] {
			continue
		}
		list = addEffect(list, newEffect(&p, want[i], got[i]))
	}
	texts := make([]string, 0, maxEffects+1)
	for _, e := range list[:min(len(list), maxEffects)] {
		texts = append(texts, e.String())
	}
	if more := len(list) - maxEffects; more > 0 {
		texts = append(texts, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(texts, "; ")
}

// effect is a changed outcome of packets of one kind.
type effect struct {
	kind     string // "TCP", "DNS over UDP"
	way      Direction
	families Families
	what     string
	example  string
}

func (e effect) String() string {
	families := e.families.String()
	if e.families == BothFamilies {
		families = "IPv4 and IPv6"
	}
	return fmt.Sprintf("%s %s %s %s (for example %s)", e.way, families, e.kind, e.what, e.example)
}

// addEffect appends e to list. If list already contains the effect for other packets, addEffect only adds e's address
// family to it. The first packet remains the example, because the most common samples are first.
func addEffect(list []effect, e effect) []effect {
	for i := range list {
		if o := &list[i]; o.way == e.way && o.kind == e.kind && o.what == e.what {
			o.families |= e.families
			return list
		}
	}
	return append(list, e)
}

func newEffect(p *Packet, want, got outcome) effect {
	return effect{kind: kindOf(p), way: p.Direction, families: p.Family(), what: change(want, got), example: example(p)}
}

func kindOf(p *Packet) string {
	kind := strings.ToUpper(string(p.Protocol))
	if p.To.Port() == 53 {
		kind = "DNS over " + kind
	}
	if p.state() != New {
		kind += " of " + string(p.state()) + " connections"
	}
	return kind
}

func example(p *Packet) string {
	text := "to " + p.To.String()
	if p.Direction == Inbound || p.From.Port() != ephemeral || p.Interface == loopback {
		text = "from " + p.From.String() + " " + text
	}
	if p.Interface != sampleInterface {
		text += " through " + p.Interface
	}
	if p.UID != nil {
		text += fmt.Sprintf(" of uid %d, gid %d", *p.UID, *p.GID)
	}
	if p.Mark != 0 {
		text += fmt.Sprintf(" marked %d", p.Mark)
	}
	return text
}

func change(want, got outcome) string {
	switch {
	case got.end == Dropped:
		return "would be dropped"
	case got.end == Refused:
		return "would be rejected"
	case want.end == Dropped:
		return "would not be dropped"
	case want.end == Refused:
		return "would not be rejected"
	case want.end != Passes && got.end == Passes:
		return fmt.Sprintf("would bypass the proxy instead of reaching port %d", want.port)
	case want.end == Passes && got.end != Passes:
		return fmt.Sprintf("would be redirected to port %d, but should not be captured", got.port)
	case want.end != got.end:
		return "would reach the proxy with changed addresses"
	case want.port != got.port:
		return fmt.Sprintf("would reach port %d instead of %d", got.port, want.port)
	case want.zone != got.zone:
		return "could be misdelivered when a source port is reused, because queries of the agent and of applications are not in separate conntrack zones"
	}
	if want.conn != got.conn {
		return "would get replies that bypass the proxy, because the connection is not marked"
	}
	return fmt.Sprintf("would be marked %d instead of %d and not be routed to the proxy's socket", got.mark, want.mark)
}
