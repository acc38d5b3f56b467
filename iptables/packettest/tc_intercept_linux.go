package packettest

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/pilotfish-mesh/pilotfish/iptables"
)

// testedInterface sends test packets through an interface of the namespace, without using the interface's network.
// Outbound packets are recorded and dropped before they reach the interface. Inbound packets arrive at the harness's
// link, and a tc filter redirects them to the ingress of the interface. The interface itself is not changed.
type testedInterface struct {
	link         netlink.Link
	families     map[iptables.Families]linkEnds
	hardware     [6]byte                     // source MAC address of the frames that arrive through it
	strict       bool                        // rp_filter is strict: the kernel drops inbound IPv4 from the harness's address
	noIngress    error                       // why inbound packets cannot be sent through it
	familyErrors map[iptables.Families]error // why packets of a family cannot be sent through it
	noAddress    map[iptables.Families]error // why the kernel cannot redirect its inbound packets of a family
	err          error                       // why packets cannot be sent through it at all
}

// maxTestedInterfaces is the maximum number of tested interfaces. Each needs a routing table. The tables are numbered
// from testTable.
const maxTestedInterfaces = 16

// openTestedInterfaces creates a testedInterface for each interface that the packets name. It must be called on a thread in the
// namespace.
func (w *vethPair) openTestedInterfaces(packets []Packet) {
	for _, p := range packets {
		if p.Interface == "" || w.testedInterfaces[p.Interface] != nil {
			continue
		}
		made, err := w.makeTestedInterface(p.Interface, len(w.testedInterfaces)+1)
		if err != nil {
			made.err = fmt.Errorf("%w %s: %w", ErrInterfaceUnusable, p.Interface, err)
		}
		if w.testedInterfaces == nil {
			w.testedInterfaces = map[string]*testedInterface{}
		}
		w.testedInterfaces[p.Interface] = made
	}
}

func (w *vethPair) makeTestedInterface(name string, number int) (p *testedInterface, err error) {
	p = &testedInterface{families: map[iptables.Families]linkEnds{}, familyErrors: map[iptables.Families]error{}, noAddress: map[iptables.Families]error{}, hardware: ownHardware}
	p.hardware[3] = byte(number)
	if number > maxTestedInterfaces {
		return p, errors.New("the options name more interfaces than can be tested")
	}
	if p.link, err = w.netlink.LinkByName(name); err != nil {
		return p, errors.New("the interface does not exist")
	}
	if p.link.Attrs().Flags&net.FlagUp == 0 {
		return p, errors.New("the interface is down")
	}
	p.strict = isStrictReversePath(name)
	p.noIngress = w.ingressObstacle(p.link.Attrs())
	for f := range w.families {
		if p.noAddress[f], err = w.missingAddress(p.link, f); err != nil {
			return p, err
		}
		if err := w.routeEgress(p, f, testTable+number); err != nil {
			p.familyErrors[f] = fmt.Errorf("%w %s: %w", ErrInterfaceUnusable, name, err)
		}
	}
	if p.noIngress != nil {
		return p, nil
	}
	return p, w.routeIngress(p)
}

// missingAddress returns lack, an ErrNoAddress, if the link has no address of the family. err is an error of the query.
func (w *vethPair) missingAddress(link netlink.Link, f iptables.Families) (lack, err error) {
	number := unix.AF_INET
	if f == iptables.IPv6 {
		number = unix.AF_INET6
	}
	have, err := w.netlink.AddrList(link, number)
	if err == nil && len(have) == 0 {
		lack = fmt.Errorf("%w, but %s has no %s address", ErrNoAddress, link.Attrs().Name, f)
	}
	return lack, err
}

// ingressObstacle returns the reason why frames cannot be injected into the link's ingress, or nil. A bridge would receive
// the frames of its ports, and might forward them to a network.
func (w *vethPair) ingressObstacle(link *netlink.LinkAttrs) error {
	if link.MasterIndex != 0 {
		by := fmt.Sprintf("link %d", link.MasterIndex)
		if master, err := w.netlink.LinkByIndex(link.MasterIndex); err == nil {
			by = master.Attrs().Name
		}
		return fmt.Errorf("it is a port of %s, which receives its inbound packets", by)
	}
	if link.RawFlags&unix.IFF_LOWER_UP == 0 {
		return errors.New("it has no carrier, so the kernel drops its inbound packets")
	}
	return nil
}

// isStrictReversePath reports whether rp_filter of the interface is strict. The kernel then drops inbound packets from
// a source to which the route uses another interface.
func isStrictReversePath(name string) bool {
	highest := 0
	for _, of := range []string{"all", name} {
		text, err := os.ReadFile("/proc/sys/net/ipv4/conf/" + of + "/rp_filter")
		if err == nil && len(text) > 0 {
			highest = max(highest, int(text[0]-'0'))
		}
	}
	return highest == 1 // 2 (loose) accepts a source if there is a route to it through any interface
}

