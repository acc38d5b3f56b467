// Package conntrack deletes conntrack entries that contain NAT decisions of previous rules. The kernel decides about
// NAT once per connection. After a TCP connection is closed, its entry remains for seconds to minutes. A new connection
// with the same addresses and ports can match it. A UDP entry remains as long as packets arrive.
package conntrack

import (
	"reflect"

	"github.com/pilotfish-mesh/pilotfish/iptables"
)

// Stale specifies which entries to delete.
type Stale struct {
	// Ended selects entries of TCP connections that were closed or aborted. A new connection with the same addresses and
	// ports could match such an entry.
	Ended bool
	// DNS selects UDP entries to port 53. With such an entry, later queries from the same socket would still be sent to the
	// previous destination.
	DNS bool
}

// StaleAfter returns the stale entries after a change from the rules before to the rules after. Both are in canonical form;
// nil means no rules. Open TCP connections are never stale.
func StaleAfter(before, after *iptables.RuleSet) Stale {
	return Stale{
		Ended: !reflect.DeepEqual(chains(before), chains(after)),
		DNS:   !reflect.DeepEqual(udpRules(before), udpRules(after)),
	}
}

// chains returns the chains of rules, or nil if rules is nil.
func chains(rules *iptables.RuleSet) []iptables.Chain {
	if rules == nil {
		return nil
	}
	return rules.Chains
}

// udpRules returns the rules that match only UDP.
func udpRules(rules *iptables.RuleSet) (list []iptables.Rule) {
	if rules == nil {
		return nil
	}
	for _, c := range rules.Chains {
		for _, r := range c.Rules {
			if r.Match.Protocol == iptables.UDP {
				list = append(list, r)
			}
		}
	}
	return list
}

// Any reports whether s selects any entries.
func (s Stale) Any() bool { return s.Ended || s.DNS }
