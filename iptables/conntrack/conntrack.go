// Package conntrack has the kernel forget decisions of former rules. It decides about NAT once for a connection, and keeps
// the decision while it remembers the connection: for seconds to minutes after its end, in which the same addresses and
// ports may be used again, and for questions by UDP as long as they come.
package conntrack

import (
	"reflect"

	"github.com/pilotfish-mesh/pilotfish/iptables"
)

// Stale is what is to be forgotten.
type Stale struct {
	// Ended are TCP connections that have ended, or were aborted. The kernel takes the first packet of a new one with the
	// same addresses and ports for one of these, if the other side aborted it.
	Ended bool
	// DNS is UDP to port 53: a resolver's socket would go on with where it went before.
	DNS bool
}

// After tells what is stale after a change of rules in canonical form; nil are no rules. Living connections go on as they are.
func After(before, after *iptables.RuleSet) Stale {
	return Stale{
		Ended: !reflect.DeepEqual(chains(before), chains(after)),
		DNS:   !reflect.DeepEqual(aboutUDP(before), aboutUDP(after)),
	}
}

// chains are what decides; routing is not.
func chains(rules *iptables.RuleSet) []iptables.Chain {
	if rules == nil {
		return nil
	}
	return rules.Chains
}

// aboutUDP are the rules that hold for UDP alone.
func aboutUDP(rules *iptables.RuleSet) (list []iptables.Rule) {
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

// Any says whether anything is stale.
func (s Stale) Any() bool { return s.Ended || s.DNS }
