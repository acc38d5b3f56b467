package trace

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pilotfish-mesh/pilotfish/iptables"
)

// Names of the trace table and its chains.
const (
	traceTable  = "pilotfish_trace"
	chainSent   = "sent"
	chainCame   = "came"
	chainArrive = "arrives"
	chainLeave  = "leaves"
)

// quietPeriod is the time without messages after which a packet's trace is complete.
const quietPeriod = 50 * time.Millisecond

// Limits of the packets in progress, and of the steps per packet.
const (
	maxTraces = 1000
	maxSteps  = 200
)

// ruleKey identifies a rule in the kernel.
type ruleKey struct {
	family       byte
	table, chain string
	handle       uint64
}

// assembler assembles the kernel's messages into packets.
type assembler struct {
	names      map[ruleKey]string     // rule comments
	rules      map[string]ruleInChain // our rules, by ID
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
	// looped has the headers with which the packet left through lo, until it arrives there.
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

// addMessage processes one trace message.
func (g *assembler) addMessage(m message) {
	w := g.findOrCreate(m)
	if w == nil {
		return
	}
	w.last = g.now()
	switch {
	case m.table == traceTable && m.headers.known:
		w.recordEnd(m, g.interfaces)
	case m.table == traceTable || m.handle == 0 && m.kind != kindPolicy: // the end of a chain
	case m.kind == kindRule && len(w.Steps) < maxSteps:
		w.addStep(g.ruleStep(m))
	case m.kind == kindPolicy && m.policy == verdictDrop:
		w.addStep(Step{Table: m.table, Chain: m.chain, Rule: "the chain's policy", Foreign: true, Verdict: "drop", Mark: m.mark})
	}
}

// findOrCreate returns the packet that the message refers to, and creates it if necessary. It returns nil for packets
// that are not followed.
func (g *assembler) findOrCreate(m message) *packetTrace {
	if w := g.traces[m.id]; w != nil {
		return w
	}
	if !m.headers.known || len(g.traces) >= maxTraces {
		return nil
	}
	// A packet that arrives through lo has another trace ID than when it left.
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

// recordEnd records where the packet ends up. Its addresses are those after all translation.
func (w *packetTrace) recordEnd(m message, interfaces func(uint32) string) {
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

// ruleStep returns the step of a rule. For our own rules it uses the names of the rule set.
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

// removeFinished removes and returns the packets without messages for quietPeriod, or all packets, in the order of
// their arrival. The caller must have processed all messages received before the time by.
func (g *assembler) removeFinished(by time.Time, all bool) []Packet {
	var done []Packet
	for id, w := range g.traces {
		unfinished := "the kernel reports no further steps: something other than a rule consumed the packet, or it was lost"
		if by.Sub(w.last) < quietPeriod {
			if !all {
				continue
			}
			unfinished = "the trace ended before the kernel reported further steps"
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
