package iptables

import (
	"fmt"
	"net/netip"
	"slices"
)

// End is what happens to a packet after the rules.
type End string

// The outcomes.
const (
	Passes      End = "passes"      // to its destination, without the proxy
	Redirected  End = "redirected"  // to Port of this namespace
	Transparent End = "transparent" // to the socket at Port of this namespace, with unchanged addresses
	Dropped     End = "dropped"
	Refused     End = "refused"
)

// Step is the evaluation of one rule for the packet.
type Step struct {
	Table Table  `json:"table"`
	Chain string `json:"chain"`
	Rule  *Rule  `json:"rule"`
	// Missed describes the first condition that the packet does not meet; "" if the rule matches.
	Missed string `json:"missed,omitempty"`
}

// Explanation describes what the rules do with a packet, and why.
type Explanation struct {
	End  End    `json:"end"`
	Port uint16 `json:"port,omitempty"`
	// Decision is the rule that determines the outcome; nil if no rule does.
	Decision *Rule  `json:"decision,omitempty"`
	Zone     uint16 `json:"zone,omitempty"` // conntrack zone; 0 is the default zone
	Mark     uint32 `json:"mark,omitempty"` // the packet's mark after all rules
	Steps    []Step `json:"steps"`
	// Why explains the outcome in one or two sentences.
	Why string `json:"why"`
}

// Explain simulates the kernel's evaluation of the rules for the packet.
func Explain(rules *RuleSet, p Packet) Explanation {
	w := walk{rules: rules, index: newIndex(rules), packet: p}
	w.run()
	w.e.Mark = w.packet.Mark
	w.e.Why = w.explainDecision()
	return w.e
}

// rulePosition is a position in the rules: a chain and a rule in it.
type rulePosition struct {
	chain *Chain
	rule  *Rule
}

// walk simulates the path of one packet through the rules. It modifies its own copy of the packet.
type walk struct {
	rules  *RuleSet
	index  index
	packet Packet
	p      *Packet // points to packet
	e      Explanation
	ended  bool
	quiet  bool // do not record steps
	// left contains the rules by which the packet left chains. callers is the stack of the rules that jumped to the
	// current chain.
	left    []rulePosition
	callers []*Rule
}

// index finds chains by table and hook, or by table and name.
type index map[indexKey][]*Chain

type indexKey struct {
	table Table
	hook  Hook   // of base chains
	name  string // of chains that are not base chains
}

func newIndex(rules *RuleSet) index {
	x := make(index, len(rules.Chains))
	for i := range rules.Chains {
		c := &rules.Chains[i]
		key := indexKey{c.Table, c.Hook, ""}
		if c.Hook == "" {
			key.name = c.Name
		}
		x[key] = append(x[key], c)
	}
	return x
}

func (w *walk) run() {
	w.p = &w.packet
	w.e.End = Passes
	if w.rules.Families&w.p.Family() == 0 {
		return
	}
	if w.p.Direction == Inbound {
		w.hooks(Prerouting, Raw, Mangle, NAT)
		if w.p.Forwarded {
			w.hooks(Forward, Filter)
			return
		}
		w.hooks(Input, Filter)
		return
	}
	w.hooks(Output, Raw, Mangle, NAT, Filter)
	if w.p.Interface == loopback {
		// A packet that is sent on lo is also received on it. It is then already tracked and translated, so it does not
		// traverse raw and nat again.
		w.p.UID, w.p.GID = nil, nil
		w.hooks(Prerouting, Mangle)
		w.hooks(Input, Filter)
	}
}

func (w *walk) hooks(h Hook, tables ...Table) {
	for _, t := range tables {
		if w.ended || t == NAT && w.p.state() != New {
			continue
		}
		for _, c := range w.index[indexKey{t, h, ""}] {
			w.chain(c, h, 0)
		}
	}
}

// maxDepth limits nested jumps, so that the simulation of a rule set with circular jumps ends. The kernel rejects such
// sets.
const maxDepth = 16

// chain evaluates the rules of a chain. It returns true if the evaluation of the table continues after the chain.
func (w *walk) chain(c *Chain, h Hook, depth int) bool {
	for i := range c.Rules {
		r := &c.Rules[i]
		missed := r.Match.misses(w.p, h, w.rules.Families)
		if !w.quiet {
			w.e.Steps = append(w.e.Steps, Step{Table: c.Table, Chain: c.Name, Rule: r, Missed: missed})
		}
		if missed != "" {
			continue
		}
		switch on, returned := w.verdict(c, r, h, depth); {
		case !on:
			return false
		case returned:
			w.left = append(w.left, rulePosition{c, r})
			return true
		}
	}
	return true
}

