package xtables

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/pilotfish-mesh/pilotfish/iptables"
)

// decodeTable decodes our part of a table to chains of the model. strange lists the rules that cannot be decoded.
func decodeTable(s *saved, family iptables.Families) (chains []iptables.Chain, strange []string) {
	if s == nil {
		return nil, nil
	}
	bases, others := map[string]iptables.Chain{}, []iptables.Chain(nil)
	for _, c := range s.chains {
		if !c.builtin {
			continue
		}
		base, called, odd := decodeBuiltin(s.table, c)
		strange = append(strange, odd...)
		for name, chain := range called {
			bases[name] = chain
		}
		if len(base.Rules) > 0 {
			others = append(others, base)
		}
	}
	for _, c := range s.chains {
		if !ours(c.name) || c.name == guardChain {
			continue
		}
		chain, called := bases[c.name]
		if !called {
			chain = iptables.Chain{Table: s.table, Name: modelName(c.name)}
		}
		rules, odd := decodeRules(s.table, c, family)
		strange = append(strange, odd...)
		chain.Rules = rules
		chains = append(chains, chain)
	}
	return append(others, chains...), strange
}

// decodeBuiltin decodes our jumps in a built-in chain. called contains our chains to which it jumps without a
// condition, with their base chains in the model. base contains the other jumps. strange lists jumps that cannot be
// decoded. It also lists rules of other programs before ours, because packets that match them may not reach our rules.
func decodeBuiltin(table iptables.Table, c savedChain) (base iptables.Chain, called map[string]iptables.Chain, strange []string) {
	base = iptables.Chain{Table: table, Name: c.name, Hook: iptables.Hook(c.name)}
	called = map[string]iptables.Chain{}
	var foreign []string
	for _, line := range c.rules {
		target := jumpTarget(line)
		if target == guardChain {
			continue
		}
		if !ours(target) {
			foreign = append(foreign, line)
			continue
		}
		for _, f := range foreign {
			strange = append(strange, fmt.Sprintf("%s %s: -A %s %s (rule of another program before ours)", table, c.name, c.name, f))
		}
		foreign = nil
		rule, err := decodeRule(line)
		model, ok := strings.CutPrefix(strings.TrimSuffix(rule.ID, madeMark), jumpComment)
		_, twice := called[target]
		switch {
		case err != nil || twice:
			strange = append(strange, fmt.Sprintf("%s: -A %s %s", table, c.name, line))
		case ok && reflect.DeepEqual(rule.Match, iptables.Match{}):
			called[target] = iptables.Chain{Table: table, Name: model, Hook: iptables.Hook(c.name)}
		default:
			base.Rules = append(base.Rules, rule)
		}
	}
	return base, called, strange
}

func decodeRules(table iptables.Table, c savedChain, family iptables.Families) (rules []iptables.Rule, strange []string) {
	for _, line := range c.rules {
		rule, err := decodeRule(line)
		if err != nil {
			strange = append(strange, fmt.Sprintf("%s: -A %s %s", table, c.name, line))
			continue
		}
		rules = append(rules, rule)
	}
	return joinRules(rules, family), strange
}

// joinRules joins adjacent rules that renderRule made from one rule of the model. The result contains the rule of the
// model in their place.
func joinRules(rules []iptables.Rule, family iptables.Families) []iptables.Rule {
	var out []iptables.Rule
	for len(rules) > 0 {
		n := 1
		for n < len(rules) && rules[0].ID != "" && rules[n].ID == rules[0].ID {
			n++
		}
		if one, ok := joinParts(rules[:n], family); ok {
			out = append(out, one)
		} else {
			out = append(out, rules[:n]...)
		}
		rules = rules[n:]
	}
	return out
}

// joinParts returns the rule of the model that renderRule renders as exactly these parts. It returns false if none exists.
func joinParts(parts []iptables.Rule, family iptables.Families) (iptables.Rule, bool) {
	one := parts[0]
	if len(parts) == 1 {
		return one, true
	}
	m := &one.Match
	for _, p := range parts[1:] {
		m.Source = unionOf(m.Source, p.Match.Source)
		m.Destination = unionOf(m.Destination, p.Match.Destination)
		m.SourcePorts = unionOf(m.SourcePorts, p.Match.SourcePorts)
		m.DestinationPorts = unionOf(m.DestinationPorts, p.Match.DestinationPorts)
		m.UIDs = unionOf(m.UIDs, p.Match.UIDs)
		m.GIDs = unionOf(m.GIDs, p.Match.GIDs)
	}
	lines, err := renderRule(one, family)
	if err != nil || len(lines) != len(parts) {
		return one, false
	}
	for i, line := range lines {
		if again, err := decodeRule(line); err != nil || !reflect.DeepEqual(again, parts[i]) {
			return one, false
		}
	}
	return one, true
}

// unionOf returns the union as a new list. It does not modify a, because a is compared later.
func unionOf[T comparable](a, b []T) []T {
	out := slices.Clone(a)
	for _, x := range b {
		if !slices.Contains(out, x) {
			out = append(out, x)
		}
	}
	return out
}

// mergeFamilies merges the chains of both families into one list of chains.
func mergeFamilies(v4, v6 []iptables.Chain) []iptables.Chain {
	var out []iptables.Chain
	taken := map[int]bool{}
	for _, c := range v4 {
		twin := slices.IndexFunc(v6, func(o iptables.Chain) bool { return o.Table == c.Table && o.Name == c.Name && o.Hook == c.Hook })
		if twin >= 0 {
			taken[twin] = true
			c.Rules = mergeRules(c.Rules, v6[twin].Rules)
		} else {
			c.Rules = mergeRules(c.Rules, nil)
		}
		out = append(out, c)
	}
	for i, c := range v6 {
		if !taken[i] {
			c.Rules = mergeRules(nil, c.Rules)
			out = append(out, c)
		}
	}
	return out
}

// mergeRules merges the rules of both families and preserves the order of both lists. A rule that is in both lists appears
// once in the result.
func mergeRules(v4, v6 []iptables.Rule) []iptables.Rule {
	var out []iptables.Rule
	for _, r := range v4 {
		twin := slices.IndexFunc(v6, func(o iptables.Rule) bool { return reflect.DeepEqual(o, r) })
		if twin < 0 {
			out = append(out, limitToFamily(r, iptables.IPv4))
			continue
		}
		for _, o := range v6[:twin] {
			out = append(out, limitToFamily(o, iptables.IPv6))
		}
		v6 = v6[twin+1:]
		out = append(out, r)
	}
	for _, o := range v6 {
		out = append(out, limitToFamily(o, iptables.IPv6))
	}
	return out
}

// limitToFamily limits a rule to one family. It changes nothing if the rule's addresses already have that effect.
func limitToFamily(r iptables.Rule, family iptables.Families) iptables.Rule {
	if len(r.Match.Source)+len(r.Match.Destination) == 0 {
		r.Match.Families = family
	}
	return r
}
