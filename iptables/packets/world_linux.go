package packets

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

// Names and numbers of what is in the namespace for the time of a Lab. They are always the same: whoever comes after one
// that was killed takes away what it left.
const (
	nearLink  = "pilotfish-near"
	farLink   = "pilotfish-far"
	testTable = 28774
	// testPriority comes before the main table only: rules that lead marked packets to the proxy come first.
	testPriority = 32760
	lockName     = "@pilotfish-packets"
)

// world is the link to an outside that answers for every address.
type world struct {
	netlink  *netlink.Handle // in the namespace
	outside  *os.File        // namespace of the far end
	near     *netlink.Veth
	far      netlink.Link
	families map[iptables.Families]ends
	passages map[string]*passage
}

// ends are the addresses of the two ends of the link.
type ends struct{ near, far netip.Addr }

// makeWorld is called on a thread in the namespace. It leaves the thread in another one.
func makeWorld() (w *world, err error) {
	w = &world{families: map[iptables.Families]ends{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.Close())
		}
	}()
	if w.netlink, err = netlink.NewHandle(unix.NETLINK_ROUTE, unix.NETLINK_NETFILTER); err != nil {
		return w, permission("a netlink socket", err)
	}
	if err := w.clear(); err != nil {
		return w, err
	}
	here, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return w, err
	}
	defer func() { _ = here.Close() }()
	// The far end is in a namespace that the kernel ends with this process, and the link with it. Who may not make one
	// has the far end in the same namespace, where it is in nobody's way but stays if the process is killed.
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil && !errors.Is(err, unix.EPERM) {
		return w, fmt.Errorf("a network namespace for the outside: %w", err)
	}
	if w.outside, err = os.Open("/proc/thread-self/ns/net"); err != nil {
		return w, err
	}
	if err := w.link(); err != nil {
		return w, err
	}
	if err := w.farUp(); err != nil {
		return w, err
	}
	return w, w.address()
}

// permission says that something may not be done, if that is why it failed.
func permission(what string, err error) error {
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		return fmt.Errorf("%s: %w: %w", what, ErrNotPermitted, err)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// clear takes away what a Lab left that could not do so itself.
func (w *world) clear() error {
	if left, err := w.netlink.LinkByName(nearLink); err == nil {
		if err := w.netlink.LinkDel(left); err != nil {
			return permission("remove the link "+nearLink+" of an earlier run", err)
		}
	}
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		if err := w.clearRules(family); err != nil {
			return permission("remove the policy rules of an earlier run", err)
		}
		if err := w.clearPassages(family); err != nil {
			return permission("remove the routes of an earlier run", err)
		}
	}
	return nil
}

func (w *world) clearRules(family int) error {
	filter := &netlink.Rule{Priority: testPriority}
	left, err := w.netlink.RuleListFiltered(family, filter, netlink.RT_FILTER_PRIORITY)
	if errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil // a kernel without the family
	}
	if err != nil {
		return err
	}
	for _, rule := range left {
		if rule.Table < testTable || rule.Table > testTable+maxPassages {
			continue
		}
		rule.Family = family
		if err := w.netlink.RuleDel(&rule); err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
	}
	return nil
}

func (w *world) link() error {
	attributes := netlink.NewLinkAttrs()
	attributes.Name = nearLink
	w.near = &netlink.Veth{LinkAttrs: attributes, PeerName: farLink, PeerNamespace: netlink.NsFd(w.outside.Fd())}
	if err := w.netlink.LinkAdd(w.near); err != nil {
		w.near = nil
		return permission("a link to test with", err)
	}
	made, err := w.netlink.LinkByName(nearLink)
	if err != nil {
		return fmt.Errorf("the link %s just made: %w", nearLink, err)
	}
	w.near = made.(*netlink.Veth)
	// Without ARP every address is behind the link and none is asked for. The frames have an address that is not the far
	// end's: should that be in the same namespace, its network stack lets them be.
	if err := w.netlink.LinkSetARPOff(w.near); err != nil {
		return fmt.Errorf("the link %s: %w", nearLink, err)
	}
	return w.netlink.LinkSetUp(w.near)
}

// farUp is called on a thread in the outside's namespace.
func (w *world) farUp() error {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return permission("a netlink socket", err)
	}
	defer h.Close()
	if w.far, err = h.LinkByName(farLink); err != nil {
		return fmt.Errorf("the link %s just made: %w", farLink, err)
	}
	if err := h.LinkSetARPOff(w.far); err != nil {
		return fmt.Errorf("the link %s: %w", farLink, err)
	}
	return h.LinkSetUp(w.far)
}

