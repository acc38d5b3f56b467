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

// logged is one thing that iptables-legacy says of a packet. It does not say which one, so that the headers have to do.
type logged struct {
	at      legacyPlace
	mark    uint32
	headers headers
	heard   time.Time
}

// legacyPlace is where a rule of iptables-legacy is.
type legacyPlace struct {
	family       iptables.Families
	table, chain string
	number       int
}

// decodeLog reads a message: its nfgenmsg, and attributes.
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
	l.headers = headersOf(packet)
	l.at, ok = parsePrefix(prefix)
	l.at.family = iptables.IPv4
	if l.headers.from.Addr().Is6() {
		l.at.family = iptables.IPv6
	}
	return l, ok && l.headers.known && d.Err() == nil
}

// parsePrefix reads "TRACE: nat:ISTIO_OUTPUT:rule:5 ". What stands for "rule" is "return" or "policy" for rules without a
// condition too; the number tells.
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

// headersOf reads a packet from its network header on.
func headersOf(packet []byte) headers {
	if len(packet) < 20 {
		return headers{}
	}
	size := 40
	if packet[0]>>4 == 4 {
		size = int(packet[0]&15) * 4
	}
	return decodeHeaders(0, packet[:min(size, len(packet))], packet[min(size, len(packet)):])
}

// legacyNames are the rules by their places.
func legacyNames(rules []iptables.PlacedRule) map[legacyPlace]iptables.PlacedRule {
	names := map[legacyPlace]iptables.PlacedRule{}
	for _, r := range rules {
		names[legacyPlace{r.Family, r.Table, r.Chain, r.Number}] = r
	}
	return names
}

// maxWaiting bounds what was logged of packets that are not known yet.
const maxWaiting = 1000

// hearLog takes one thing that was logged. The kernel's trace of the packet, which comes another way, may be later.
func (g *gatherer) hearLog(l logged) {
	l.heard = g.now()
	if !g.join(l) && len(g.waiting) < maxWaiting {
		g.waiting = append(g.waiting, l)
	}
}

// joinWaiting looks for the packets of what was logged before.
func (g *gatherer) joinWaiting() {
	left := g.waiting[:0]
	for _, l := range g.waiting {
		if !g.join(l) && g.now().Sub(l.heard) < quiet {
			left = append(left, l)
		}
	}
	g.waiting = left
}

// join adds what was logged to the way of its packet.
func (g *gatherer) join(l logged) bool {
	w := g.whose(l.headers)
	if w == nil {
		return false
	}
	w.last = g.now()
	w.had[l.headers] = true
	if s, is := g.legacyStep(l); is && len(w.Steps) < maxSteps {
		w.step(s)
	}
	return true
}

// whose is the way of the youngest packet that had these headers; or that has another destination, as one has that was
// redirected.
func (g *gatherer) whose(h headers) (of *way) {
	exact := false
	for _, w := range g.ways {
		same := w.had[h]
		switch {
		case w.told || !same && (exact || w.End != "" || w.From != h.from || w.protocol != h.protocol):
		case of == nil || same && !exact || w.Time.After(of.Time):
			of, exact = w, same
		}
	}
	return of
}

// legacyStep is the rule that the packet met; none if it came to the end of a chain that lets it go on.
func (g *gatherer) legacyStep(l logged) (Step, bool) {
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
