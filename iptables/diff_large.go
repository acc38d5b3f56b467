package iptables

import (
	"slices"
	"sort"
)

// If a rule set has more than manyRules rules, a simulation of packets for every value in a rule would take minutes.
// Packets are then created only for differing rules, and for the first and last fewRules rules of each chain. A
// consequence is determined only for the first maxWorkedOut differences.
const (
	manyRules    = 1500
	fewRules     = 12
	maxWorkedOut = 8
)

func ruleCount(r *RuleSet) (n int) {
	for _, c := range r.Chains {
		n += len(c.Rules)
	}
	return n
}

func (d *differ) isLong() bool { return max(ruleCount(d.want), ruleCount(d.got)) > manyRules }

// sampledRules returns the rules for which sample packets are created. For a large set, these are the rules of
// truncateChains.
func sampledRules(r *RuleSet) *RuleSet {
	if ruleCount(r) > manyRules {
		return truncateChains(r)
	}
	return r
}

// truncateChains returns a rule set with only the first and last fewRules rules of each chain.
func truncateChains(r *RuleSet) *RuleSet {
	short := *r
	short.Chains = slices.Clone(r.Chains)
	for i := range short.Chains {
		if c := &short.Chains[i]; len(c.Rules) > 2*fewRules {
			c.Rules = append(slices.Clone(c.Rules[:fewRules]), c.Rules[len(c.Rules)-fewRules:]...)
		}
	}
	return &short
}

// selectRules returns a rule set that contains only the rules of the lines whose indexes are in apply.
func selectRules(c Chain, lines []line, apply []int) *RuleSet {
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

// commonSubsequence computes a longest common subsequence. For each text of a, it returns the index of the corresponding
// text of b, or -1. It uses the algorithm of Hunt and Szymanski, which is fast if most texts are unique.
func commonSubsequence(a, b []string) []int {
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
	for last := findLongestPairs(a[first:end], b[first:endB]); last != nil; last = last.before {
		meets[first+last.a] = first + last.b
	}
	return meets
}

// pair is one element of a common subsequence: the indexes of a text in both lists, and a link to the previous element.
type pair struct {
	a, b   int
	before *pair
}

func findLongestPairs(a, b []string) *pair {
	places := map[string][]int{}
	for j := len(b) - 1; j >= 0; j-- {
		places[b[j]] = append(places[b[j]], j)
	}
	var tails []*pair // for each length, the subsequence that ends first in b
	for i, text := range a {
		for _, j := range places[text] { // the last is first, so that each text of a is paired with at most one of b
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
