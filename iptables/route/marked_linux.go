package route

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/pilotfish-mesh/pilotfish/iptables/kernel"
)

// Where the kernel has the protocol of a rule and of a route: an attribute of the one (FRA_PROTOCOL of linux/fib_rules.h),
// a byte of the other's struct rtmsg. Both have a header of the same size.
const (
	headerSize     = unix.SizeofRtMsg
	ruleProtocol   = 21
	routeProtocol  = 5
	protocolOfNone = 0
)

// ours lists what the namespace has of the kinds, of whichever family, that carries our protocol number. In most namespaces
// there is none, and nothing more to look at.
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

// leftOver lists rules and routes of ours. A route is added after its rule and goes before it: alone it is only where somebody
// else took the rule away, and leads nothing then. So without rules it is looked for only if nothing at all is to stay.
func (k *session) leftOver(nothingStays bool) ([]listed, error) {
	rules, err := k.ours(unix.RTM_GETRULE)
	if err != nil || len(rules) == 0 && !nothingStays {
		return nil, err
	}
	routes, err := k.ours(unix.RTM_GETROUTE)
	return append(rules, routes...), err
}

// list lists what the namespace has of the kind; nothing where the kernel has no policy routing.
func (k *session) list(kind uint16) (out []listed, err error) {
	all, err := again(func() ([]kernel.Reply, error) {
		return k.Ask(kind, unix.NLM_F_DUMP, make([]byte, headerSize))
	})
	if errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read policy rules and routes: %w", err)
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
