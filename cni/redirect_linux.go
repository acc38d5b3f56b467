package cni

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"reflect"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/pilotfish-mesh/pilotfish/iptables"
	"github.com/pilotfish-mesh/pilotfish/iptables/backends"
	"github.com/pilotfish-mesh/pilotfish/iptables/verify"
)

// addressesIn returns the IP addresses of all interfaces in a network namespace.
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
	choice, err := p.config.choice()
	if err != nil {
		return nil, err
	}
	return backends.New(backends.Config{NetNS: int(p.netns.Fd()), Choice: choice, Logger: p.log, Inject: p.inject})
}

// apply installs the rules and reads them back from the kernel. It returns an error if they differ.
func (k kernel) apply(ctx context.Context, p *plan) error {
	b, err := k.backend(p)
	if err != nil {
		return err
	}
	return applyAndVerify(ctx, b, p.rules)
}

func applyAndVerify(ctx context.Context, b iptables.Backend, rules *iptables.RuleSet) error {
	if err := b.Apply(ctx, rules); err != nil {
		return err
	}
	return compareRules(ctx, b, rules)
}

// repairTimeout is the timeout of repairRules, which runs when a pod stops. cleanTimeout is the timeout of clean.
const repairTimeout, cleanTimeout = 2 * time.Second, 10 * time.Second

func (kernel) repairRules(ctx context.Context, netns *os.File) error {
	ctx, cancel := context.WithTimeout(ctx, repairTimeout)
	defer cancel()
	b, err := backends.New(backends.Config{NetNS: int(netns.Fd())})
	if err != nil {
		return err
	}
	return b.Heal(ctx)
}

func (kernel) clean(ctx context.Context, netns *os.File) error {
	ctx, cancel := context.WithTimeout(ctx, cleanTimeout)
	defer cancel()
	b, err := backends.New(backends.Config{NetNS: int(netns.Fd())})
	if err != nil {
		return err
	}
	return b.Clean(ctx)
}

// checkTime is the timeout of CHECK, and of the comparison of the rules after ADD. If the rules are correct, CHECK's
// test packets arrive immediately.
const checkTime = 20 * time.Second

// check compares the kernel's rules and their order with the plan, and verifies them with test packets. Neither the pod's
// processes nor its network receive these packets.
func (kernel) check(ctx context.Context, p *plan) error {
	ctx, cancel := context.WithTimeoutCause(ctx, checkTime, fmt.Errorf("comparing the installed rules timed out after %v", checkTime))
	defer cancel()
	b, err := kernel{}.backend(p)
	if err != nil {
		return err
	}
	return runWithTimeout(ctx, func() error {
		report, err := verify.Run(ctx, verify.Config{Backend: b, Want: p.rules, NetNS: int(p.netns.Fd())})
		if err != nil {
			return err
		}
		return report.Err()
	})
}

// runWithTimeout runs f and returns an error if ctx ends first. In that case f continues in the background until the
// process exits, because the comparison of thousands of rules cannot be interrupted.
func runWithTimeout(ctx context.Context, f func() error) error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("comparing the installed rules did not complete: %w", context.Cause(ctx))
	}
}

// compareRules returns an error if the kernel's rules differ from want.
func compareRules(ctx context.Context, b iptables.Backend, want *iptables.RuleSet) error {
	got, err := b.Read(ctx)
	if err != nil {
		return fmt.Errorf("reading the installed rules: %w", err)
	}
	if len(got.Strange) == 0 && reflect.DeepEqual(iptables.Canonical(want), iptables.Canonical(got.Rules)) {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, checkTime, fmt.Errorf("comparing the installed rules timed out after %v", checkTime))
	defer cancel()
	return runWithTimeout(ctx, func() error {
		return fmt.Errorf("the kernel's rules differ from the applied rules: %s", iptables.Summary(iptables.Diff(want, got)))
	})
}
