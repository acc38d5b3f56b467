package iptables

import (
	"fmt"
	"net/netip"
)

// ForeignChain is a chain of somebody else's that packets of the namespace meet.
type ForeignChain struct {
	Table    string // with its family: "ip nat"
	Name     string
	Hook     string
	Priority int
	// Rules counts those of the chain. Drops says that it drops what none of them decides.
	Rules int
	Drops bool
	// Named is what rules of its table speak of.
	Named []Named
}

// Named is a destination that a rule names; zero values where it names none.
type Named struct {
	Port    uint16
	Address netip.Addr
}

func (c ForeignChain) String() string {
	rules := "1 rule"
	if c.Rules != 1 {
		rules = fmt.Sprintf("%d rules", c.Rules)
	}
	if c.Drops {
		rules += ", and the policy drop"
	}
	return fmt.Sprintf("chain %s of table %s (hook %s, priority %d) has %s", c.Name, c.Table, c.Hook, c.Priority, rules)
}
