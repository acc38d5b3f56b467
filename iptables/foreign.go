package iptables

import (
	"encoding/binary"
	"fmt"
	"net/netip"
)

// ForeignChain is a chain of another program that packets of the namespace traverse.
type ForeignChain struct {
	Table    string // with its family: "ip nat"
	Name     string
	Hook     string
	Priority int
	// Rules is the number of rules in the chain. Drops reports that the chain's policy is to drop.
	Rules int
	Drops bool
	// NamedDestinations lists the destinations that rules of its table name.
	NamedDestinations []NamedDestination
}

// NamedDestination is a destination that a rule names; a zero value means that the rule does not name it.
type NamedDestination struct {
	Port    uint16
	Address netip.Addr
}

// PortsOfExtension returns the destination ports in the data of an iptables match, as the kernel stores it; for a
// range, the first port. It supports tcp and udp (struct xt_tcp, struct xt_udp) and multiport (struct xt_multiport_v1).
func PortsOfExtension(match string, data []byte) (all []uint16) {
	port := func(i int) uint16 { return binary.NativeEndian.Uint16(data[i:]) }
	switch {
	case (match == "tcp" || match == "udp") && len(data) >= 8: // two source ports precede them
		if first, last := port(4), port(6); first != 0 || last != 65535 {
			all = append(all, first)
		}
	case match == "multiport" && len(data) >= 48 && data[0] != 0: // 0 means source ports
		const ports, ranges, most = 2, 32, 15
		for i := 0; i < min(int(data[1]), most); i++ {
			if i == 0 || data[ranges+i-1] == 0 { // otherwise it is the end of a range
				all = append(all, port(ports+2*i))
			}
		}
	}
	return all
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
