package netns

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// bridgeName is the name of the bridge in its namespace.
const bridgeName = "mesh"

// Bridge connects network namespaces. The bridge device is in a namespace of its own. A veth pair connects each other
// namespace to it.
type Bridge struct {
	*Namespace
	link netlink.Link
}

// NewBridge creates a namespace with a bridge that has these addresses.
func NewBridge(addresses ...netip.Prefix) (*Bridge, error) {
	n, err := New()
	if err != nil {
		return nil, err
	}
	b := &Bridge{Namespace: n}
	err = n.Netlink(func(h *netlink.Handle) error {
		// Without a fixed MAC address the bridge uses the lowest MAC address of its ports. That address changes when
		// ports are added or removed, but the ARP caches of neighbours still contain the old one.
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.HardwareAddr = bridgeName, net.HardwareAddr{0x02, 0x70, 0x66, 0, 0, 1}
		if err := h.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil {
			return fmt.Errorf("creating a bridge: %w", err)
		}
		var err error
		if b.link, err = h.LinkByName(bridgeName); err != nil {
			return fmt.Errorf("looking up the created bridge: %w", err)
		}
		return configureLink(h, b.link, addresses)
	})
	if err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return b, nil
}

// Connect connects a namespace to the bridge with a veth pair. In n, it creates an interface called name with these
// addresses, and default routes through the gateways.
func (b *Bridge) Connect(n *Namespace, name string, addresses []netip.Prefix, gateways []netip.Addr) error {
	peer := fmt.Sprintf("port%d", n.FD())
	err := b.Netlink(func(h *netlink.Handle) error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MasterIndex = peer, b.link.Attrs().Index
		veth := &netlink.Veth{LinkAttrs: attrs, PeerName: name, PeerNamespace: netlink.NsFd(n.FD())}
		if err := h.LinkAdd(veth); err != nil {
			return fmt.Errorf("creating a veth pair: %w", err)
		}
		return h.LinkSetUp(veth)
	})
	if err != nil {
		return err
	}
	return n.Netlink(func(h *netlink.Handle) error {
		link, err := h.LinkByName(name)
		if err != nil {
			return fmt.Errorf("looking up the created veth interface: %w", err)
		}
		if err := configureLink(h, link, addresses); err != nil {
			return err
		}
		for _, gateway := range gateways {
			if err := h.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: gateway.AsSlice()}); err != nil {
				return fmt.Errorf("adding a route via %s: %w", gateway, err)
			}
		}
		return nil
	})
}

// configureLink sets a link up and adds its addresses. For IPv6 it disables duplicate address detection, because no
// other host in the mesh's network can have these addresses.
func configureLink(h *netlink.Handle, link netlink.Link, addresses []netip.Prefix) error {
	if err := h.LinkSetUp(link); err != nil {
		return fmt.Errorf("setting up %s: %w", link.Attrs().Name, err)
	}
	for _, p := range addresses {
		a := &netlink.Addr{IPNet: &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}}
		if p.Addr().Is6() {
			a.Flags = unix.IFA_F_NODAD
		}
		if err := h.AddrAdd(link, a); err != nil {
			return fmt.Errorf("adding address %s to %s: %w", p, link.Attrs().Name, err)
		}
	}
	return nil
}