// verdict applies the verdict of a matching rule. on reports whether the evaluation of the table continues. returned
// reports whether the packet left the chain.
func (w *walk) verdict(c *Chain, r *Rule, h Hook, depth int) (on, returned bool) {
	v := &r.Verdict
	switch v.Action {
	case Return:
		return true, true
	case Accept:
		w.e.Decision = w.decider(c, r)
		return false, false
	case Drop:
		return w.end(c, r, Dropped)
	case Reject:
		return w.end(c, r, Refused)
	case Redirect:
		return w.end(c, r, Redirected)
	case TransparentProxy:
		w.p.Mark = w.p.Mark&^v.Mark.Mask | v.Mark.Value
		return w.end(c, r, Transparent)
	case SetMark:
		w.p.Mark = w.p.Mark&^v.Mark.Mask | v.Mark.Value
	case SaveMark:
		w.p.ConnMark = w.p.Mark
	case RestoreMark:
		w.p.Mark = w.p.ConnMark
	case Zone:
		if w.e.Zone == 0 {
			w.e.Zone = v.ZoneID
		}
	case Jump:
		return w.jump(c, r, h, depth), false
	}
	return true, false
}

func (w *walk) jump(c *Chain, r *Rule, h Hook, depth int) bool {
	to := w.index[indexKey{c.Table, "", r.Verdict.Chain}]
	if len(to) == 0 || depth == maxDepth {
		return true
	}
	w.callers = append(w.callers, r)
	on := w.chain(to[0], h, depth+1)
	w.callers = w.callers[:len(w.callers)-1]
	return on
}

// targets lists chains that only implement a decision. The rule that jumps to such a chain is the decision.
var targets = []string{chainRedirect, chainInRedirect, chainTProxy, chainDivert}

func (w *walk) end(c *Chain, r *Rule, end End) (bool, bool) {
	w.ended = true
	w.e.End, w.e.Port, w.e.Decision = end, r.Verdict.Port, w.decider(c, r)
	return false, false
}

// decider returns the rule that jumped to a target chain, or the rule itself if its chain is not a target.
func (w *walk) decider(c *Chain, r *Rule) *Rule {
	if slices.Contains(targets, c.Name) && len(w.callers) > 0 {
		return w.callers[len(w.callers)-1]
	}
	return r
}

// exitRule returns the RETURN rule by which a packet left our chains without being captured. If there are several, it
// prefers a rule of the nat table, because that table determines what happens to a connection.
func (w *walk) exitRule() *Rule {
	var last *Rule
	for _, s := range w.left {
		if s.chain.Table == NAT {
			return s.rule
		}
		if s.chain.Table == Mangle && s.chain.Name == chainInbound || s.chain.Table == Filter {
			last = s.rule
		}
	}
	return last
}

func (w *walk) explainDecision() string {
	family := "IPv4"
	if w.p.Family() == IPv6 {
		family = "IPv6"
	}
	if w.rules.Families&w.p.Family() == 0 {
		return fmt.Sprintf("It is delivered to %s and bypasses the proxy: %s is not captured.", w.p.To, family)
	}
	if w.e.End == Passes {
		if w.e.Decision == nil {
			w.e.Decision = w.exitRule()
		}
		if w.e.Decision == nil {
			return fmt.Sprintf("It is delivered to %s and bypasses the proxy: no rule captures it.", w.p.To)
		}
		return fmt.Sprintf("It is delivered to %s and bypasses the proxy: %s (%s).", w.p.To, w.e.Decision.Reason, w.e.Decision.ID)
	}
	return fmt.Sprintf("It %s: %s (%s).", w.e.describeEnd(), w.e.Decision.Reason, w.e.Decision.ID)
}

// describeEnd describes the outcome. The text completes a sentence that begins with "It".
func (e *Explanation) describeEnd() string {
	switch e.End {
	case Redirected:
		return fmt.Sprintf("is redirected to port %d of this pod", e.Port)
	case Transparent:
		return fmt.Sprintf("is delivered to port %d of this pod with unchanged addresses", e.Port)
	case Dropped:
		return "is dropped"
	case Refused:
		return "is rejected"
	}
	return "passes"
}

// IsLocal reports whether a is a loopback address or one of the namespace's addresses (own). Packets to such an address
// are sent through lo.
func IsLocal(a netip.Addr, own []netip.Addr) bool {
	a = a.Unmap()
	return a.IsLoopback() || slices.Contains(own, a)
}
