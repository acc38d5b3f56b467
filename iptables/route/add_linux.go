package route

import (
	"encoding/binary"
	"errors"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/pilotfish-mesh/pilotfish/iptables"
)

// missingRouting returns the changes that add the rule and the route of a family. The rule is first, as leftOver
// requires. The kernel returns an error if an object already exists. An equal route of another program is used. An
// equal rule of another program is not used: our rule, which has our protocol number, is added too. It remains if the
// other program removes its own.
func (k *session) missingRouting(want *iptables.Routing, f family) []change {
	what, rule := k.ruleChange(policyRule(want, f), f.name)
	out := []change{k.addUnlessPresent(what, rule.undo, func(k *session) error { return k.addRule(want, f) },
		func(k *session) error { return k.hasRule(want, f) })}
	what, route := k.routeChange(k.localRoute(want.Table, f), f.name)
	return append(out, k.addUnlessPresent(what, route.undo, func(k *session) error { return k.addRoute(want.Table, f) },
		func(k *session) error { return k.hasRoute(want.Table, f) }))
}

// addUnlessPresent returns a change that adds an object. If the object exists, the change calls same, which returns an
// error if the existing object differs from the wanted one. The undo function has an effect only if the change added
// the object.
func (k *session) addUnlessPresent(what string, undo func() error, add, same func(*session) error) change {
	added := false
	return change{"add " + what,
		func() error {
			return k.withConnection(func(k *session) error {
				err := add(k)
				added = err == nil
				if errors.Is(err, unix.EEXIST) {
					return same(k)
				}
				return err
			})
		},
		func() error {
			if !added {
				return nil
			}
			return undo()
		}}
}

// Attributes of a policy rule (linux/fib_rules.h).
const (
	rulePriority = 6
	ruleMark     = 10
	ruleSuppress = 14 // the rule ignores routes whose prefix length is at most this; by default, it uses all routes
	ruleTable    = 15
	ruleMask     = 16
)

// toTable is the action FR_ACT_TO_TBL of a policy rule (linux/fib_rules.h).
const toTable = 1

func (k *session) addRule(want *iptables.Routing, f family) error {
	header := make([]byte, headerSize)
	header[0], header[7] = byte(f.number), toTable
	_, err := k.Request(unix.RTM_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_EXCL, header,
		number(rulePriority, uint32(want.Priority)), number(ruleMark, want.Mark), number(ruleTable, uint32(want.Table)),
		nl.NewRtAttr(ruleProtocol, []byte{Protocol}).Serialize())
	return err
}

func (k *session) addRoute(table int, f family) error {
	header := make([]byte, headerSize)
	header[0], header[routeProtocol], header[6], header[7] = byte(f.number), Protocol, unix.RT_SCOPE_HOST, unix.RTN_LOCAL
	_, err := k.Request(unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_EXCL, header,
		number(unix.RTA_TABLE, uint32(table)), number(unix.RTA_OIF, loopback))
	if errors.Is(err, unix.EEXIST) {
		return err
	}
	return explainRoute(err, table)
}

// hasRoute returns nil if the table contains the wanted route, and otherwise an error.
func (k *session) hasRoute(table int, f family) error {
	routes, err := k.routes(table, f)
	if err == nil && !hasRoute(routes) {
		err = explainRoute(unix.EEXIST, table)
	}
	return err
}

// hasRule returns nil if our wanted rule exists, and otherwise an error. The check is necessary because the kernel also
// reports that the rule exists if there is a rule for other marks.
func (k *session) hasRule(want *iptables.Routing, f family) error {
	ours, err := k.ours(unix.RTM_GETRULE)
	if err == nil && !slices.ContainsFunc(ours, func(o listed) bool { return int(o.data[0]) == f.number && isRule(o.data, want) }) {
		err = unix.EEXIST
	}
	return err
}

func number(kind int, value uint32) []byte {
	return nl.NewRtAttr(kind, binary.NativeEndian.AppendUint32(nil, value)).Serialize()
}

// isWanted reports whether ours contains only wanted rules and routes, and at most one rule per address family.
func isWanted(ours []listed, want *iptables.Routing, of iptables.Families) bool {
	rules := map[byte]bool{}
	for _, o := range ours {
		family := o.data[0]
		switch {
		case want.Mark == 0,
			family == unix.AF_INET && of&iptables.IPv4 == 0, family == unix.AF_INET6 && of&iptables.IPv6 == 0,
			family != unix.AF_INET && family != unix.AF_INET6:
			return false
		case o.kind == unix.RTM_GETRULE:
			if rules[family] || !isRule(o.data, want) {
				return false
			}
			rules[family] = true
		case !isRoute(o.data, want.Table):
			return false
		}
	}
	return true
}

func isRule(data []byte, want *iptables.Routing) bool {
	const noFlags = 0
	if data[1] != 0 || data[2] != 0 || data[3] != 0 || data[7] != toTable || binary.NativeEndian.Uint32(data[8:])&unix.FIB_RULE_INVERT != noFlags {
		return false
	}
	attributes, err := nl.ParseRouteAttr(data[headerSize:])
	if err != nil {
		return false
	}
	wanted := map[uint16]uint32{rulePriority: uint32(want.Priority), ruleMark: want.Mark, ruleTable: uint32(want.Table),
		ruleMask: ^uint32(0), ruleSuppress: ^uint32(0)}
	found := 0
	for _, a := range attributes {
		if a.Attr.Type == ruleProtocol {
			continue
		}
		is, known := wanted[a.Attr.Type]
		if !known || len(a.Value) != 4 || binary.NativeEndian.Uint32(a.Value) != is {
			return false
		}
		if a.Attr.Type != ruleMask && a.Attr.Type != ruleSuppress {
			found++
		}
	}
	return found == 3
}

func isRoute(data []byte, table int) bool {
	if data[1] != 0 || data[7] != unix.RTN_LOCAL {
		return false
	}
	attributes, err := nl.ParseRouteAttr(data[headerSize:])
	if err != nil {
		return false
	}
	for _, a := range attributes {
		if a.Attr.Type == unix.RTA_TABLE && len(a.Value) == 4 {
			return binary.NativeEndian.Uint32(a.Value) == uint32(table)
		}
	}
	return int(data[4]) == table
}

// listed is the netlink message that describes a policy rule or a route. data has at least headerSize bytes.
type listed struct {
	kind uint16
	data []byte
}
