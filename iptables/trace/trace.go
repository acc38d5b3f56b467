// Package trace reports how the kernel handles live packets: each matching rule, with its ID, and where the packet is
// delivered. It enables the kernel's packet tracing with rules in a separate nftables table, which exists only during
// the trace. Traces do not contain rules of iptables-legacy.
package trace

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/pilotfish-mesh/pilotfish/iptables"
)

// MaxDuration is the maximum duration of a trace. It is limited because tracing delays every packet of the namespace.
const MaxDuration = 10 * time.Minute

// Config configures a trace.
type Config struct {
	// NetNS is a file descriptor of the network namespace. 0 or less selects the calling thread's namespace.
	NetNS int
	// Rules is the installed rule set. It provides the rule IDs and reasons of the steps. If it is nil, steps contain
	// only the rule comments that the kernel stores.
	Rules  *iptables.RuleSet
	Filter Filter
	// For is the duration of the trace, at most MaxDuration; 0 means 10 seconds.
	For time.Duration
	// Packets is the maximum number of packets that are reported; 0 means 20.
	Packets int
}

// Filter selects packets by their headers when they enter the namespace or are sent. Zero fields match every packet.
type Filter struct {
	Protocol iptables.Protocol
	From, To netip.Prefix
	Port     uint16  // destination port
	UID      *uint32 // only packets that processes of this user send
	// All includes all packets of TCP connections. By default, only the first packet (SYN) is traced, because
	// redirection depends on that packet.
	All bool
}

// Packet is the trace of one packet.
type Packet struct {
	Time      time.Time          `json:"time"`
	Protocol  string             `json:"protocol"`
	From      netip.AddrPort     `json:"from"`
	To        netip.AddrPort     `json:"to"`
	Direction iptables.Direction `json:"direction"`
	// Interface is the interface through which the packet arrived. For an outbound packet, it is the interface to which
	// the kernel routed the packet before redirection.
	Interface string `json:"interface"`
	Steps     []Step `json:"steps"`
	End       string `json:"end"`
}

// Step is one rule that the packet matched. The steps of a packet are in the order in which the kernel evaluated them.
type Step struct {
	Table string `json:"table"`
	Chain string `json:"chain"`
	// Rule is the rule's ID. For a rule of another program (Foreign), it is the rule's comment or "rule" with its handle.
	Rule    string `json:"rule"`
	Foreign bool   `json:"foreign,omitempty"`
	Verdict string `json:"verdict"`
	Reason  string `json:"reason,omitempty"`
	Mark    uint32 `json:"mark,omitempty"`
}

// String returns the trace as text.
func (p *Packet) String() string {
	var b strings.Builder
	way := "sent by a local process"
	if p.Direction == iptables.Inbound {
		way = "received through " + p.Interface
	}
	fmt.Fprintf(&b, "%s  %s %s → %s, %s\n", p.Time.Format("15:04:05.000000"), strings.ToUpper(p.Protocol), p.From, p.To, way)
	for _, s := range p.Steps {
		fmt.Fprintf(&b, "  %-7s %-18s %s → %s", s.Table, s.Chain, s.Rule, s.Verdict)
		if s.Foreign {
			b.WriteString(" (rule of another program)")
		}
		b.WriteString("\n")
		if s.Reason != "" {
			fmt.Fprintf(&b, "                               %s\n", s.Reason)
		}
	}
	fmt.Fprintf(&b, "  → %s\n", p.End)
	return b.String()
}
