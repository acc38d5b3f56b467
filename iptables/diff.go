package iptables

import (
	"fmt"
	"slices"
	"strings"
)

// DifferenceKind classifies a difference between the installed rules and the wanted ones.
type DifferenceKind string

// The kinds of differences.
const (
	Missing DifferenceKind = "missing"
	Extra   DifferenceKind = "extra"
	Changed DifferenceKind = "changed"
	Moved   DifferenceKind = "moved"   // the rule is at another position of its chain
	Foreign DifferenceKind = "foreign" // a rule in our chains that the model cannot express, from another program
)

// Difference is one difference between the wanted and the installed rules.
type Difference struct {
	Kind  DifferenceKind `json:"kind"`
	Table Table          `json:"table,omitempty"`
	Chain string         `json:"chain,omitempty"`
	// What describes the difference in one sentence, with the rule's ID.
	What string `json:"what"`
	// Consequence describes the effect on packets; "" if no packet is affected.
	Consequence string `json:"consequence,omitempty"`
}

func (d Difference) String() string {
	if d.Consequence == "" {
		return d.What + "; no packet is affected"
	}
	return d.What + ": " + d.Consequence
}

// Diff compares the installed rules with the wanted ones, including their order. To determine the consequence of a
// difference, it simulates packets under the wanted rules with only that difference applied.
func Diff(want *RuleSet, got *Installed) []Difference {
	if got == nil || got.Rules == nil {
		return []Difference{{Kind: Missing, What: "no rules are installed", Consequence: consequence(want, &RuleSet{Families: want.Families}, makeSamples(sampledRules(want)))}}
	}
	d := differ{want: Canonical(want), got: Canonical(got.Rules)}
	d.chains()
	d.routing()
	for _, text := range got.Strange {
		d.found = append(d.found, Difference{Kind: Foreign, What: "our chains contain a rule of another program: " + text,
			Consequence: "the rule may change where packets are delivered"})
	}
	return d.found
}

type differ struct {
	want, got *RuleSet
	packets   []Packet
	outcomes  []outcome // outcomes of the packets under the wanted rules
	found     []Difference
}

func (d *differ) chains() {
	for _, c := range d.want.Chains {
		other, _ := findChain(d.got, c.Table, c.Name)
		d.chain(c, other)
	}
	for _, c := range d.got.Chains {
		if _, ok := findChain(d.want, c.Table, c.Name); !ok {
			d.chain(Chain{Table: c.Table, Name: c.Name, Hook: c.Hook}, c)
		}
	}
}

func findChain(r *RuleSet, t Table, name string) (Chain, bool) {
	for _, c := range r.Chains {
		if c.Table == t && c.Name == name {
			return c, true
		}
	}
	return Chain{Table: t, Name: name}, false
}

// chain appends the differences between two versions of one chain to d.found.
func (d *differ) chain(want, got Chain) {
	lines := align(want.Rules, got.Rules)
	for i := range lines {
		l := &lines[i]
		if l.isMatched() || l.reported {
			continue
		}
		diff := Difference{Kind: Missing, Table: want.Table, Chain: want.Name}
		apply := []int{i}
		other := counterpart(lines, i)
		if other >= 0 && l.text == lines[other].text && isOrderIrrelevant(lines[i+1:other], l.rule().Match.family()) {
			lines[other].reported = true
			continue
		}
		switch {
		case other >= 0 && l.text == lines[other].text:
			diff.Kind, diff.What = Moved, "the rule "+name(l.rule())+" is at another position of its chain"
			apply, lines[other].reported = append(apply, other), true
		case other >= 0:
			old, now := l.rule(), lines[other].rule()
			if l.want == nil {
				old, now = now, old
			}
			diff.Kind, diff.What = Changed, fmt.Sprintf("the rule %s is %q instead of %q", name(old), now, old)
			apply, lines[other].reported = append(apply, other), true
		case l.want == nil:
			diff.Kind, diff.What = Extra, "the rule "+name(l.got)+" is unexpected"
		default:
			diff.What = "the rule " + name(l.want) + " is missing"
		}
		diff.Consequence = d.consequence(want, lines, apply)
		d.found = append(d.found, diff)
	}
}

// isOrderIrrelevant reports whether a rule of one address family has the same effect before and after lines. It has if
// all rules in lines that both chains have are for the other family.
func isOrderIrrelevant(lines []line, family Families) bool {
	return family != 0 && !slices.ContainsFunc(lines, func(l line) bool {
		of := l.rule().Match.family()
		return l.isMatched() && (of == 0 || of == family)
	})
}

func name(r *Rule) string {
	if r.ID == "" {
		return fmt.Sprintf("%q", r)
	}
	return r.ID
}

// line is one row of the alignment of two chains. One of its two rules may be nil.
type line struct {
	want, got *Rule
	text      string // the rule's conditions and verdict, without its ID
	reported  bool
}

