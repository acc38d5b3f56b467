package trace

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pilotfish-mesh/pilotfish/iptables"
)

// Names of the nftables table that enables tracing, and of its chains.
const (
	traceTable  = "pilotfish_trace"
	chainSent   = "sent"
	chainCame   = "came"
	chainArrive = "arrives"
	chainLeave  = "leaves"
)

// quietPeriod is the time without messages after which a packet's trace is complete.
const quietPeriod = 50 * time.Millisecond

// Limits of the number of packets whose traces are in progress, and of the steps per packet.
const (
	maxTraces = 1000
	maxSteps  = 200
)

// ruleKey identifies a rule within the kernel.
type ruleKey struct {
	family       byte
	table, chain string
	handle       uint64
}

// assembler groups the kernel's trace messages by packet.
type assembler struct {
	names      map[ruleKey]string     // rule comments
	rules      map[string]ruleInChain // our rules by ID
	interfaces func(index uint32) string
	traces     map[uint32]*packetTrace
	now        func() time.Time
}

type ruleInChain struct {
	rule  *iptables.Rule
	chain *iptables.Chain
}

// packetTrace is a packet whose trace is in progress.
type packetTrace struct {
	Packet
	last time.Time
	// looped contains the headers of a packet that was sent on lo, until the packet is received on lo.
	looped   headers
	reported bool
}

func newAssembler(rules *iptables.RuleSet, names map[ruleKey]string, interfaces func(uint32) string, now func() time.Time) *assembler {
	g := &assembler{names: names, rules: map[string]ruleInChain{}, interfaces: interfaces, traces: map[uint32]*packetTrace{}, now: now}
	if rules != nil {
		for i := range rules.Chains {
			c := &rules.Chains[i]
			for j := range c.Rules {
				g.rules[c.Rules[j].ID] = ruleInChain{&c.Rules[j], c}
			}
		}
	}
	return g
}

// addMessage adds a trace message to the trace of its packet.
func (g *assembler) addMessage(m message) {
	w := g.findOrCreate(m)
	if w == nil {
		return
	}
	w.last = g.now()
	switch {
	case m.table == traceTable && m.headers.known:
		w.recordEnd(m, g.interfaces)
	case m.table == traceTable || m.handle == 0 && m.kind != kindPolicy: // not a step, but a message of our trace rules or of the end of a chain
	case m.kind == kindRule && len(w.Steps) < maxSteps:
		w.addStep(g.ruleStep(m))
	case m.kind == kindPolicy && m.policy == verdictDrop:
		w.addStep(Step{Table: m.table, Chain: m.chain, Rule: "policy of the chain", Foreign: true, Verdict: "drop", Mark: m.mark})
	}
}

// findOrCreate returns the packet of the message's trace ID, and creates it if necessary. It returns nil if the message has
// no packet headers or maxTraces is reached.
func (g *assembler) findOrCreate(m message) *packetTrace {
	if w := g.traces[m.id]; w != nil {
		return w
	}
	if !m.headers.known || len(g.traces) >= maxTraces {
		return nil
	}
	// When a packet that was sent on lo is received there, it has a new trace ID. It is identified by its headers.
	for _, w := range g.traces {
		if m.in != 0 && w.looped == m.headers {
			w.looped = headers{}
			g.traces[m.id] = w
			return w
		}
	}
	w := &packetTrace{Packet: Packet{Time: g.now(), Protocol: protocolName(m.headers.protocol), From: m.headers.from, To: m.headers.to}}
	w.Direction, w.Interface = iptables.Outbound, g.interfaces(m.out)
	if m.out == 0 {
		w.Direction, w.Interface = iptables.Inbound, g.interfaces(m.in)
	}
	g.traces[m.id] = w
	return w
}

func (w *packetTrace) addStep(s Step) {
	w.Steps = append(w.Steps, s)
	if s.Verdict == "drop" {
		w.End = "dropped by " + s.Rule
	}
}

// recordEnd records where the packet is delivered. The message contains the addresses after NAT.
func (w *packetTrace) recordEnd(m message, interfaces func(uint32) string) {
	switch {
	case m.chain == chainArrive:
		w.End = fmt.Sprintf("arrives at %s in this namespace, through %s", m.headers.to, interfaces(m.in))
		if m.mark != 0 {
			w.End += fmt.Sprintf(", with mark %d", m.mark)
		}
	case m.chain == chainLeave && interfaces(m.out) == "lo":
		w.looped = m.headers
	case m.chain == chainLeave:
		w.End = fmt.Sprintf("leaves through %s to %s", interfaces(m.out), m.headers.to)
	}
}

// ruleStep returns the step for a message about a matching rule. If the rule set contains the rule, the step has its ID,
// chain and reason from the rule set.
func (g *assembler) ruleStep(m message) Step {
	s := Step{Table: m.table, Chain: m.chain, Mark: m.mark, Verdict: verdictName(m)}
	id := g.names[ruleKey{m.family, m.table, m.chain, m.handle}]
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
	return "continue"
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

// removeFinished removes and returns the packets whose last message is at least quietPeriod before now, or all packets
// if all is set. They are in the order of their first message. The caller must have processed all messages that were
// received before now.
func (g *assembler) removeFinished(now time.Time, all bool) []Packet {
	var done []Packet
	for id, w := range g.traces {
		unfinished := "unknown: the kernel reported no further steps, because it dropped the packet without a rule, or messages were lost"
		if now.Sub(w.last) < quietPeriod {
			if !all {
				continue
			}
			unfinished = "unknown: the trace ended before the kernel reported further steps"
		}
		delete(g.traces, id)
		if !w.reported {
			w.reported = true
			w.End = cmp.Or(w.End, unfinished)
			done = append(done, w.Packet)
		}
	}
	slices.SortFunc(done, func(a, b Packet) int { return a.Time.Compare(b.Time) })
	return done
}
