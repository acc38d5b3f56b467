package trace

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/pilotfish-mesh/pilotfish/iptables"
)

// Attributes of a logged packet (linux/netfilter/nfnetlink_log.h).
const (
	logMark    = 2
	logIn      = 4
	logOut     = 5
	logPayload = 9
	logPrefix  = 10
)

// logged is one log message of iptables-legacy. It has no packet ID, so it is matched by the packet's headers.
type logged struct {
	at      legacyPlace
	mark    uint32
	headers headers
	heard   time.Time
}

// legacyPlace identifies a rule of iptables-legacy.
type legacyPlace struct {
	family       iptables.Families
	table, chain string
	number       int
}

// decodeLog parses a message: nfgenmsg and attributes.
func decodeLog(data []byte) (l logged, ok bool) {
	if len(data) < 4 {
		return l, false
	}
	d, err := attributes(data[4:])
	if err != nil {
		return l, false
	}
	var packet []byte
	var prefix string
	for d.Next() {
		switch d.Type() {
		case logMark:
			l.mark = d.Uint32()
		case logPayload:
			packet = d.Bytes()
		case logPrefix:
			prefix = d.String()
		}
	}
	l.headers = packetHeaders(packet)
	l.at, ok = parsePrefix(prefix)
	l.at.family = iptables.IPv4
	if l.headers.from.Addr().Is6() {
		l.at.family = iptables.IPv6
	}
	return l, ok && l.headers.known && d.Err() == nil
}

// parsePrefix parses "TRACE: nat:ISTIO_OUTPUT:rule:5 ". The third field can also be "return" or "policy", even for
// rules without a condition, so only the number is used.
func parsePrefix(s string) (at legacyPlace, ok bool) {
	rest, ok := strings.CutPrefix(strings.TrimSpace(s), "TRACE: ")
	parts := strings.Split(rest, ":")
	if !ok || len(parts) < 4 {
		return at, false
	}
	last := len(parts) - 1
	at.table, at.chain = parts[0], strings.Join(parts[1:last-1], ":")
	number, err := strconv.Atoi(parts[last])
	at.number = number
	return at, err == nil
}

// packetHeaders parses a packet that starts with its network header.
func packetHeaders(packet []byte) headers {
	if len(packet) < 20 {
		return headers{}
	}
	size := 40
	if packet[0]>>4 == 4 {
		size = int(packet[0]&15) * 4
	}
	return decodeHeaders(0, packet[:min(size, len(packet))], packet[min(size, len(packet)):])
}

// legacyNames returns the rules by place.
func legacyNames(rules []iptables.PlacedRule) map[legacyPlace]iptables.PlacedRule {
	names := map[legacyPlace]iptables.PlacedRule{}
	for _, r := range rules {
		names[legacyPlace{r.Family, r.Table, r.Chain, r.Number}] = r
	}
	return names
}

// maxWaiting limits the log messages of packets that are not known yet.
const maxWaiting = 1000

// addLog processes one log message. The trace message of its packet arrives through another socket, possibly later.
func (g *assembler) addLog(l logged) {
	l.heard = g.now()
	if !g.addToPacket(l) && len(g.waiting) < maxWaiting {
		g.waiting = append(g.waiting, l)
	}
}

// retryWaiting retries to match earlier log messages with packets.
func (g *assembler) retryWaiting() {
	left := g.waiting[:0]
	for _, l := range g.waiting {
		if !g.addToPacket(l) && g.now().Sub(l.heard) < quietPeriod {
			left = append(left, l)
		}
	}
	g.waiting = left
}

// addToPacket adds a log message to its packet. It returns false if the packet is not known.
func (g *assembler) addToPacket(l logged) bool {
	w := g.findByHeaders(l.headers)
	if w == nil {
		return false
	}
	w.last = g.now()
	w.seenHeaders[l.headers] = true
	if s, is := g.legacyStep(l); is && len(w.Steps) < maxSteps {
		w.addStep(s)
	}
	return true
}

// findByHeaders returns the most recent packet that had these headers. If there is none, it returns one with the same
// source and another destination, as redirection changes the destination.
func (g *assembler) findByHeaders(h headers) (of *packetTrace) {
	exact := false
	for _, w := range g.traces {
		same := w.seenHeaders[h]
		switch {
		case w.reported || !same && (exact || w.End != "" || w.From != h.from || w.protocol != h.protocol):
		case of == nil || same && !exact || w.Time.After(of.Time):
			of, exact = w, same
		}
	}
	return of
}

// legacyStep returns the step of the rule that the packet matched. It returns false at the end of a chain with policy
// ACCEPT.
func (g *assembler) legacyStep(l logged) (Step, bool) {
	r := g.legacy[l.at]
	s := Step{Table: l.at.table, Chain: l.at.chain, Mark: l.mark}
	switch own, ours := g.rules[r.Comment]; {
	case r.Policy:
		s.Rule, s.Foreign, s.Verdict = "the chain's policy", true, "drop"
		return s, r.Verdict == "drop"
	case ours:
		s.Table, s.Chain, s.Rule = string(own.chain.Table), own.chain.Name, r.Comment
		s.Verdict, s.Reason = own.rule.Verdict.String(), own.rule.Reason
	default:
		s.Rule = cmp.Or(r.Comment, fmt.Sprintf("rule %d", l.at.number))
		s.Foreign, s.Verdict = !strings.HasPrefix(r.Comment, "pilotfish "), cmp.Or(r.Verdict, "on")
	}
	return s, true
}