// address gives the near end addresses of the families that the namespace takes, and packets from there a way out.
func (w *world) address() error {
	if err := w.addressOf(iptables.IPv4, unix.AF_INET, w.freeIPv4, 30); err != nil {
		return err
	}
	err := w.addressOf(iptables.IPv6, unix.AF_INET6, freeIPv6, 126)
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EAFNOSUPPORT) {
		return nil // it is switched off in the namespace, or in the kernel
	}
	return err
}

func (w *world) addressOf(f iptables.Families, family int, free func() (ends, error), bits int) error {
	e, err := free()
	if err != nil {
		return err
	}
	address := &netlink.Addr{IPNet: prefix(e.near, bits), Flags: unix.IFA_F_NODAD}
	if err := w.netlink.AddrAdd(w.near, address); err != nil {
		return fmt.Errorf("address %s for %s: %w", e.near, nearLink, err)
	}
	everything := prefix(netip.IPv4Unspecified(), 0)
	if family == unix.AF_INET6 {
		everything = prefix(netip.IPv6Unspecified(), 0)
	}
	route := &netlink.Route{LinkIndex: w.near.Index, Dst: everything, Table: testTable, Family: family, Scope: netlink.SCOPE_LINK}
	if err := w.netlink.RouteReplace(route); err != nil {
		return fmt.Errorf("a route through %s: %w", nearLink, err)
	}
	rule := netlink.NewRule()
	rule.Family, rule.Table, rule.Priority, rule.Src = family, testTable, testPriority, prefix(e.near, e.near.BitLen())
	if err := w.netlink.RuleAdd(rule); err != nil {
		return fmt.Errorf("a policy rule for %s: %w", e.near, err)
	}
	w.families[f] = e
	return w.settle(e.near)
}

// settle waits until the address is the namespace's own: the kernel makes one of IPv6 so in its own time.
func (w *world) settle(near netip.Addr) error {
	for range 500 {
		routes, err := w.netlink.RouteGet(near.AsSlice())
		if err == nil && len(routes) > 0 && routes[0].Type == unix.RTN_LOCAL {
			return nil
		}
		time.Sleep(time.Millisecond)
	}
	return fmt.Errorf("address %s of %s does not come into use", near, nearLink)
}

func prefix(a netip.Addr, bits int) *net.IPNet {
	return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(bits, a.BitLen())}
}

// freeIPv4 takes four addresses of the network for tests of network devices (RFC 2544) that no route leads to.
func (w *world) freeIPv4() (ends, error) {
	for range 100 {
		var b [4]byte
		_, _ = rand.Read(b[:])
		first := binary.BigEndian.Uint32([]byte{198, 18 | b[1]&1, b[2], b[3] &^ 3})
		near, far := ipv4(first+1), ipv4(first+2)
		routes, err := w.netlink.RouteList(nil, unix.AF_INET)
		if err != nil {
			return ends{}, fmt.Errorf("list the routes: %w", err)
		}
		if !leads(routes, near) {
			return ends{near, far}, nil
		}
	}
	return ends{}, errors.New("no address of 198.18.0.0/15 is free for tests: the namespace has routes to all of them")
}

func ipv4(n uint32) netip.Addr {
	return netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, n)))
}

func leads(routes []netlink.Route, to netip.Addr) bool {
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

// freeIPv6 takes a unique local network (RFC 4193), which is random enough to be nobody else's.
func freeIPv6() (ends, error) {
	b := [16]byte{0: 0xfd}
	_, _ = rand.Read(b[1:6])
	near, far := b, b
	near[15], far[15] = 1, 2
	return ends{netip.AddrFrom16(near), netip.AddrFrom16(far)}, nil
}

// own are the addresses of the namespace that others would call it by; those of the test link if it has none.
func (w *world) own(f iptables.Families) ([]netip.Addr, error) {
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
		return nil, fmt.Errorf("list the addresses: %w", err)
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

func (w *world) onLoopback(a netlink.Addr) bool {
	link, err := w.netlink.LinkByIndex(a.LinkIndex)
	return err == nil && link.Attrs().Flags&net.FlagLoopback != 0
}

// Close takes everything away again.
func (w *world) Close() error {
	var errs []error
	if w.near != nil {
		if err := w.netlink.LinkDel(w.near); err != nil {
			errs = append(errs, fmt.Errorf("remove the link %s: %w", nearLink, err))
		}
	}
	if w.netlink != nil {
		for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
			if err := w.clearRules(family); err != nil {
				errs = append(errs, fmt.Errorf("remove the policy rules of table %d: %w", testTable, err))
			}
			if len(w.passages) > 0 {
				errs = append(errs, w.clearPassages(family))
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
