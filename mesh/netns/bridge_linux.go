package netns

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// bridgeName is what the bridge is called in its namespace.
const bridgeName = "mesh"

// Bridge joins namespaces: its own namespace holds a bridge, and each of the others a link to it.
type Bridge struct {
	*Namespace
	link netlink.Link
}

// NewBridge makes a namespace with a bridge that has the addresses.
func NewBridge(addresses ...netip.Prefix) (*Bridge, error) {
	n, err := New()
	if err != nil {
		return nil, err
	}
	b := &Bridge{Namespace: n}
	err = n.Netlink(func(h *netlink.Handle) error {
		// Without an address of its own the bridge has the least of its links', and changes it as links come and go, of
		// which neighbours know nothing.
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.HardwareAddr = bridgeName, net.HardwareAddr{0x02, 0x70, 0x66, 0, 0, 1}
		if err := h.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil {
			return fmt.Errorf("making a bridge: %w", err)
		}
		var err error
		if b.link, err = h.LinkByName(bridgeName); err != nil {
			return err
		}
		return raise(h, b.link, addresses)
	})
	if err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return b, nil
}

// Plug joins a namespace to the bridge, by a link of that name, with the addresses there and routes for all else by the
// gateways.
func (b *Bridge) Plug(n *Namespace, name string, addresses []netip.Prefix, gateways []netip.Addr) error {
	peer := fmt.Sprintf("port%d", n.FD())
	err := b.Netlink(func(h *netlink.Handle) error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MasterIndex = peer, b.link.Attrs().Index
		veth := &netlink.Veth{LinkAttrs: attrs, PeerName: name, PeerNamespace: netlink.NsFd(n.FD())}
		if err := h.LinkAdd(veth); err != nil {
			return fmt.Errorf("making a link: %w", err)
		}
		return h.LinkSetUp(veth)
	})
	if err != nil {
		return err
	}
	return n.Netlink(func(h *netlink.Handle) error {
		link, err := h.LinkByName(name)
		if err != nil {
			return fmt.Errorf("the end of a link: %w", err)
		}
		if err := raise(h, link, addresses); err != nil {
			return err
		}
		for _, gateway := range gateways {
			if err := h.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: gateway.AsSlice()}); err != nil {
				return fmt.Errorf("a route by %s: %w", gateway, err)
			}
		}
		return nil
	})
}

// raise gives a link its addresses and sets it up. An address of IPv6 is of use at once: nobody else can have it here.
func raise(h *netlink.Handle, link netlink.Link, addresses []netip.Prefix) error {
	if err := h.LinkSetUp(link); err != nil {
		return fmt.Errorf("setting up %s: %w", link.Attrs().Name, err)
	}
	for _, p := range addresses {
		a := &netlink.Addr{IPNet: &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}}
		if p.Addr().Is6() {
			a.Flags = unix.IFA_F_NODAD
		}
		if err := h.AddrAdd(link, a); err != nil {
			return fmt.Errorf("address %s of %s: %w", p, link.Attrs().Name, err)
		}
	}
	return nil
}
