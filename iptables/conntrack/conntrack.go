// Package conntrack deletes connection tracking entries with decisions of previous rules. The kernel decides about NAT
// once per connection. It retains the decision for seconds to minutes after the connection's end, when the same
// addresses and ports may be reused, and for UDP as long as packets arrive.
package conntrack

import (
	"reflect"

	"github.com/pilotfish-mesh/pilotfish/iptables"
)

// Stale selects the entries to delete.
type Stale struct {
	// Ended selects TCP connections that were closed or aborted. If the peer aborted one, the kernel assigns the first
	// packet of a new connection with the same addresses and ports to it.
	Ended bool
	// DNS selects UDP to port 53: packets of a resolver's socket would still be sent to the previous destination.
	DNS bool
}

// StaleAfter returns what is stale after a change of rules in canonical form; nil means no rules. Open connections are not
// affected.
func StaleAfter(before, after *iptables.RuleSet) Stale {
	return Stale{
		Ended: !reflect.DeepEqual(chains(before), chains(after)),
		DNS:   !reflect.DeepEqual(udpRules(before), udpRules(after)),
	}
}

// chains returns the chains, without routing.
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

// Any reports whether anything is stale.
func (s Stale) Any() bool { return s.Ended || s.DNS }
