package route

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/pilotfish-mesh/pilotfish/iptables"
)

// maxSources limits the source addresses for which routes are queried.
const maxSources = 8

// misroutedMarks queries the route of a marked packet. A rule before ours, or another route in our table, would send
// replies past the proxy although our rules and routes exist.
func (k *session) misroutedMarks(found *iptables.Routing, f family) (words []string, err error) {
	routes, err := k.routes(found.Table, f)
	if err != nil {
		return nil, err
	}
	for _, r := range routes {
		if !isLocalDefault(r) {
			to := "default"
			if r.Dst != nil {
				to = r.Dst.String()
			}
			words = append(words, fmt.Sprintf("%s: table %d has another route too, to %s: remove it, or name a free table (--istio-inbound-tproxy-route-table)", f.name, found.Table, to))
		}
	}
	own, err := k.ownAddresses(f)
	if err != nil {
		return nil, err
	}
	client := net.ParseIP("203.0.113.77") // an example: any address outside the namespace works
	if f.number == unix.AF_INET6 {
		client = net.ParseIP("2001:db8:77::7")
	}
	h, err := k.handle()
	if err != nil {
		return nil, err
	}
	for _, source := range append([]net.IP{nil}, own...) {
		to, err := h.RouteGetWithOptions(client, &netlink.RouteGetOptions{Mark: found.Mark, SrcAddr: source})
		if err == nil && len(to) > 0 && to[0].Type == unix.RTN_LOCAL && to[0].LinkIndex == loopback {
			continue
		}
		return append(words, fmt.Sprintf("%s: a packet marked %d%s does not go to the proxy, but %s: another policy rule comes before rule %d (ip rule)",
			f.name, found.Mark, sourceText(source), routeOf(to, err), found.Priority)), nil
	}
	return words, nil
}

func sourceText(source net.IP) string {
	if source == nil {
		return ""
	}
	return " from " + source.String()
}

func routeOf(to []netlink.Route, err error) string {
	if err != nil || len(to) == 0 {
		return fmt.Sprintf("nowhere (%v)", err)
	}
	return fmt.Sprintf("to interface %d", to[0].LinkIndex)
}

// ownAddresses returns addresses of the namespace from which replies are sent.
func (k *session) ownAddresses(f family) (all []net.IP, err error) {
	h, err := k.handle()
	if err != nil {
		return nil, err
	}
	have, err := retryDump(func() ([]netlink.Addr, error) { return h.AddrList(nil, f.number) })
	if err != nil && !errors.Is(err, unix.EAFNOSUPPORT) && !errors.Is(err, unix.EOPNOTSUPP) {
		return nil, fmt.Errorf("read the %s addresses: %w", f.name, err)
	}
	for _, a := range have {
		ip, ok := netip.AddrFromSlice(a.IP)
		if ok && ip.Unmap().IsGlobalUnicast() && a.LinkIndex != loopback && a.Flags&unix.IFA_F_TENTATIVE == 0 && len(all) < maxSources {
			all = append(all, a.IP)
		}
	}
	return all, nil
}
