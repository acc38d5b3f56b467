package cni

import (
	"context"
	"errors"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// addressesIn are the addresses of a network namespace.
func addressesIn(ns *os.File) ([]netip.Addr, error) {
	h, err := netlink.NewHandleAt(netns.NsHandle(ns.Fd()), unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	defer h.Close()
	list, err := h.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return nil, err
	}
	var addresses []netip.Addr
	for _, a := range list {
		if ip, ok := netip.AddrFromSlice(a.IP); ok {
			addresses = append(addresses, ip.Unmap())
		}
	}
	return addresses, nil
}

var errNotDone = errors.New("redirection is not done yet")

func (kernel) apply(context.Context, *plan) error { return errNotDone }
func (kernel) check(context.Context, *plan) error { return errNotDone }
