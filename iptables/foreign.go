package iptables

import (
	"encoding/binary"
	"fmt"
	"net/netip"
)

// ForeignChain is a chain of another program. Packets of the namespace traverse it.
type ForeignChain struct {
	Table    string // family and name: "ip nat"
	Name     string
	Hook     string
	Priority int
	// Rules is the number of rules in the chain. Drops reports whether the policy of the chain is drop.
	Rules int
	Drops bool
	// NamedDestinations lists the destinations that the rules of the table match.
	NamedDestinations []NamedDestination
}

// NamedDestination is a destination that a rule matches. A zero field is not a condition.
type NamedDestination struct {
	Port    uint16
	Address netip.Addr
}

// PortsOfExtension returns the destination ports in the binary data of an iptables match extension; of a range, only the
// first port. It supports tcp, udp and multiport (struct xt_tcp, xt_udp, xt_multiport_v1).
func PortsOfExtension(match string, data []byte) (all []uint16) {
	port := func(i int) uint16 { return binary.NativeEndian.Uint16(data[i:]) }
	switch {
	case (match == "tcp" || match == "udp") && len(data) >= 8: // the first four bytes are the range of source ports
		if first, last := port(4), port(6); first != 0 || last != 65535 {
			all = append(all, first)
		}
	case match == "multiport" && len(data) >= 48 && data[0] != 0: // flag 0 selects source ports
		const ports, ranges, maxPorts = 2, 32, 15
		for i := 0; i < min(int(data[1]), maxPorts); i++ {
			if i == 0 || data[ranges+i-1] == 0 { // otherwise the entry is the end of a range
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
		rules += " and the policy drop"
	}
	return fmt.Sprintf("chain %s of table %s (hook %s, priority %d) has %s", c.Name, c.Table, c.Hook, c.Priority, rules)
}
