package iptables

import (
	"slices"
	"sort"
)

// Rule sets of more rules than manyRules are long: to walk a packet for each thing that any rule of them speaks of takes
// minutes. Of each chain, the first and last fewRules and what differs are spoken of then, and of the differences the first
// mostWorkedOut get their consequence.
const (
	manyRules     = 1500
	fewRules      = 12
	mostWorkedOut = 8
)

func ruleCount(r *RuleSet) (n int) {
	for _, c := range r.Chains {
		n += len(c.Rules)
	}
	return n
}

func (d *differ) long() bool { return max(ruleCount(d.want), ruleCount(d.got)) > manyRules }

// sampled is what of a rule set samples are made of.
func sampled(r *RuleSet) *RuleSet {
	if ruleCount(r) > manyRules {
		return ends(r)
	}
	return r
}

// ends has the first and last rules of each chain.
func ends(r *RuleSet) *RuleSet {
	short := *r
	short.Chains = slices.Clone(r.Chains)
	for i := range short.Chains {
		if c := &short.Chains[i]; len(c.Rules) > 2*fewRules {
			c.Rules = append(slices.Clone(c.Rules[:fewRules]), c.Rules[len(c.Rules)-fewRules:]...)
		}
	}
	return &short
}

// about has the rules of some lines alone.
func about(c Chain, lines []line, apply []int) *RuleSet {
	c.Rules = nil
	for _, i := range apply {
		for _, r := range []*Rule{lines[i].want, lines[i].got} {
			if r != nil {
				c.Rules = append(c.Rules, *r)
			}
		}
	}
	return &RuleSet{Chains: []Chain{c}}
}

// alike is for each text of a its place in b, or -1, such that the places rise and as many as can be have one: a longest
// common subsequence, found after Hunt and Szymanski as nearly all texts stand in a list once.
func alike(a, b []string) []int {
	meets := make([]int, len(a))
	for i := range meets {
		meets[i] = -1
	}
	first := 0
	for first < len(a) && first < len(b) && a[first] == b[first] {
		meets[first] = first
		first++
	}
	end, endB := len(a), len(b)
	for end > first && endB > first && a[end-1] == b[endB-1] {
		end, endB = end-1, endB-1
		meets[end] = endB
	}
	for last := longest(a[first:end], b[first:endB]); last != nil; last = last.before {
		meets[first+last.a] = first + last.b
	}
	return meets
}

// pair is a place of both lists where the same text stands, and those before it in a common subsequence.
type pair struct {
	a, b   int
	before *pair
}

func longest(a, b []string) *pair {
	places := map[string][]int{}
	for j := len(b) - 1; j >= 0; j-- {
		places[b[j]] = append(places[b[j]], j)
	}
	var tails []*pair // of the subsequences of each length, the one that ends first in b
	for i, text := range a {
		for _, j := range places[text] { // from the last, so that one text of a meets one of b
			n := sort.Search(len(tails), func(k int) bool { return tails[k].b >= j })
			p := &pair{a: i, b: j}
			if n > 0 {
				p.before = tails[n-1]
			}
			if n == len(tails) {
				tails = append(tails, p)
			} else if j < tails[n].b {
				tails[n] = p
			}
		}
	}
	if len(tails) == 0 {
		return nil
	}
	return tails[len(tails)-1]
}
