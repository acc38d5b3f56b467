// Package trace reports how the kernel handles live packets: each matching rule, with the names of the rule set, and
// where the packet ends up. It enables the kernel's tracing with rules in a table of its own, which exists only during
// the trace. Rules of iptables-legacy are not traced.
package trace

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/pilotfish-mesh/pilotfish/iptables"
)

// MaxDuration is the maximum duration of a trace, because tracing delays every packet of the namespace.
const MaxDuration = 10 * time.Minute

// Config configures a trace.
type Config struct {
	// NetNS is a file descriptor of the namespace; 0 or less: that of the calling thread.
	NetNS int
	// Rules describes the installed rules; if it is nil, the comments in the kernel are used.
	Rules  *iptables.RuleSet
	Filter Filter
	// For is the duration, at most Longest; 0 means 10 seconds.
	For time.Duration
	// Packets is the maximum number of packets; 0 means 20.
	Packets int
}

// Filter selects packets by their headers when they enter the namespace or are sent. Zero fields match every packet.
type Filter struct {
	Protocol iptables.Protocol
	From, To netip.Prefix
	Port     uint16  // destination port
	UID      *uint32 // only packets sent by processes of the user
	// All includes packets of established connections. Redirection decides about the first packet of a connection.
	All bool
}

// Packet is the trace of one packet.
type Packet struct {
	Time      time.Time          `json:"time"`
	Protocol  string             `json:"protocol"`
	From      netip.AddrPort     `json:"from"`
	To        netip.AddrPort     `json:"to"`
	Direction iptables.Direction `json:"direction"`
	// Interface is the interface through which the packet arrived, or was first routed to leave.
	Interface string `json:"interface"`
	Steps     []Step `json:"steps"`
	End       string `json:"end"`
}

// Step is one rule that the packet matched. Steps are in the kernel's order.
type Step struct {
	Table string `json:"table"`
	Chain string `json:"chain"`
	// Rule is the ID of one of our rules, or identifies a foreign one.
	Rule    string `json:"rule"`
	Foreign bool   `json:"foreign,omitempty"`
	Verdict string `json:"verdict"`
	Reason  string `json:"reason,omitempty"`
	Mark    uint32 `json:"mark,omitempty"`
}

// String returns the trace as text.
func (p *Packet) String() string {
	var b strings.Builder
	way := "sent here"
	if p.Direction == iptables.Inbound {
		way = "came in by " + p.Interface
	}
	fmt.Fprintf(&b, "%s  %s %s → %s, %s\n", p.Time.Format("15:04:05.000000"), strings.ToUpper(p.Protocol), p.From, p.To, way)
	for _, s := range p.Steps {
		fmt.Fprintf(&b, "  %-7s %-18s %s → %s", s.Table, s.Chain, s.Rule, s.Verdict)
		if s.Foreign {
			b.WriteString(" (foreign rule)")
		}
		b.WriteString("\n")
		if s.Reason != "" {
			fmt.Fprintf(&b, "                               %s\n", s.Reason)
		}
	}
	fmt.Fprintf(&b, "  → %s\n", p.End)
	return b.String()
}
