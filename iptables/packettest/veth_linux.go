package packettest

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/pilotfish-mesh/pilotfish/iptables"
)

// Names and numbers of the objects that a harness creates in the namespace. They are constant, so that a harness can
// remove the objects of an earlier one whose process was killed.
const (
	nearLink  = "pilotfish-near"
	farLink   = "pilotfish-far"
	testTable = 28774
	// testPriority is directly before that of the main table, so that the policy rules for TPROXY have precedence.
	testPriority = 32760
	lockName     = "@pilotfish-packets"
)

// vethPair is the link between the namespace and the simulated network outside.
type vethPair struct {
	netlink          *netlink.Handle // in the namespace
	outside          *os.File        // namespace of the far end
	near             *netlink.Veth
	far              netlink.Link
	families         map[iptables.Families]linkEnds
	testedInterfaces map[string]*testedInterface
}

// linkEnds contains the addresses of the two ends of the link.
type linkEnds struct{ near, far netip.Addr }

// newVethPair creates the link. It must be called on a thread in the namespace, and moves the thread to the namespace of
// the far end.
func newVethPair() (w *vethPair, err error) {
	w = &vethPair{families: map[iptables.Families]linkEnds{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.Close())
		}
	}()
	if w.netlink, err = netlink.NewHandle(unix.NETLINK_ROUTE, unix.NETLINK_NETFILTER); err != nil {
		return w, permission("opening a netlink socket", err)
	}
	if err := w.removeLeftovers(); err != nil {
		return w, err
	}
	here, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return w, err
	}
	defer func() { _ = here.Close() }()
	// The far end is in a new namespace. When this process exits, the kernel removes that namespace and the link. If
	// the process may not create a namespace, the far end is in the same namespace, and remains if the process is
	// killed.
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil && !errors.Is(err, unix.EPERM) {
		return w, fmt.Errorf("creating a network namespace for the far end: %w", err)
	}
	if w.outside, err = os.Open("/proc/thread-self/ns/net"); err != nil {
		return w, err
	}
	if err := w.createLink(); err != nil {
		return w, err
	}
	if err := w.setFarUp(); err != nil {
		return w, err
	}
	return w, w.assignAddresses()
}

// permission adds the failed operation to the error. If the error is EPERM or EACCES, the result also wraps
// ErrNotPermitted.
func permission(what string, err error) error {
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		return fmt.Errorf("%s: %w: %w", what, ErrNotPermitted, err)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// removeLeftovers removes the link, policy rules and routes of a harness whose process was killed.
func (w *vethPair) removeLeftovers() error {
	if left, err := w.netlink.LinkByName(nearLink); err == nil {
		if err := w.netlink.LinkDel(left); err != nil {
			return permission("removing the link "+nearLink+" of an earlier run", err)
		}
	}
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		if err := w.clearRules(family); err != nil {
			return permission("removing the policy rules of an earlier run", err)
		}
		if err := w.clearRoutes(family); err != nil {
			return permission("removing the routes of an earlier run", err)
		}
	}
	return nil
}

func (w *vethPair) clearRules(family int) error {
	filter := &netlink.Rule{Priority: testPriority}
	left, err := w.netlink.RuleListFiltered(family, filter, netlink.RT_FILTER_PRIORITY)
	if errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil // the kernel does not support the address family
	}
	if err != nil {
		return err
	}
	for _, rule := range left {
		if rule.Table < testTable || rule.Table > testTable+maxTestedInterfaces {
			continue
		}
		rule.Family = family
		if err := w.netlink.RuleDel(&rule); err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
	}
	return nil
}

func (w *vethPair) createLink() error {
	attributes := netlink.NewLinkAttrs()
	attributes.Name = nearLink
	w.near = &netlink.Veth{LinkAttrs: attributes, PeerName: farLink, PeerNamespace: netlink.NsFd(w.outside.Fd())}
	if err := w.netlink.LinkAdd(w.near); err != nil {
		w.near = nil
		return permission("creating a link for test packets", err)
	}
	made, err := w.netlink.LinkByName(nearLink)
	if err != nil {
		return fmt.Errorf("reading the created link %s: %w", nearLink, err)
	}
	w.near = made.(*netlink.Veth)
	// Without ARP, every address is reachable through the link. The frames do not have the far end's MAC address, so
	// the network stack ignores them if the far end is in the same namespace.
	if err := w.netlink.LinkSetARPOff(w.near); err != nil {
		return fmt.Errorf("disabling ARP on the link %s: %w", nearLink, err)
	}
	return w.netlink.LinkSetUp(w.near)
}

// setFarUp sets the far end up. It must be called on a thread in the namespace of the far end.
func (w *vethPair) setFarUp() error {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return permission("opening a netlink socket", err)
	}
	defer h.Close()
	if w.far, err = h.LinkByName(farLink); err != nil {
		return fmt.Errorf("reading the created link %s: %w", farLink, err)
	}
	if err := h.LinkSetARPOff(w.far); err != nil {
		return fmt.Errorf("setting the link %s up: %w", farLink, err)
	}
	return h.LinkSetUp(w.far)
}

// assignAddresses assigns addresses and routes to the near end, for each family that the namespace supports.
func (w *vethPair) assignAddresses() error {
	if err := w.assignAddress(iptables.IPv4, unix.AF_INET, w.freeIPv4, 30); err != nil {
		return err
	}
	err := w.assignAddress(iptables.IPv6, unix.AF_INET6, freeIPv6, 126)
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EAFNOSUPPORT) {
		return nil // the address family is disabled in the namespace or in the kernel
	}
	return err
}

