package cni

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"reflect"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/pilotfish-mesh/pilotfish/iptables"
	"github.com/pilotfish-mesh/pilotfish/iptables/nft"
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

func (kernel) backend(p *plan) (iptables.Backend, error) {
	return nft.New(nft.Config{NetNS: int(p.netns.Fd()), Inject: p.inject})
}

// apply puts the rules in force and looks whether the kernel has them as they were meant.
func (k kernel) apply(ctx context.Context, p *plan) error {
	b, err := k.backend(p)
	if err != nil {
		return err
	}
	if err := b.Apply(ctx, p.rules); err != nil {
		return err
	}
	return same(ctx, b, p.rules)
}

func (k kernel) check(ctx context.Context, p *plan) error {
	b, err := k.backend(p)
	if err != nil {
		return err
	}
	return same(ctx, b, p.rules)
}

// same compares what is in force with what has to be.
func same(ctx context.Context, b iptables.Backend, want *iptables.RuleSet) error {
	got, err := b.Read(ctx)
	switch {
	case err != nil:
		return fmt.Errorf("read back the rules: %w", err)
	case got.Rules == nil:
		return errors.New("no rules are in force: the pod's traffic bypasses its proxy")
	case len(got.Strange) > 0:
		return fmt.Errorf("somebody added rules to ours: %s", strings.Join(got.Strange, "; "))
	case !reflect.DeepEqual(iptables.Canonical(want), iptables.Canonical(got.Rules)):
		return errors.New("the rules in force are not those that have to be")
	}
	return nil
}
