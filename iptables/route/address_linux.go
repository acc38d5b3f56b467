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

// ifaProto is the attribute IFA_PROTO of linux/if_addr.h (Linux 5.18). Older kernels ignore it.
const ifaProto = 11

// address is an address on lo.
type address struct {
	prefix    netip.Prefix
	protocol  uint8
	tentative bool // duplicate address detection is not complete, so processes cannot bind the address
}

// addresses lists the addresses of lo.
func (k *session) addresses() ([]address, error) {
	out, err := retryDump(k.addressesOnce)
	if err != nil {
		return nil, fmt.Errorf("reading the addresses of lo: %w", err)
	}
	return out, nil
}

func (k *session) addressesOnce() ([]address, error) {
	messages, err := k.Request(unix.RTM_GETADDR, unix.NLM_F_DUMP, nl.NewIfAddrmsg(unix.AF_UNSPEC).Serialize())
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

// change adds the address p to lo, or deletes it: kind is RTM_NEWADDR or RTM_DELADDR.
func (k *session) change(kind, flags uint16, p netip.Prefix) error {
	family := unix.AF_INET
	if p.Addr().Is6() {
		family = unix.AF_INET6
	}
	msg := nl.NewIfAddrmsg(family)
	msg.Index, msg.Prefixlen = uint32(loopback), uint8(p.Bits())
	if family == unix.AF_INET6 {
		msg.Flags = unix.IFA_F_NODAD // no duplicate address detection, so that Envoy can bind the address sooner
	}
	ip := p.Addr().AsSlice()
	parts := [][]byte{msg.Serialize(), nl.NewRtAttr(unix.IFA_LOCAL, ip).Serialize(), nl.NewRtAttr(unix.IFA_ADDRESS, ip).Serialize()}
	if kind == unix.RTM_NEWADDR {
		parts = append(parts, nl.NewRtAttr(ifaProto, []byte{Protocol}).Serialize())
	}
	_, err := k.Request(kind, flags, parts...)
	if errors.Is(err, unix.EACCES) && family == unix.AF_INET6 {
		return fmt.Errorf("%w: %s", err, disabledIPv6)
	}
	return err
}

// disabledIPv6 is the error text if the kernel rejects both an IPv6 address and an IPv6 route.
const disabledIPv6 = "IPv6 is disabled on lo (sysctl net.ipv6.conf.lo.disable_ipv6), so it cannot be captured; enable it, or use --ipv6 pass without --dual-stack"

func (k *session) addAddress(p netip.Prefix) error {
	return k.change(unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_EXCL, p)
}

func (k *session) deleteAddress(p netip.Prefix) error { return k.change(unix.RTM_DELADDR, 0, p) }

// surplusAddress returns the change that removes an address from lo.
func (k *session) surplusAddress(p netip.Prefix) change {
	return change{fmt.Sprintf("remove the address %s from lo", p),
		func() error { return k.withConnection(func(k *session) error { return k.deleteAddress(p) }) },
		func() error { return k.withConnection(func(k *session) error { return k.addAddress(p) }) }}
}

// missingAddress returns the change that adds an address to lo. If the address already exists, the change has no
// effect.
func (k *session) missingAddress(p netip.Prefix) change {
	added := false
	return change{"add the address " + p.String() + " to lo",
		func() error {
			return k.withConnection(func(k *session) error {
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
			return k.withConnection(func(k *session) error { return k.deleteAddress(p) })
		}}
}

func (k *session) missingAddresses(list []netip.Prefix, of iptables.Families) (out []change) {
	for p := range wantedAddresses(list, of) {
		out = append(out, k.missingAddress(p))
	}
	return out
}

func (k *session) surplusAddresses(wanted map[netip.Prefix]bool) ([]change, error) {
	ours, err := k.waitForAddresses()
	var out []change
	for _, p := range ours {
		if !wanted[p] {
			out = append(out, k.surplusAddress(p))
		}
	}
	return out, err
}

// oursOf returns the addresses with our protocol number. pending reports whether one of them is tentative.
func oursOf(have []address) (ours []netip.Prefix, pending bool) {
	for _, a := range have {
		if a.protocol == Protocol {
			ours, pending = append(ours, a.prefix), pending || a.tentative
		}
	}
	slices.SortFunc(ours, netip.Prefix.Compare)
	return ours, pending
}

// maxAddressWait is the timeout of waitForAddresses. On an idle machine, the kernel needs less than a millisecond.
const maxAddressWait = 50 * time.Millisecond

// waitForAddresses waits until none of our addresses is tentative, and returns our addresses. It waits at most
// maxAddressWait. A process cannot bind a tentative address.
func (k *session) waitForAddresses() ([]netip.Prefix, error) {
	end := time.Now().Add(maxAddressWait)
	for pause := 50 * time.Microsecond; ; pause *= 2 {
		have, err := k.addresses()
		ours, pending := oursOf(have)
		if err != nil || !pending || time.Now().After(end) || !k.isUp() {
			return ours, err
		}
		time.Sleep(pause)
	}
}

// isUp reports whether lo is up. If it is down, its addresses remain tentative.
func (k *session) isUp() bool {
	ask := nl.NewIfInfomsg(unix.AF_UNSPEC)
	ask.Index = loopback
	lo, err := k.Get(unix.RTM_GETLINK, ask.Serialize())
	return err == nil && len(lo.Data) >= unix.SizeofIfInfomsg && nl.DeserializeIfInfomsg(lo.Data).Flags&unix.IFF_UP != 0
}
