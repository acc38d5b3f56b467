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
	choice, err := p.config.choice()
	if err != nil {
		return nil, err
	}
	return backends.New(backends.Config{NetNS: int(p.netns.Fd()), Choice: choice, Logger: p.log, Inject: p.inject})
}

// apply puts the rules in force and looks whether the kernel has them as they were meant.
func (k kernel) apply(ctx context.Context, p *plan) error {
	b, err := k.backend(p)
	if err != nil {
		return err
	}
	return put(ctx, b, p.rules)
}

func put(ctx context.Context, b iptables.Backend, rules *iptables.RuleSet) error {
	if err := b.Apply(ctx, rules); err != nil {
		return err
	}
	return same(ctx, b, rules)
}

// healTime bounds what is done at a pod's end, and cleanTime what is done where nobody lives.
const healTime, cleanTime = 2 * time.Second, 10 * time.Second

func (kernel) heal(ctx context.Context, netns *os.File) error {
	ctx, cancel := context.WithTimeout(ctx, healTime)
	defer cancel()
	b, err := backends.New(backends.Config{NetNS: int(netns.Fd())})
	if err != nil {
		return err
	}
	return b.Heal(ctx)
}

func (kernel) clean(ctx context.Context, netns *os.File) error {
	ctx, cancel := context.WithTimeout(ctx, cleanTime)
	defer cancel()
	b, err := backends.New(backends.Config{NetNS: int(netns.Fd())})
	if err != nil {
		return err
	}
	return b.Clean(ctx)
}

// checkTime bounds CHECK; the packets of a sound namespace arrive at once.
const checkTime = 20 * time.Second

// check compares what is in force with what has to be, order included, and proves it with packets, of which the pod's
// processes and networks see none.
func (kernel) check(ctx context.Context, p *plan) error {
	ctx, cancel := context.WithTimeoutCause(ctx, checkTime, fmt.Errorf("it took longer than %v", checkTime))
	defer cancel()
	b, err := kernel{}.backend(p)
	if err != nil {
		return err
	}
	return bounded(ctx, func() error {
		report, err := verify.Run(ctx, verify.Config{Backend: b, Want: p.rules, NetNS: int(p.netns.Fd())})
		if err != nil {
			return err
		}
		return report.Err()
	})
}

// bounded fails when f takes longer than the context has, and leaves it to the end of the process: to think through what
// thousands of rules do to packets takes minutes.
func bounded(ctx context.Context, f func() error) error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("the comparison with what is in force came to no end: %w", context.Cause(ctx))
	}
}

// same compares what the kernel has with what it was told: ADD hands out no pod on a promise.
func same(ctx context.Context, b iptables.Backend, want *iptables.RuleSet) error {
	got, err := b.Read(ctx)
	if err != nil {
		return fmt.Errorf("read back the rules: %w", err)
	}
	if len(got.Strange) == 0 && reflect.DeepEqual(iptables.Canonical(want), iptables.Canonical(got.Rules)) {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, checkTime, fmt.Errorf("it took longer than %v", checkTime))
	defer cancel()
	return bounded(ctx, func() error {
		return fmt.Errorf("the kernel has other rules than it was told: %s", iptables.Summary(iptables.Diff(want, got)))
	})
}
