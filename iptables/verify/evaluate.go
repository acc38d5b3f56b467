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
	// Subject describes the kind of packet.
	Subject string `json:"subject"`
	// Rule is the ID of the rule that should decide about the packet; "" if none should.
	Rule string `json:"rule,omitempty"`
	// Want and Got describe where the packet should arrive, and where it arrived.
	Want string `json:"want"`
	Got  string `json:"got"`
	OK   bool   `json:"ok"`
	// Consequence describes the effect on this kind of traffic; "" if the packet arrived as expected.
	Consequence string `json:"consequence,omitempty"`
	// Unproven is the reason why the packet could not be sent.
	Unproven string        `json:"unproven,omitempty"`
	Took     time.Duration `json:"took_ns"`

	want, got outcome
	via       string // the interface that the packet passed
}

// outcome is where a packet ends up, in a form that allows comparison of the rules' prediction with the result.
type outcome struct {
	end  iptables.End
	port uint16 // the capture port
}

// expectedOutcome returns the outcome that the rules define.
func expectedOutcome(e iptables.Explanation) outcome {
	if e.End == iptables.Redirected {
		return outcome{e.End, e.Port}
	}
	return outcome{end: e.End}
}

// actualOutcome returns the packet's actual outcome.
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

// sameOutcome reports whether the outcomes are equal. For a refused datagram, a drop is accepted too, since the sender
// need not be notified of the refusal.
func sameOutcome(p iptables.Packet, want, got outcome) bool {
	if want.end == iptables.Refused && p.Protocol == iptables.UDP {
		return got.end == iptables.Refused || got.end == iptables.Dropped
	}
	return want == got
}

// judge compares the packet's actual outcome with the one that the rules define.
func judge(s sample, e iptables.Explanation, a packettest.Arrival) Proof {
	a.Transparent = a.Transparent && s.Mark == 0 // the packet was sent with a mark, so the mark does not show that a rule set it
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
		p.OK, p.Consequence = false, p.Subject+" goes where it should, and gets no answer: what the agent answers is not known for one (another zone of connection tracking)"
	case p.OK && a.NotTracked:
		p.OK, p.Consequence = false, p.Subject+" goes where it should, and its answer is not known for one: a firewall may drop it (another zone of connection tracking)"
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
		return "nowhere"
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
		return "does not get through"
	case got.end == iptables.Refused:
		return "is refused"
	case want.end == iptables.Refused || want.end == iptables.Dropped:
		return "is let through, and should be refused"
	case captured(want) && got.end == iptables.Passes && strings.HasPrefix(rule, "dns/"):
		return "bypasses the agent's resolver"
	case captured(want) && got.end == iptables.Passes:
		return "bypasses the proxy"
	case captured(want):
		return fmt.Sprintf("reaches %s, and should reach %s", got.name(), want.name())
	case strings.HasPrefix(rule, "outbound/proxy-") || strings.HasPrefix(rule, "outbound/passthrough-") ||
		strings.HasPrefix(rule, "tproxy/passthrough-"):
		return "comes back to the proxy for ever, at " + got.name()
	}
	return "is captured, and should be left alone: it reaches " + got.name()
}

func (f outcome) name() string {
	if f.end == iptables.Transparent {
		return "the transparent proxy"
	}
	return fmt.Sprintf("port %d", f.port)
}
