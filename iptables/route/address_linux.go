package route

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/pilotfish-mesh/pilotfish/iptables"
)

// ifaProto is IFA_PROTO of linux/if_addr.h, since Linux 5.18, which the netlink library does not know. An older kernel
// forgets it.
const ifaProto = 11

// address is one on lo.
type address struct {
	prefix   netip.Prefix
	protocol uint8
}

// request is a netlink request in the namespace.
func (k *kernel) request(kind, flags int) (*nl.NetlinkRequest, func(), error) {
	req := nl.NewNetlinkRequest(kind, flags)
	if k.netns <= 0 {
		return req, func() {}, nil
	}
	socket, err := nl.GetNetlinkSocketAt(netns.NsHandle(k.netns), netns.None(), unix.NETLINK_ROUTE)
	if err != nil {
		return nil, nil, err
	}
	req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: {Socket: socket}}
	return req, socket.Close, nil
}

// addresses lists what lo has.
func (k *kernel) addresses() ([]address, error) {
	out, err := again(k.addressesOnce)
	if err != nil {
		return nil, fmt.Errorf("read the addresses of lo: %w", err)
	}
	return out, nil
}

func (k *kernel) addressesOnce() ([]address, error) {
	req, done, err := k.request(unix.RTM_GETADDR, unix.NLM_F_DUMP)
	if err != nil {
		return nil, err
	}
	defer done()
	req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	messages, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWADDR)
	if err != nil {
		return nil, err
	}
	var out []address
	for _, m := range messages {
		msg := nl.DeserializeIfAddrmsg(m)
		attrs, err := nl.ParseRouteAttr(m[msg.Len():])
		if err != nil {
			return nil, err
		}
		if int(msg.Index) == k.lo.Attrs().Index {
			out = append(out, addressOf(msg, attrs))
		}
	}
	return out, nil
}

func addressOf(msg *nl.IfAddrmsg, attrs []syscall.NetlinkRouteAttr) address {
	var a address
	for _, attr := range attrs {
		switch attr.Attr.Type {
		case unix.IFA_ADDRESS:
			if ip, ok := netip.AddrFromSlice(attr.Value); ok {
				a.prefix = netip.PrefixFrom(ip, int(msg.Prefixlen))
			}
		case ifaProto:
			if len(attr.Value) > 0 {
				a.protocol = attr.Value[0]
			}
		}
	}
	return a
}

// change adds or deletes an address of lo.
func (k *kernel) change(kind, flags int, p netip.Prefix) error {
	req, done, err := k.request(kind, flags|unix.NLM_F_ACK)
	if err != nil {
		return err
	}
	defer done()
	family := unix.AF_INET
	if p.Addr().Is6() {
		family = unix.AF_INET6
	}
	msg := nl.NewIfAddrmsg(family)
	msg.Index, msg.Prefixlen = uint32(k.lo.Attrs().Index), uint8(p.Bits())
	if family == unix.AF_INET6 {
		msg.Flags = unix.IFA_F_NODAD // nobody else is on lo, and Envoy could not bind it until the kernel is sure of that
	}
	req.AddData(msg)
	ip := p.Addr().AsSlice()
	req.AddData(nl.NewRtAttr(unix.IFA_LOCAL, ip))
	req.AddData(nl.NewRtAttr(unix.IFA_ADDRESS, ip))
	if kind == unix.RTM_NEWADDR {
		req.AddData(nl.NewRtAttr(ifaProto, []byte{Protocol}))
	}
	_, err = req.Execute(unix.NETLINK_ROUTE, 0)
	if errors.Is(err, unix.EACCES) && family == unix.AF_INET6 {
		return fmt.Errorf("%w: IPv6 is disabled on lo (sysctl net.ipv6.conf.lo.disable_ipv6), so the proxy cannot take it; leave IPv6 out (--ipv6 pass)", err)
	}
	return err
}

func (k *kernel) addressChange(p netip.Prefix) (string, change) {
	what := fmt.Sprintf("the address %s on lo", p)
	return what, k.toggle(what,
		func(k *kernel) error { return k.change(unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_EXCL, p) },
		func(k *kernel) error { return k.change(unix.RTM_DELADDR, 0, p) })
}

func (k *kernel) missingAddresses(list []netip.Prefix, of iptables.Families) ([]change, error) {
	wanted := wantedAddresses(list, of)
	if len(wanted) == 0 {
		return nil, nil
	}
	have, err := k.addresses()
	if err != nil {
		return nil, err
	}
	for _, a := range have {
		delete(wanted, a.prefix)
	}
	var out []change
	for p := range wanted {
		_, c := k.addressChange(p)
		out = append(out, c)
	}
	return out, nil
}

func (k *kernel) surplusAddresses(wanted map[netip.Prefix]bool) ([]change, error) {
	ours, err := k.ourAddresses()
	var out []change
	for _, p := range ours {
		if !wanted[p] {
			what, c := k.addressChange(p)
			out = append(out, c.reverse(what))
		}
	}
	return out, err
}

// ourAddresses are those that Add added.
func (k *kernel) ourAddresses() ([]netip.Prefix, error) {
	have, err := k.addresses()
	var out []netip.Prefix
	for _, a := range have {
		if a.protocol == Protocol {
			out = append(out, a.prefix)
		}
	}
	slices.SortFunc(out, netip.Prefix.Compare)
	return out, err
}
