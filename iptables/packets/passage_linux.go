package packets

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

// passage has packets pass an interface that the namespace has, without using it: those that leave by it are stopped before
// it gets them, and those that come in by it come from the Lab's link. Nothing of the interface is changed.
type passage struct {
	link     netlink.Link
	families map[iptables.Families]ends
	hardware [6]byte                     // who sends the frames that come in by it
	strict   bool                        // of IPv4, nothing comes in that its routes do not lead back
	closed   error                       // why nothing can come in by it
	lacks    map[iptables.Families]error // why there is none for a family
	bare     map[iptables.Families]error // why nothing can be redirected that comes in by it
	err      error                       // why there is none at all
}

// maxPassages bounds the routing tables of a Lab, which follow testTable.
const maxPassages = 16

// readyPassages readies those that packets pass. It is called on a thread in the namespace.
func (w *world) readyPassages(packets []Packet) {
	for _, p := range packets {
		if p.Interface == "" || w.passages[p.Interface] != nil {
			continue
		}
		made, err := w.makePassage(p.Interface, len(w.passages)+1)
		if err != nil {
			made.err = fmt.Errorf("%w %s: %w", ErrNoPassage, p.Interface, err)
		}
		if w.passages == nil {
			w.passages = map[string]*passage{}
		}
		w.passages[p.Interface] = made
	}
}

func (w *world) makePassage(name string, number int) (p *passage, err error) {
	p = &passage{families: map[iptables.Families]ends{}, lacks: map[iptables.Families]error{}, bare: map[iptables.Families]error{}, hardware: ownHardware}
	p.hardware[3] = byte(number)
	if number > maxPassages {
		return p, errors.New("there are more of them than are tested")
	}
	if p.link, err = w.netlink.LinkByName(name); err != nil {
		return p, errors.New("the namespace has none of that name now")
	}
	if p.link.Attrs().Flags&net.FlagUp == 0 {
		return p, errors.New("it is down")
	}
	p.strict = strict(name)
	p.closed = w.closed(p.link.Attrs())
	for f := range w.families {
		if p.bare[f], err = w.bare(p.link, f); err != nil {
			return p, err
		}
		if err := w.leadOut(p, f, testTable+number); err != nil {
			p.lacks[f] = fmt.Errorf("%w %s: %w", ErrNoPassage, name, err)
		}
	}
	if p.closed != nil {
		return p, nil
	}
	return p, w.leadIn(p)
}

// bare says of a link that it has no address of a family; nil if it has one.
func (w *world) bare(link netlink.Link, f iptables.Families) (lack, err error) {
	number := unix.AF_INET
	if f == iptables.IPv6 {
		number = unix.AF_INET6
	}
	have, err := w.netlink.AddrList(link, number)
	if err == nil && len(have) == 0 {
		lack = fmt.Errorf("%w, and %s has none of %s", ErrNoAddress, link.Attrs().Name, f)
	}
	return lack, err
}

// closed says why no frame can be led in by the link. One that is led to a port of a bridge would be the bridge's, which
// might pass it on to a network.
func (w *world) closed(link *netlink.LinkAttrs) error {
	if link.MasterIndex != 0 {
		by := fmt.Sprintf("link %d", link.MasterIndex)
		if master, err := w.netlink.LinkByIndex(link.MasterIndex); err == nil {
			by = master.Attrs().Name
		}
		return fmt.Errorf("it is a port of %s, which takes what comes in by it", by)
	}
	if link.RawFlags&unix.IFF_LOWER_UP == 0 {
		return errors.New("it has no carrier, without which the kernel lets nothing in by it")
	}
	return nil
}

// strict tells whether the kernel drops what comes in by the interface from where another one leads.
func strict(name string) bool {
	most := 0
	for _, of := range []string{"all", name} {
		text, err := os.ReadFile("/proc/sys/net/ipv4/conf/" + of + "/rp_filter")
		if err == nil && len(text) > 0 {
			most = max(most, int(text[0]-'0'))
		}
	}
	return most == 1 // 2 is: from where any interface leads
}

