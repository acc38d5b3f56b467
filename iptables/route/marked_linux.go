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

// marked says whether the namespace has anything of the kinds, of whichever family, that carries our protocol number. In
// most namespaces there is none, and nothing more to look at.
func (k *session) marked(kinds ...uint16) (bool, error) {
	for _, kind := range kinds {
		all, err := again(func() ([]kernel.Reply, error) {
			return k.Ask(kind, unix.NLM_F_DUMP, make([]byte, headerSize))
		})
		if errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) {
			continue // a kernel without policy routing
		}
		if err != nil {
			return false, fmt.Errorf("read policy rules and routes: %w", err)
		}
		for _, r := range all {
			if protocolOf(kind, r.Data) == Protocol {
				return true, nil
			}
		}
	}
	return false, nil
}

func protocolOf(kind uint16, data []byte) byte {
	if len(data) < headerSize {
		return protocolOfNone
	}
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
