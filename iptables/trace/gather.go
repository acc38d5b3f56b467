package trace

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pilotfish-mesh/pilotfish/iptables"
)

// Chains of the table that traces.
const (
	traceTable  = "pilotfish_trace"
	chainSent   = "sent"
	chainCame   = "came"
	chainArrive = "arrives"
	chainLeave  = "leaves"
)

// quiet is how long nothing has to be said of a packet for its way to be over.
const quiet = 50 * time.Millisecond

// Bounds of what is kept.
const (
	maxWays  = 1000
	maxSteps = 200
)

// place is where a rule is in the kernel.
type place struct {
	family       byte
	table, chain string
	handle       uint64
}

// gatherer puts together what is said of each packet.
type gatherer struct {
	names      map[place]string // comments of rules
	rules      map[string]named // of ours, by ID
	interfaces func(index uint32) string
	ways       map[uint32]*way
	legacy     map[legacyPlace]iptables.PlacedRule
	waiting    []logged // of packets that nothing was heard of yet
	now        func() time.Time
}

type named struct {
	rule  *iptables.Rule
	chain *iptables.Chain
}

// way is what was said of one packet so far.
type way struct {
	Packet
	last time.Time
	// looped is what it had when it went out by lo, until it comes in there.
	looped headers
	had    map[headers]bool // all that it had so far
	// protocol is its number.
	protocol byte
	told     bool
}

func newGatherer(rules *iptables.RuleSet, names map[place]string, interfaces func(uint32) string, now func() time.Time) *gatherer {
	g := &gatherer{names: names, rules: map[string]named{}, interfaces: interfaces, ways: map[uint32]*way{}, now: now}
	if rules != nil {
		for i := range rules.Chains {
			c := &rules.Chains[i]
			for j := range c.Rules {
				g.rules[c.Rules[j].ID] = named{&c.Rules[j], c}
			}
		}
	}
	return g
}

// hear takes one message.
func (g *gatherer) hear(m message) {
	w := g.wayOf(m)
	if w == nil {
		return
	}
	w.last = g.now()
	if m.headers.known {
		w.had[m.headers] = true
	}
	switch {
	case m.table == traceTable && m.headers.known:
		w.arrive(m, g.interfaces)
	case m.table == traceTable || m.handle == 0 && m.kind != kindPolicy: // the end of a chain
	case m.kind == kindRule && len(w.Steps) < maxSteps:
		w.step(g.stepOf(m))
	case m.kind == kindPolicy && m.policy == verdictDrop:
		w.step(Step{Table: m.table, Chain: m.chain, Rule: "the chain's policy", Foreign: true, Verdict: "drop", Mark: m.mark})
	}
}

// wayOf is the way that the message is of; nil if it is of none that is followed.
func (g *gatherer) wayOf(m message) *way {
	if w := g.ways[m.id]; w != nil {
		return w
	}
	if !m.headers.known || len(g.ways) >= maxWays {
		return nil
	}
	// To the kernel what comes in by lo is another packet than what went out there.
	for _, w := range g.ways {
		if m.in != 0 && w.looped == m.headers {
			w.looped = headers{}
			g.ways[m.id] = w
			return w
		}
	}
	w := &way{had: map[headers]bool{}, protocol: m.headers.protocol, Packet: Packet{Time: g.now(), Protocol: protocolName(m.headers.protocol), From: m.headers.from, To: m.headers.to}}
	w.Way, w.Interface = iptables.Outbound, g.interfaces(m.out)
	if m.out == 0 {
		w.Way, w.Interface = iptables.Inbound, g.interfaces(m.in)
	}
	g.ways[m.id] = w
	return w
}

func (w *way) step(s Step) {
	w.Steps = append(w.Steps, s)
	if s.Verdict == "drop" {
		w.End = "dropped by " + s.Rule
	}
}

// arrive notes where the packet is at the end of its way through the namespace. The addresses are those after all
// translation.
func (w *way) arrive(m message, interfaces func(uint32) string) {
	switch {
	case m.chain == chainArrive:
		w.End = fmt.Sprintf("arrives at %s of this namespace, by %s", m.headers.to, interfaces(m.in))
		if m.mark != 0 {
			w.End += fmt.Sprintf(", with mark %d", m.mark)
		}
	case m.chain == chainLeave && interfaces(m.out) == "lo":
		w.looped = m.headers
	case m.chain == chainLeave:
		w.End = fmt.Sprintf("leaves by %s to %s", interfaces(m.out), m.headers.to)
	}
}

// stepOf says a rule in the words of the rule set, if it is one of ours.
func (g *gatherer) stepOf(m message) Step {
	s := Step{Table: m.table, Chain: m.chain, Mark: m.mark, Verdict: verdictName(m)}
	id := g.names[place{m.family, m.table, m.chain, m.handle}]
	if own, ok := g.rules[id]; ok {
		s.Table, s.Chain, s.Rule, s.Reason = string(own.chain.Table), own.chain.Name, id, own.rule.Reason
		if m.verdict != verdictDrop || own.rule.Verdict.Action == iptables.Drop {
			s.Verdict = own.rule.Verdict.String()
		}
		return s
	}
	s.Rule, s.Foreign = cmp.Or(id, fmt.Sprintf("rule %d", m.handle)), m.table != "pilotfish" && !strings.HasPrefix(id, "pilotfish ")
	return s
}

func verdictName(m message) string {
	switch m.verdict {
	case verdictDrop:
		return "drop"
	case verdictAccept:
		return "accept"
	case verdictJump, verdictGoto:
		return m.to
	case verdictReturn:
		return "return"
	}
	return "on"
}

func protocolName(n byte) string {
	switch n {
	case 6:
		return "tcp"
	case 17:
		return "udp"
	}
	return fmt.Sprintf("protocol %d", n)
}

// over gives the packets of which nothing was said for a while, up to a time, or all of them, in the order in which they came.
// What was said up to then has to have been heard.
func (g *gatherer) over(by time.Time, all bool) []Packet {
	var done []Packet
	for id, w := range g.ways {
		unfinished := "the kernel says no more of it: it was taken by what is not a rule, or lost"
		if by.Sub(w.last) < quiet {
			if !all {
				continue
			}
			unfinished = "the trace ended before more was heard of it"
		}
		delete(g.ways, id)
		if !w.told {
			w.told = true
			w.End = cmp.Or(w.End, unfinished)
			done = append(done, w.Packet)
		}
	}
	slices.SortFunc(done, func(a, b Packet) int { return a.Time.Compare(b.Time) })
	return done
}