// routeEgress adds an address and a policy route, so that packets from that address leave through the interface.
func (w *vethPair) routeEgress(p *testedInterface, f iptables.Families, table int) error {
	family, free, bits := unix.AF_INET, w.freeIPv4, 30
	everything := ipNet(netip.IPv4Unspecified(), 0)
	if f == iptables.IPv6 {
		family, free, bits = unix.AF_INET6, freeIPv6, 126
		everything = ipNet(netip.IPv6Unspecified(), 0)
	}
	e, err := free()
	if err != nil {
		return err
	}
	if err := w.netlink.AddrAdd(w.near, &netlink.Addr{IPNet: ipNet(e.near, bits), Flags: unix.IFA_F_NODAD}); err != nil {
		return fmt.Errorf("adding the address %s to %s: %w", e.near, nearLink, err)
	}
	// The kernel redirects packets that arrive at the harness's link to any address of that link. Replies then have this
	// source address, and must be routed to the far end.
	far := w.families[f].far
	for to, link := range map[*net.IPNet]netlink.Link{everything: p.link, ipNet(far, far.BitLen()): w.near} {
		route := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: to, Table: table, Family: family, Scope: netlink.SCOPE_LINK}
		if err := w.netlink.RouteReplace(route); err != nil {
			return fmt.Errorf("adding the %s route through %s: %w", f, link.Attrs().Name, err)
		}
	}
	rule := netlink.NewRule()
	rule.Family, rule.Table, rule.Priority, rule.Src = family, table, testPriority, ipNet(e.near, e.near.BitLen())
	if err := w.netlink.RuleAdd(rule); err != nil {
		return fmt.Errorf("adding a policy rule for %s: %w", e.near, err)
	}
	p.families[f] = e
	return w.waitForAddress(e.near)
}

// routeIngress adds a tc filter to the harness's link. It redirects frames with the testedInterface's source MAC address
// to the ingress of the interface.
func (w *vethPair) routeIngress(p *testedInterface) error {
	index := w.near.Attrs().Index
	ingress := &netlink.Ingress{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_INGRESS}}
	// Ignore EEXIST: another testedInterface has already created the qdisc.
	if err := w.netlink.QdiscAdd(ingress); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("adding a tc filter to the interface: %w", err)
	}
	const sender = -8 // offset from the network header to the first four bytes of the source MAC address
	h := p.hardware
	filter := &netlink.U32{
		FilterAttrs: netlink.FilterAttrs{LinkIndex: index, Parent: ingress.Handle, Priority: uint16(h[3]), Protocol: unix.ETH_P_ALL},
		Sel: &nl.TcU32Sel{Flags: nl.TC_U32_TERMINAL, Nkeys: 1, Keys: []nl.TcU32Key{{
			Mask: 0xffffffff, Val: uint32(h[0])<<24 | uint32(h[1])<<16 | uint32(h[2])<<8 | uint32(h[3]), Off: sender}}},
		Actions: []netlink.Action{&netlink.MirredAction{ActionAttrs: netlink.ActionAttrs{Action: netlink.TC_ACT_STOLEN},
			MirredAction: netlink.TCA_INGRESS_REDIR, Ifindex: p.link.Attrs().Index}},
	}
	if err := w.netlink.FilterAdd(filter); err != nil {
		return fmt.Errorf("adding a tc filter to the interface: %w", err)
	}
	return nil
}

// clearRoutes removes the routes of testedInterfaces, which remain if a process is killed. clearRules removes the
// policy rules.
func (w *vethPair) clearRoutes(family int) error {
	routes, err := w.netlink.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
	if errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, r := range routes {
		if r.Table <= testTable || r.Table > testTable+maxTestedInterfaces {
			continue
		}
		if err := w.netlink.RouteDel(&r); err != nil && !errors.Is(err, unix.ESRCH) {
			return err
		}
	}
	return nil
}

// usedInterfaces returns the testedInterfaces that the session's packets use.
func (s *session) usedInterfaces() (all []*testedInterface) {
	seen := map[*testedInterface]bool{}
	for _, a := range s.attempts {
		if p := s.veth.testedInterfaces[a.packet.Interface]; p != nil && p.err == nil && !seen[p] {
			seen[p] = true
			all = append(all, p)
		}
	}
	return all
}

// packetEnds returns the addresses of the link's ends for the packet: the one in the namespace and the one outside.
func (s *session) packetEnds(p Packet) (near, far netip.Addr) {
	if by := s.veth.testedInterfaces[p.Interface]; by != nil {
		e := by.families[familyOf(p.Destination.Addr())]
		return e.near, e.far
	}
	return s.Ends(familyOf(p.Destination.Addr()))
}

// checkInterface returns the reason why the packet cannot be sent through its interface, or nil if it can be sent.
func (w *vethPair) checkInterface(p Packet) error {
	by := w.testedInterfaces[p.Interface]
	if by == nil {
		return nil
	}
	if by.err == nil && by.noIngress != nil && p.Inbound {
		return fmt.Errorf("%w %s: %w", ErrInterfaceUnusable, p.Interface, by.noIngress)
	}
	if by.err == nil && by.strict && p.Inbound && p.Destination.Addr().Is4() {
		return fmt.Errorf("%w %s: rp_filter is 1 (strict), so the kernel drops packets whose source is not routed through the interface", ErrInterfaceUnusable, p.Interface)
	}
	return cmp.Or(by.err, by.familyErrors[familyOf(p.Destination.Addr())])
}

// isDropped reports whether the send failed because egressFilter dropped the outbound packet.
func (a *attempt) isDropped(err error) bool {
	return a.packet.Interface != "" && errors.Is(err, unix.EPERM)
}

// linkName returns the name in the form in which nftables compares it: padded with zeros.
func linkName(name string) []byte {
	padded := make([]byte, unix.IFNAMSIZ)
	copy(padded, name)
	return padded
}