// leadOut gives packets an address from which they leave by the interface.
func (w *world) leadOut(p *passage, f iptables.Families, table int) error {
	family, free, bits := unix.AF_INET, w.freeIPv4, 30
	everything := prefix(netip.IPv4Unspecified(), 0)
	if f == iptables.IPv6 {
		family, free, bits = unix.AF_INET6, freeIPv6, 126
		everything = prefix(netip.IPv6Unspecified(), 0)
	}
	e, err := free()
	if err != nil {
		return err
	}
	if err := w.netlink.AddrAdd(w.near, &netlink.Addr{IPNet: prefix(e.near, bits), Flags: unix.IFA_F_NODAD}); err != nil {
		return fmt.Errorf("address %s for %s: %w", e.near, nearLink, err)
	}
	// What is redirected on its way in by the Lab's link may get any of that link's addresses, and is answered from there.
	far := w.families[f].far
	for to, link := range map[*net.IPNet]netlink.Link{everything: p.link, prefix(far, far.BitLen()): w.near} {
		route := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: to, Table: table, Family: family, Scope: netlink.SCOPE_LINK}
		if err := w.netlink.RouteReplace(route); err != nil {
			return fmt.Errorf("a route of %s through %s: %w", f, link.Attrs().Name, err)
		}
	}
	rule := netlink.NewRule()
	rule.Family, rule.Table, rule.Priority, rule.Src = family, table, testPriority, prefix(e.near, e.near.BitLen())
	if err := w.netlink.RuleAdd(rule); err != nil {
		return fmt.Errorf("a policy rule for %s: %w", e.near, err)
	}
	p.families[f] = e
	return w.settle(e.near)
}

// leadIn has frames of the passage's own sender, which arrive at the Lab's link, come in by the interface.
func (w *world) leadIn(p *passage) error {
	index := w.near.Attrs().Index
	ingress := &netlink.Ingress{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_INGRESS}}
	if err := w.netlink.QdiscAdd(ingress); err != nil && !errors.Is(err, unix.EEXIST) { // of another passage
		return fmt.Errorf("lead frames on to it: %w", err)
	}
	const sender = -8 // of the network's header: the first four bytes of the frame's sender
	h := p.hardware
	filter := &netlink.U32{
		FilterAttrs: netlink.FilterAttrs{LinkIndex: index, Parent: ingress.Handle, Priority: uint16(h[3]), Protocol: unix.ETH_P_ALL},
		Sel: &nl.TcU32Sel{Flags: nl.TC_U32_TERMINAL, Nkeys: 1, Keys: []nl.TcU32Key{{
			Mask: 0xffffffff, Val: uint32(h[0])<<24 | uint32(h[1])<<16 | uint32(h[2])<<8 | uint32(h[3]), Off: sender}}},
		Actions: []netlink.Action{&netlink.MirredAction{ActionAttrs: netlink.ActionAttrs{Action: netlink.TC_ACT_STOLEN},
			MirredAction: netlink.TCA_INGRESS_REDIR, Ifindex: p.link.Attrs().Index}},
	}
	if err := w.netlink.FilterAdd(filter); err != nil {
		return fmt.Errorf("lead frames on to it: %w", err)
	}
	return nil
}

// clearPassages takes away routes of passages, which stay if the process is killed. Policy rules are taken away with the
// Lab's own.
func (w *world) clearPassages(family int) error {
	routes, err := w.netlink.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
	if errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, r := range routes {
		if r.Table <= testTable || r.Table > testTable+maxPassages {
			continue
		}
		if err := w.netlink.RouteDel(&r); err != nil && !errors.Is(err, unix.ESRCH) {
			return err
		}
	}
	return nil
}

// passed are the passages that packets can be sent by.
func (s *session) passed() (all []*passage) {
	seen := map[*passage]bool{}
	for _, a := range s.attempts {
		if p := s.world.passages[a.packet.Interface]; p != nil && p.err == nil && !seen[p] {
			seen[p] = true
			all = append(all, p)
		}
	}
	return all
}

// endsOf are the ends of the packet's way.
func (s *session) endsOf(p Packet) (near, far netip.Addr) {
	if by := s.world.passages[p.Interface]; by != nil {
		e := by.families[familyOf(p.Destination.Addr())]
		return e.near, e.far
	}
	return s.Ends(familyOf(p.Destination.Addr()))
}

// passable says why the packet cannot be sent by the interface that it should pass.
func (w *world) passable(p Packet) error {
	by := w.passages[p.Interface]
	if by == nil {
		return nil
	}
	if by.err == nil && by.closed != nil && p.Inbound {
		return fmt.Errorf("%w %s: %w", ErrNoPassage, p.Interface, by.closed)
	}
	if by.err == nil && by.strict && p.Inbound && p.Destination.Addr().Is4() {
		return fmt.Errorf("%w %s: it takes only what its own routes would lead back (rp_filter)", ErrNoPassage, p.Interface)
	}
	return cmp.Or(by.err, by.lacks[familyOf(p.Destination.Addr())])
}

// stopped tells whether sending failed because the Lab stopped the packet where it would leave.
func (a *attempt) stopped(err error) bool {
	return a.packet.Interface != "" && errors.Is(err, unix.EPERM)
}

// linkName is the name of a link as rules have it.
func linkName(name string) []byte {
	padded := make([]byte, unix.IFNAMSIZ)
	copy(padded, name)
	return padded
}