func (w *vethPair) assignAddress(f iptables.Families, family int, free func() (linkEnds, error), bits int) error {
	e, err := free()
	if err != nil {
		return err
	}
	address := &netlink.Addr{IPNet: ipNet(e.near, bits), Flags: unix.IFA_F_NODAD}
	if err := w.netlink.AddrAdd(w.near, address); err != nil {
		return fmt.Errorf("adding the address %s to %s: %w", e.near, nearLink, err)
	}
	everything := ipNet(netip.IPv4Unspecified(), 0)
	if family == unix.AF_INET6 {
		everything = ipNet(netip.IPv6Unspecified(), 0)
	}
	route := &netlink.Route{LinkIndex: w.near.Index, Dst: everything, Table: testTable, Family: family, Scope: netlink.SCOPE_LINK}
	if err := w.netlink.RouteReplace(route); err != nil {
		return fmt.Errorf("adding a route through %s: %w", nearLink, err)
	}
	rule := netlink.NewRule()
	rule.Family, rule.Table, rule.Priority, rule.Src = family, testTable, testPriority, ipNet(e.near, e.near.BitLen())
	if err := w.netlink.RuleAdd(rule); err != nil {
		return fmt.Errorf("adding a policy rule for %s: %w", e.near, err)
	}
	w.families[f] = e
	return w.waitForAddress(e.near)
}

// waitForAddress waits until the address is usable. The kernel activates IPv6 addresses asynchronously.
func (w *vethPair) waitForAddress(near netip.Addr) error {
	for range 500 {
		routes, err := w.netlink.RouteGet(near.AsSlice())
		if err == nil && len(routes) > 0 && routes[0].Type == unix.RTN_LOCAL {
			return nil
		}
		time.Sleep(time.Millisecond)
	}
	return fmt.Errorf("the kernel did not activate the address %s of %s in time", near, nearLink)
}

func ipNet(a netip.Addr, bits int) *net.IPNet {
	return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(bits, a.BitLen())}
}

// freeIPv4 returns two addresses in 198.18.0.0/15 (the network for benchmarks, RFC 2544) to which the namespace has no
// route.
func (w *vethPair) freeIPv4() (linkEnds, error) {
	for range 100 {
		var b [4]byte
		_, _ = rand.Read(b[:])
		first := binary.BigEndian.Uint32([]byte{198, 18 | b[1]&1, b[2], b[3] &^ 3})
		near, far := ipv4(first+1), ipv4(first+2)
		routes, err := w.netlink.RouteList(nil, unix.AF_INET)
		if err != nil {
			return linkEnds{}, fmt.Errorf("listing the routes: %w", err)
		}
		if !hasRoute(routes, near) {
			return linkEnds{near, far}, nil
		}
	}
	return linkEnds{}, errors.New("198.18.0.0/15 has no free address for test packets: the namespace has routes to all of its addresses")
}

func ipv4(n uint32) netip.Addr {
	return netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, n)))
}

func hasRoute(routes []netlink.Route, to netip.Addr) bool {
	for _, r := range routes {
		if r.Dst == nil {
			continue
		}
		if ones, _ := r.Dst.Mask.Size(); ones > 0 && r.Dst.Contains(to.AsSlice()) {
			return true
		}
	}
	return false
}

// freeIPv6 returns two addresses in a random unique local IPv6 network (RFC 4193).
func freeIPv6() (linkEnds, error) {
	b := [16]byte{0: 0xfd}
	_, _ = rand.Read(b[1:6])
	near, far := b, b
	near[15], far[15] = 1, 2
	return linkEnds{netip.AddrFrom16(near), netip.AddrFrom16(far)}, nil
}

// ownAddresses returns the addresses of the namespace's links. If these have none, it returns the near address of the
// harness's link.
func (w *vethPair) ownAddresses(f iptables.Families) ([]netip.Addr, error) {
	e, ok := w.families[f]
	if !ok {
		return nil, nil
	}
	family := unix.AF_INET
	if f == iptables.IPv6 {
		family = unix.AF_INET6
	}
	addresses, err := w.netlink.AddrList(nil, family)
	if err != nil {
		return nil, fmt.Errorf("listing the addresses: %w", err)
	}
	var all []netip.Addr
	for _, a := range addresses {
		ip, _ := netip.AddrFromSlice(a.IP)
		if ip = ip.Unmap(); ip != e.near && ip.IsGlobalUnicast() && a.Scope == unix.RT_SCOPE_UNIVERSE && !w.onLoopback(a) {
			all = append(all, ip)
		}
	}
	if len(all) == 0 {
		return []netip.Addr{e.near}, nil
	}
	return all, nil
}

func (w *vethPair) onLoopback(a netlink.Addr) bool {
	link, err := w.netlink.LinkByIndex(a.LinkIndex)
	return err == nil && link.Attrs().Flags&net.FlagLoopback != 0
}

// Close removes the link, the policy rules and the routes.
func (w *vethPair) Close() error {
	var errs []error
	if w.near != nil {
		if err := w.netlink.LinkDel(w.near); err != nil {
			errs = append(errs, fmt.Errorf("removing the link %s: %w", nearLink, err))
		}
	}
	if w.netlink != nil {
		for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
			if err := w.clearRules(family); err != nil {
				errs = append(errs, fmt.Errorf("removing the policy rules of table %d: %w", testTable, err))
			}
			if len(w.testedInterfaces) > 0 {
				errs = append(errs, w.clearRoutes(family))
			}
		}
		w.netlink.Close()
	}
	if w.outside != nil {
		if err := w.outside.Close(); err != nil && !errors.Is(err, fs.ErrClosed) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
