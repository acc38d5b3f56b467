// Package trace shows what the kernel does with live packets: each rule that one meets, in the words of the rule set, and
// where it ends up. It asks the kernel by rules of its own, in a table that lasts as long as the trace.
package trace

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/pilotfish-mesh/pilotfish/iptables"
)

// Longest is how long a trace may take; it costs every packet of the namespace some time.
const Longest = 10 * time.Minute

// Config is what is traced, and for how long.
type Config struct {
	// NetNS is a file descriptor of the namespace; 0 or less: that of the calling thread.
	NetNS int
	// Rules give the words for what is in force; nil: the names that the kernel keeps have to do.
	Rules *iptables.RuleSet
	// Legacy are the rules that iptables-legacy has in the namespace. If there are any, the kernel's logger for packets is
	// ours meanwhile.
	Legacy []iptables.PlacedRule
	// Guard are the arguments, its own name first, with which this program calls PutBack for the words behind them. So it is
	// started where the logger is changed, to put it back should this process be killed; without them a killed trace leaves it.
	Guard  []string
	Filter Filter
	// For is how long at most, up to Longest; 10 seconds if it is 0.
	For time.Duration
	// Packets is how many at most; 20 if it is 0.
	Packets int
}

// Filter chooses packets by what they have when they enter the namespace or are sent; a zero field chooses all.
type Filter struct {
	Protocol iptables.Protocol
	From, To netip.Prefix
	Port     uint16  // of the destination
	UID      *uint32 // only what processes of the user send
	// All are the packets of connections that exist too. Redirection decides about the first one.
	All bool
}

// Packet is what became of one packet.
type Packet struct {
	Time     time.Time          `json:"time"`
	Protocol string             `json:"protocol"`
	From     netip.AddrPort     `json:"from"`
	To       netip.AddrPort     `json:"to"`
	Way      iptables.Direction `json:"direction"`
	// Interface is the one that it came in by, or was to leave by at first.
	Interface string `json:"interface"`
	Steps     []Step `json:"steps"`
	End       string `json:"end"`
}

// Step is one rule that the packet met, in the kernel's order.
type Step struct {
	Table string `json:"table"`
	Chain string `json:"chain"`
	// Rule is the ID of a rule of ours, or what identifies a foreign one.
	Rule    string `json:"rule"`
	Foreign bool   `json:"foreign,omitempty"`
	Verdict string `json:"verdict"`
	Reason  string `json:"reason,omitempty"`
	Mark    uint32 `json:"mark,omitempty"`
}

// String is the packet's way for a person.
func (p *Packet) String() string {
	var b strings.Builder
	way := "sent here"
	if p.Way == iptables.Inbound {
		way = "came in by " + p.Interface
	}
	fmt.Fprintf(&b, "%s  %s %s → %s, %s\n", p.Time.Format("15:04:05.000000"), strings.ToUpper(p.Protocol), p.From, p.To, way)
	for _, s := range p.Steps {
		fmt.Fprintf(&b, "  %-7s %-18s %s → %s", s.Table, s.Chain, s.Rule, s.Verdict)
		if s.Foreign {
			b.WriteString(" (not a rule of ours)")
		}
		b.WriteString("\n")
		if s.Reason != "" {
			fmt.Fprintf(&b, "                               %s\n", s.Reason)
		}
	}
	fmt.Fprintf(&b, "  → %s\n", p.End)
	return b.String()
}
