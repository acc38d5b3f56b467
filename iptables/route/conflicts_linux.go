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

// maxSources is the maximum number of source addresses with which routes are queried.
const maxSources = 8

// misroutedMarks queries the kernel's route for packets with our mark. If such packets bypass the proxy, it returns a
// text for each reason: other routes in our table, or a policy rule of another program before ours.
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
			words = append(words, fmt.Sprintf("%s: table %d also has a route to %s: remove it, or use a free table (--istio-inbound-tproxy-route-table)", f.name, found.Table, to))
		}
	}
	own, err := k.ownAddresses(f)
	if err != nil {
		return nil, err
	}
	client := net.ParseIP("203.0.113.77") // any address outside the namespace
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
		return append(words, fmt.Sprintf("%s: a packet marked %d%s is not routed to the proxy (%s): a policy rule precedes rule %d (see ip rule)",
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
		return fmt.Sprintf("the route of the packet cannot be determined: %v", err)
	}
	return fmt.Sprintf("but to interface %d", to[0].LinkIndex)
}

// ownAddresses returns up to maxSources addresses of the namespace. Replies may have them as source addresses.
func (k *session) ownAddresses(f family) (all []net.IP, err error) {
	h, err := k.handle()
	if err != nil {
		return nil, err
	}
	have, err := retryDump(func() ([]netlink.Addr, error) { return h.AddrList(nil, f.number) })
	if err != nil && !errors.Is(err, unix.EAFNOSUPPORT) && !errors.Is(err, unix.EOPNOTSUPP) {
		return nil, fmt.Errorf("reading the %s addresses: %w", f.name, err)
	}
	for _, a := range have {
		ip, ok := netip.AddrFromSlice(a.IP)
		if ok && ip.Unmap().IsGlobalUnicast() && a.LinkIndex != loopback && a.Flags&unix.IFA_F_TENTATIVE == 0 && len(all) < maxSources {
			all = append(all, a.IP)
		}
	}
	return all, nil
}
