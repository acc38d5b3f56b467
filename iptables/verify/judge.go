package verify

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/pilotfish-mesh/pilotfish/iptables"
	"github.com/pilotfish-mesh/pilotfish/iptables/packets"
)

// Proof is what one packet showed.
type Proof struct {
	// Subject says what kind of packet it is.
	Subject string `json:"subject"`
	// Rule is the ID of the rule that should decide; "" if none should.
	Rule string `json:"rule,omitempty"`
	// Want and Got say where the packet should arrive, and where it did.
	Want string `json:"want"`
	Got  string `json:"got"`
	OK   bool   `json:"ok"`
	// Consequence says what is so for traffic of this kind, if it is not as it should be.
	Consequence string `json:"consequence,omitempty"`
	// Unproven says why the packet could not be sent.
	Unproven string        `json:"unproven,omitempty"`
	Took     time.Duration `json:"took_ns"`

	want, got fate
	by        string // the interface that it passed
}

// fate is where a packet ends up, as rules and packets have it in common.
type fate struct {
	end  iptables.End
	port uint16 // that it was captured for
}

// wanted is what the rules should do.
func wanted(e iptables.Explanation) fate {
	if e.End == iptables.Redirected {
		return fate{e.End, e.Port}
	}
	return fate{end: e.End}
}

// seen is what became of the packet.
func seen(p iptables.Packet, a packets.Arrival) fate {
	switch {
	case a.Where == packets.Nowhere && errors.Is(a.Err, refused):
		return fate{end: iptables.Refused}
	case a.Where == packets.Nowhere:
		return fate{end: iptables.Dropped}
	case a.Transparent:
		return fate{end: iptables.Transparent}
	case a.At == p.To:
		return fate{end: iptables.Passes}
	}
	return fate{iptables.Redirected, a.At.Port()}
}

// same tells whether what was seen is what is wanted. Who refuses a datagram says so to nobody.
func same(p iptables.Packet, want, got fate) bool {
	if want.end == iptables.Refused && p.Protocol == iptables.UDP {
		return got.end == iptables.Refused || got.end == iptables.Dropped
	}
	return want == got
}

// judge compares what the rules should do with a packet with what became of it.
func judge(s sample, e iptables.Explanation, a packets.Arrival) Proof {
	a.Transparent = a.Transparent && s.Mark == 0 // a mark that it was sent with says nothing of where it was led
	want, got := wanted(e), seen(s.Packet, a)
	p := Proof{Subject: s.subject(), Want: want.words(s, ""), Got: got.words(s, a.String()), Took: a.Took, want: want, got: got, by: s.by}
	if e.Decision != nil {
		p.Rule = e.Decision.ID
	}
	for _, unseen := range []error{packets.ErrNotPermitted, packets.ErrNoSuchFamily, packets.ErrHeld, packets.ErrNoRoute, packets.ErrBroadcast, packets.ErrNoPassage} {
		if errors.Is(a.Err, unseen) {
			p.Got, p.Unproven = "", a.Err.Error()
			return p
		}
	}
	switch p.OK = same(s.Packet, want, got); {
	case p.OK && a.Unanswered:
		p.OK, p.Consequence = false, p.Subject+" goes where it should, and gets no answer: what the agent answers is not known for one (another zone of connection tracking)"
	case p.OK && a.Stranger:
		p.OK, p.Consequence = false, p.Subject+" goes where it should, and its answer is not known for one: a firewall may drop it (another zone of connection tracking)"
	case !p.OK:
		p.Consequence = p.Subject + " " + consequence(p.Rule, want, got)
		if a.Err != nil && got.end != iptables.Refused && (want.end == iptables.Redirected || !errors.Is(a.Err, packets.ErrNoAddress)) {
			p.Consequence += ": " + a.Err.Error()
		}
	}
	return p
}

func (f fate) words(s sample, seen string) string {
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

func consequence(rule string, want, got fate) string {
	captured := func(f fate) bool { return f.end == iptables.Redirected || f.end == iptables.Transparent }
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

func (f fate) name() string {
	if f.end == iptables.Transparent {
		return "the transparent proxy"
	}
	return fmt.Sprintf("port %d", f.port)
}
