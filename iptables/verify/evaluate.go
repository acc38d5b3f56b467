package verify

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/pilotfish-mesh/pilotfish/iptables"
	"github.com/pilotfish-mesh/pilotfish/iptables/packettest"
)

// Proof is the result of one test packet.
type Proof struct {
	// Subject describes the packet and its sender.
	Subject string `json:"subject"`
	// Rule is the ID of the rule that determines the expected outcome; "" if no rule matches.
	Rule string `json:"rule,omitempty"`
	// Want and Got describe the expected and the actual destination.
	Want string `json:"want"`
	Got  string `json:"got"`
	OK   bool   `json:"ok"`
	// Consequence describes what does not work for this kind of traffic; "" if the packet arrived as expected.
	Consequence string `json:"consequence,omitempty"`
	// Unproven is the reason why the packet could not be sent.
	Unproven string        `json:"unproven,omitempty"`
	Took     time.Duration `json:"took_ns"`

	want, got outcome
	via       string // the interface of the namespace through which the packet was sent or received
}

// outcome is the destination of a packet in a form in which the expected and the actual one can be compared.
type outcome struct {
	end  iptables.End
	port uint16 // for a redirected packet, the port to which it was redirected
}

// expectedOutcome returns the outcome that the rules should cause.
func expectedOutcome(e iptables.Explanation) outcome {
	if e.End == iptables.Redirected {
		return outcome{e.End, e.Port}
	}
	return outcome{end: e.End}
}

// actualOutcome derives the outcome from the packet's arrival.
func actualOutcome(p iptables.Packet, a packettest.Arrival) outcome {
	switch {
	case a.Where == packettest.Nowhere && errors.Is(a.Err, errRefused):
		return outcome{end: iptables.Refused}
	case a.Where == packettest.Nowhere:
		return outcome{end: iptables.Dropped}
	case a.Transparent:
		return outcome{end: iptables.Transparent}
	case a.At == p.To:
		return outcome{end: iptables.Passes}
	}
	return outcome{iptables.Redirected, a.At.Port()}
}

// sameOutcome reports whether the outcomes are equal. For a UDP packet that should be rejected, a drop is accepted too,
// because the kernel may not send an ICMP error for each packet.
func sameOutcome(p iptables.Packet, want, got outcome) bool {
	if want.end == iptables.Refused && p.Protocol == iptables.UDP {
		return got.end == iptables.Refused || got.end == iptables.Dropped
	}
	return want == got
}

// judge compares a packet's actual outcome with the one that the rules should cause.
func judge(s sample, e iptables.Explanation, a packettest.Arrival) Proof {
	// If the packet was sent with a mark, its mark does not prove that a rule set it.
	a.Transparent = a.Transparent && s.Mark == 0
	want, got := expectedOutcome(e), actualOutcome(s.Packet, a)
	p := Proof{Subject: s.subject(), Want: want.describe(s, ""), Got: got.describe(s, a.String()), Took: a.Took, want: want, got: got, via: s.via}
	if e.Decision != nil {
		p.Rule = e.Decision.ID
	}
	for _, unseen := range []error{packettest.ErrNotPermitted, packettest.ErrNoSuchFamily, packettest.ErrPortInUse, packettest.ErrNoRoute, packettest.ErrBroadcast, packettest.ErrInterfaceUnusable} {
		if errors.Is(a.Err, unseen) {
			p.Got, p.Unproven = "", a.Err.Error()
			return p
		}
	}
	switch p.OK = sameOutcome(s.Packet, want, got); {
	case p.OK && a.Unanswered:
		p.OK, p.Consequence = false, p.Subject+" arrives as expected, but the sender gets no reply: conntrack does not recognize the agent's reply (different conntrack zone)"
	case p.OK && a.NotTracked:
		p.OK, p.Consequence = false, p.Subject+" arrives as expected, but conntrack does not recognize the reply (different conntrack zone): a firewall may drop it"
	case !p.OK:
		p.Consequence = p.Subject + " " + describeConsequence(p.Rule, want, got)
		if a.Err != nil && got.end != iptables.Refused && (want.end == iptables.Redirected || !errors.Is(a.Err, packettest.ErrNoAddress)) {
			p.Consequence += ": " + a.Err.Error()
		}
	}
	return p
}

func (f outcome) describe(s sample, seen string) string {
	switch f.end {
	case iptables.Redirected:
		return fmt.Sprintf("port %d of this pod", f.port)
	case iptables.Transparent:
		return "the transparent proxy"
	case iptables.Dropped:
		return "not delivered"
	case iptables.Refused:
		return "refused"
	}
	if seen != "" {
		return seen
	}
	return s.To.String()
}

func describeConsequence(rule string, want, got outcome) string {
	captured := func(f outcome) bool { return f.end == iptables.Redirected || f.end == iptables.Transparent }
	switch {
	case got.end == iptables.Dropped:
		return "does not arrive"
	case got.end == iptables.Refused:
		return "is refused"
	case want.end == iptables.Refused || want.end == iptables.Dropped:
		return "is delivered, but should be rejected"
	case captured(want) && got.end == iptables.Passes && strings.HasPrefix(rule, "dns/"):
		return "bypasses the agent's resolver"
	case captured(want) && got.end == iptables.Passes:
		return "bypasses the proxy"
	case captured(want):
		return fmt.Sprintf("reaches %s instead of %s", got.name(), want.name())
	case strings.HasPrefix(rule, "outbound/proxy-") || strings.HasPrefix(rule, "outbound/passthrough-") ||
		strings.HasPrefix(rule, "tproxy/passthrough-"):
		return "returns to the proxy in a loop, at " + got.name()
	}
	return "is redirected to " + got.name() + ", but should not be captured"
}

func (f outcome) name() string {
	if f.end == iptables.Transparent {
		return "the transparent proxy"
	}
	return fmt.Sprintf("port %d", f.port)
}
