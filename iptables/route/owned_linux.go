package route

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/pilotfish-mesh/pilotfish/iptables/nlsocket"
)

// The position of the protocol number. In a rule, it is in the attribute FRA_PROTOCOL (linux/fib_rules.h). In a route,
// it is a byte of struct rtmsg. Both messages have headers of the same size.
const (
	headerSize     = unix.SizeofRtMsg
	ruleProtocol   = 21
	routeProtocol  = 5
	protocolOfNone = 0
)

// ours lists the objects of these kinds (rules, routes) with our protocol number, of both address families.
func (k *session) ours(kinds ...uint16) (out []listed, err error) {
	for _, kind := range kinds {
		all, err := k.list(kind)
		if err != nil {
			return nil, err
		}
		for _, o := range all {
			if protocolOf(kind, o.data) == Protocol {
				out = append(out, o)
			}
		}
	}
	return out, nil
}

// leftOver lists our rules and routes. If we have no rules, it lists routes only if nothingStays is set, to save a
// query. This is sufficient: a route is added after its rule and removed before it. If there is a route without a rule,
// another program removed the rule, and the route has no effect.
func (k *session) leftOver(nothingStays bool) ([]listed, error) {
	rules, err := k.ours(unix.RTM_GETRULE)
	if err != nil || len(rules) == 0 && !nothingStays {
		return nil, err
	}
	routes, err := k.ours(unix.RTM_GETROUTE)
	return append(rules, routes...), err
}

// list lists the namespace's objects of the kind. If the kernel does not support policy routing, the list is empty.
func (k *session) list(kind uint16) (out []listed, err error) {
	all, err := retryDump(func() ([]nlsocket.Reply, error) {
		return k.Request(kind, unix.NLM_F_DUMP, make([]byte, headerSize))
	})
	if errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading policy rules and routes: %w", err)
	}
	for _, r := range all {
		if len(r.Data) >= headerSize {
			out = append(out, listed{kind, r.Data})
		}
	}
	return out, nil
}

func protocolOf(kind uint16, data []byte) byte {
	if kind == unix.RTM_GETROUTE {
		return data[routeProtocol]
	}
	attributes, err := nl.ParseRouteAttr(data[headerSize:])
	if err != nil {
		return protocolOfNone
	}
	for _, a := range attributes {
		if a.Attr.Type == ruleProtocol && len(a.Value) == 1 {
			return a.Value[0]
		}
	}
	return protocolOfNone
}