func (l *line) isMatched() bool { return l.want != nil && l.got != nil }

func (l *line) rule() *Rule {
	if l.want != nil {
		return l.want
	}
	return l.got
}

// counterpart returns the index of a later line whose rule is only in the other chain, for comparison with the rule in
// line i. It prefers an equal rule to a rule with the same ID. It returns -1 if there is neither.
func counterpart(lines []line, i int) int {
	byName := -1
	for j := i + 1; j < len(lines); j++ {
		a, b := &lines[i], &lines[j]
		if b.reported || b.isMatched() || (a.want == nil) == (b.want == nil) {
			continue
		}
		if a.text == b.text {
			return j
		}
		if byName < 0 && a.rule().ID != "" && a.rule().ID == b.rule().ID {
			byName = j
		}
	}
	return byName
}

// align aligns two chains so that as many equal rules as possible share a line.
func align(want, got []Rule) []line {
	a, b := ruleTexts(want), ruleTexts(got)
	meets := commonSubsequence(a, b)
	var lines []line
	j := 0
	for i := range a {
		for meets[i] >= 0 && j < meets[i] {
			lines = append(lines, line{got: &got[j], text: b[j]})
			j++
		}
		l := line{want: &want[i], text: a[i]}
		if meets[i] >= 0 {
			l.got = &got[j]
			j++
		}
		lines = append(lines, l)
	}
	for ; j < len(b); j++ {
		lines = append(lines, line{got: &got[j], text: b[j]})
	}
	return lines
}

func ruleTexts(rules []Rule) []string {
	texts := make([]string, len(rules))
	for i := range rules {
		texts[i] = rules[i].String()
	}
	return texts
}

// consequence describes the effect on packets if a chain differs only in these lines (indexes in apply).
func (d *differ) consequence(c Chain, lines []line, apply []int) string {
	packets, want := d.packets, d.outcomes
	switch {
	case d.isLong() && len(d.found) >= maxWorkedOut:
		return fmt.Sprintf("the effect on packets was not determined, because %d other differences precede this one", len(d.found))
	case d.isLong():
		packets = makeSamples(truncateChains(d.want), truncateChains(d.got), selectRules(c, lines, apply))
		want = outcomes(d.want, packets)
	case packets == nil:
		packets = makeSamples(d.want, d.got)
		want = outcomes(d.want, packets)
		d.packets, d.outcomes = packets, want
	}
	changed := c
	changed.Rules = nil
	for i, l := range lines {
		r := l.want
		if slices.Contains(apply, i) {
			r = l.got
		}
		if r != nil {
			changed.Rules = append(changed.Rules, *r)
		}
	}
	damaged := *d.want
	damaged.Chains = slices.DeleteFunc(slices.Clone(d.want.Chains), func(o Chain) bool { return o.Table == c.Table && o.Name == c.Name })
	damaged.Chains = append(damaged.Chains, changed)
	return describeEffects(packets, want, outcomes(&damaged, packets))
}

func consequence(want, got *RuleSet, packets []Packet) string {
	return describeEffects(packets, outcomes(want, packets), outcomes(got, packets))
}

func (d *differ) routing() {
	want, got := d.want.Routing, d.got.Routing
	if want == nil {
		want = &Routing{}
	}
	if got == nil {
		got = &Routing{}
	}
	if want.Mark != got.Mark || want.Table != got.Table || want.Priority != got.Priority {
		d.routes(want, got)
	}
	for _, a := range want.LoopbackAddresses {
		if !slices.Contains(got.LoopbackAddresses, a) {
			d.found = append(d.found, Difference{Kind: Missing, What: "the address " + a.String() + " is missing on lo",
				Consequence: "inbound IPv6 connections that Envoy forwards to the application would fail"})
		}
	}
}

func (d *differ) routes(want, got *Routing) {
	diff := Difference{Kind: Changed, What: fmt.Sprintf("the routing of marked packets uses mark %d, table %d, rule priority %d instead of mark %d, table %d, rule priority %d",
		got.Mark, got.Table, got.Priority, want.Mark, want.Table, want.Priority),
		Consequence: "the application's replies on inbound connections would bypass the proxy"}
	switch {
	case got.Mark == 0:
		diff.Kind, diff.What = Missing, fmt.Sprintf("the policy rule or the route for packets marked %d is missing", want.Mark)
	case want.Mark == 0:
		diff.Kind, diff.What = Extra, fmt.Sprintf("the routing of packets marked %d is unexpected", got.Mark)
		diff.Consequence = ""
	}
	d.found = append(d.found, diff)
}

// Summary returns the differences as text, one per line.
func Summary(differences []Difference) string {
	lines := make([]string, len(differences))
	for i, d := range differences {
		lines[i] = d.String()
	}
	return strings.Join(lines, "\n")
}
