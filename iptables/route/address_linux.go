package route

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/pilotfish-mesh/pilotfish/iptables"
)

// ifaProto is IFA_PROTO of linux/if_addr.h, since Linux 5.18, which the netlink library does not know. An older kernel
// forgets it.
const ifaProto = 11

// address is one on lo.
type address struct {
	prefix    netip.Prefix
	protocol  uint8
	tentative bool // nobody can bind it yet
}

// addresses lists what lo has.
func (k *session) addresses() ([]address, error) {
	out, err := again(k.addressesOnce)
	if err != nil {
		return nil, fmt.Errorf("read the addresses of lo: %w", err)
	}
	return out, nil
}

func (k *session) addressesOnce() ([]address, error) {
	messages, err := k.Ask(unix.RTM_GETADDR, unix.NLM_F_DUMP, nl.NewIfAddrmsg(unix.AF_UNSPEC).Serialize())
	if err != nil {
		return nil, err
	}
	var out []address
	for _, m := range messages {
		if len(m.Data) < unix.SizeofIfAddrmsg {
			continue
		}
		msg := nl.DeserializeIfAddrmsg(m.Data)
		attrs, err := nl.ParseRouteAttr(m.Data[msg.Len():])
		if err != nil {
			return nil, err
		}
		if int(msg.Index) == loopback {
			out = append(out, addressOf(msg, attrs))
		}
	}
	return out, nil
}

func addressOf(msg *nl.IfAddrmsg, attrs []syscall.NetlinkRouteAttr) address {
	a := address{tentative: msg.Flags&unix.IFA_F_TENTATIVE != 0}
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
func (k *session) change(kind, flags uint16, p netip.Prefix) error {
	family := unix.AF_INET
	if p.Addr().Is6() {
		family = unix.AF_INET6
	}
	msg := nl.NewIfAddrmsg(family)
	msg.Index, msg.Prefixlen = uint32(loopback), uint8(p.Bits())
	if family == unix.AF_INET6 {
		msg.Flags = unix.IFA_F_NODAD // nobody else is on lo, and Envoy could not bind it until the kernel is sure of that
	}
	ip := p.Addr().AsSlice()
	parts := [][]byte{msg.Serialize(), nl.NewRtAttr(unix.IFA_LOCAL, ip).Serialize(), nl.NewRtAttr(unix.IFA_ADDRESS, ip).Serialize()}
	if kind == unix.RTM_NEWADDR {
		parts = append(parts, nl.NewRtAttr(ifaProto, []byte{Protocol}).Serialize())
	}
	_, err := k.Ask(kind, flags, parts...)
	if errors.Is(err, unix.EACCES) && family == unix.AF_INET6 {
		return fmt.Errorf("%w: %s", err, disabledIPv6)
	}
	return err
}

// disabledIPv6 is why the kernel takes neither an address nor a route of it.
const disabledIPv6 = "IPv6 is disabled on lo (sysctl net.ipv6.conf.lo.disable_ipv6), so the proxy cannot take it; leave IPv6 out (--ipv6 pass, and no --dual-stack)"

func (k *session) addAddress(p netip.Prefix) error {
	return k.change(unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_EXCL, p)
}

func (k *session) deleteAddress(p netip.Prefix) error { return k.change(unix.RTM_DELADDR, 0, p) }

// surplusAddress is the change that takes an address away.
func (k *session) surplusAddress(p netip.Prefix) change {
	return change{fmt.Sprintf("remove the address %s on lo", p),
		func() error { return k.on(func(k *session) error { return k.deleteAddress(p) }) },
		func() error { return k.on(func(k *session) error { return k.addAddress(p) }) }}
}

// missingAddress is the change that adds an address if it is not there, which the kernel is asked by adding it.
func (k *session) missingAddress(p netip.Prefix) change {
	added := false
	return change{"add the address " + p.String() + " on lo",
		func() error {
			return k.on(func(k *session) error {
				err := k.addAddress(p)
				added = err == nil
				if errors.Is(err, unix.EEXIST) {
					return nil
				}
				return err
			})
		},
		func() error {
			if !added {
				return nil
			}
			return k.on(func(k *session) error { return k.deleteAddress(p) })
		}}
}

func (k *session) missingAddresses(list []netip.Prefix, of iptables.Families) (out []change) {
	for p := range wantedAddresses(list, of) {
		out = append(out, k.missingAddress(p))
	}
	return out
}

func (k *session) surplusAddresses(wanted map[netip.Prefix]bool) ([]change, error) {
	ours, err := k.settled()
	var out []change
	for _, p := range ours {
		if !wanted[p] {
			out = append(out, k.surplusAddress(p))
		}
	}
	return out, err
}

// oursOf are those that Add added, and whether the kernel is not done with one of them.
func oursOf(have []address) (ours []netip.Prefix, pending bool) {
	for _, a := range have {
		if a.protocol == Protocol {
			ours, pending = append(ours, a.prefix), pending || a.tentative
		}
	}
	slices.SortFunc(ours, netip.Prefix.Compare)
	return ours, pending
}

// settling bounds the wait for addresses; the kernel needs less than a millisecond if it has a processor.
const settling = 50 * time.Millisecond

// settled are our addresses when the kernel is done with them. It takes an address of IPv6 over some time after it was
// added, and until then the proxy could not bind it.
func (k *session) settled() ([]netip.Prefix, error) {
	end := time.Now().Add(settling)
	for pause := 50 * time.Microsecond; ; pause *= 2 {
		have, err := k.addresses()
		ours, pending := oursOf(have)
		if err != nil || !pending || time.Now().After(end) || !k.up() {
			return ours, err
		}
		time.Sleep(pause)
	}
}

// up says whether lo is. Addresses of an interface that is not are left as they are.
func (k *session) up() bool {
	ask := nl.NewIfInfomsg(unix.AF_UNSPEC)
	ask.Index = loopback
	lo, err := k.Get(unix.RTM_GETLINK, ask.Serialize())
	return err == nil && len(lo.Data) >= unix.SizeofIfInfomsg && nl.DeserializeIfInfomsg(lo.Data).Flags&unix.IFF_UP != 0
}
