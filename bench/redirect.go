//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/pilotfish-mesh/pilotfish/internal/backoff"
	"github.com/pilotfish-mesh/pilotfish/iptables"
	"github.com/pilotfish-mesh/pilotfish/iptables/backends"
	"github.com/pilotfish-mesh/pilotfish/iptables/namespace"
	"github.com/pilotfish-mesh/pilotfish/iptables/nft"
	"github.com/pilotfish-mesh/pilotfish/iptables/nlsocket"
)

const (
	redirectRounds = 40 // rounds for operations of milliseconds
	firstRounds    = 20 // rounds for the first rules on a machine
	ruleRounds     = 3  // rounds for one iptables process per rule
	// settle is the pause between two measurements, because the kernel cleans up removed rules asynchronously and
	// delays the next operation.
	settle = 50 * time.Millisecond
)

// redirectSet is a named set of redirection rules.
type redirectSet struct {
	name  string
	rules *iptables.RuleSet
}

// redirection measures the time to install the rules of a dual-stack pod, to read and compare them, and to remove them. It
// compares netlink in the process, iptables-restore, one iptables process per rule, and the agent's command from start to
// exit.
func (b *bench) redirection(ctx context.Context) error {
	if os.Geteuid() != 0 {
		return errors.New("only root can create network namespaces: run `bench -only redirect` as root")
	}
	if err := findBaselines(); err != nil {
		return err
	}
	sets, err := redirectSets()
	if err != nil {
		return err
	}
	r := &redirect{bench: b, times: map[string][]time.Duration{}}
	if err := r.rounds(ctx, sets); err != nil {
		return err
	}
	r.print(sets)
	return b.printPeak(ctx)
}

// redirect collects the durations of installing, reading and removing rules, by operation.
type redirect struct {
	*bench
	times map[string][]time.Duration
	order []string
}

// rounds measures each operation in each round in new namespaces. Meanwhile another namespace has rules, because the
// first rules on a machine make the kernel patch its code to enable its hooks, and the removal of the last rules
// reverts that. The method first measures this cost separately.
func (r *redirect) rounds(ctx context.Context, sets []redirectSet) error {
	usual := sets[0]
	for range firstRounds {
		if err := r.first(ctx, usual); err != nil {
			return err
		}
	}
	other, err := newNetNS()
	if err != nil {
		return err
	}
	defer func() { _ = other.Close() }()
	if err := r.occupy(ctx, other, usual); err != nil {
		return err
	}
	for i := range redirectRounds {
		for _, s := range sets {
			if err := r.round(ctx, s, i < ruleRounds && s.name == usual.name); err != nil {
				return err
			}
		}
	}
	return nil
}

// print prints the medians of all operations and, for the baselines, their ratios to netlink.
func (r *redirect) print(sets []redirectSet) {
	for _, s := range sets {
		n := 0
		for _, c := range s.rules.Chains {
			n += len(c.Rules)
		}
		fmt.Printf("redirection, %s: %d rules of IPv4 and IPv6, medians of %d rounds in fresh namespaces\n", s.name, n, redirectRounds)
		ours := r.times[s.name+netlinkName]
		middle := median(ours) // sorts
		for _, name := range r.order {
			of, found := strings.CutPrefix(name, s.name)
			if !found {
				continue
			}
			d := r.times[name]
			m := median(d)
			line := fmt.Sprintf("  %-56s %7.2f ms, best %7.2f, p99 %7.2f", of[2:], milliseconds(m), milliseconds(d[0]), milliseconds(d[len(d)*99/100]))
			if strings.HasPrefix(of, baselinePrefix) {
				line += fmt.Sprintf("; x%.1f of netlink, at best x%.1f", float64(m)/float64(middle), float64(d[0])/float64(ours[0]))
			}
			fmt.Println(line)
		}
	}
}

const (
	// Names of operations consist of a set's name and a suffix. These are the suffix of the operation with netlink, and the
	// beginning of the suffixes of its baselines.
	netlinkName    = ": apply: netlink"
	baselinePrefix = ": apply: iptables"
)

func redirectSets() ([]redirectSet, error) {
	usual := iptables.DefaultOptions()
	usual.DualStack, usual.InboundPorts.All, usual.OutboundCIDRs.All = true, true, true
	usual.InboundExcludePorts = []iptables.PortRange{{First: 15020, Last: 15021}, {First: 15090, Last: 15090}}
	whole := usual
	whole.RedirectDNS, whole.CaptureAllDNS, whole.Interception = true, true, iptables.TProxyMode
	var sets []redirectSet
	for _, s := range []struct {
		name    string
		options iptables.Options
	}{{"one table", usual}, {"TPROXY and DNS, three tables", whole}} {
		rules, err := iptables.Compile(s.options)
		if err != nil {
			return nil, err
		}
		sets = append(sets, redirectSet{s.name, rules})
	}
	return sets, nil
}

var dualStackFlags = []string{"iptables", "--dual-stack", "-b", "*", "-i", "*", "-d", "15020-15021,15090"}

// measurer returns a function that measures an operation. It records the duration under the name "prefix: name".
func (r *redirect) measurer(ctx context.Context, prefix string) measure {
	return func(name string, f func() error) error {
		name = prefix + ": " + name
		if _, known := r.times[name]; !known {
			r.order = append(r.order, name)
		}
		backoff.Sleep(ctx, settle)
		began := time.Now()
		err := f()
		r.times[name] = append(r.times[name], time.Since(began))
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		return nil
	}
}

func inNewNamespace(f func(netns.NsHandle) error) error {
	ns, err := newNetNS()
	if err != nil {
		return err
	}
	defer func() { _ = ns.Close() }()
	return f(ns)
}

// first measures the installation of rules while no other namespace has rules.
func (r *redirect) first(ctx context.Context, s redirectSet) error {
	first := r.measurer(ctx, s.name)
	return inNewNamespace(func(ns netns.NsHandle) error {
		return floorRound(ns, s.rules, func(name string, f func() error) error { return first(name+", the machine's first rules", f) })
	})
}

// occupy installs rules in a namespace. They use all kernel features that the rounds use.
func (r *redirect) occupy(ctx context.Context, ns netns.NsHandle, s redirectSet) error {
	unmeasured := func(_ string, f func() error) error { return f() }
	return errors.Join(floorRound(ns, s.rules, unmeasured), r.baseline(ctx, ns, baselines[0], s.rules, unmeasured, false))
}

func (r *redirect) round(ctx context.Context, s redirectSet, perRule bool) error {
	took := r.measurer(ctx, s.name)
	steps := []func(netns.NsHandle) error{
		func(ns netns.NsHandle) error { return floorRound(ns, s.rules, took) },
		func(ns netns.NsHandle) error { return netlinkRound(ctx, ns, s.rules, took) },
	}
	for _, base := range baselines {
		steps = append(steps, func(ns netns.NsHandle) error { return r.baseline(ctx, ns, base, s.rules, took, true) })
	}
	if s.rules.Routing == nil || s.rules.Routing.Mark == 0 {
		steps = append(steps, func(ns netns.NsHandle) error { return r.commandRound(ctx, ns, took) })
	}
	if perRule {
		steps = append(steps, func(ns netns.NsHandle) error {
			return took("apply: iptables-legacy, one exec a rule", func() error { return r.oneByOne(ctx, ns, s.rules) })
		})
	}
	for _, step := range steps {
		if err := inNewNamespace(step); err != nil {
			return err
		}
	}
	return nil
}

type measure func(name string, f func() error) error

func floorRound(ns netns.NsHandle, rules *iptables.RuleSet, took measure) error {
	datagram, err := nft.Transaction(rules)
	if err != nil {
		return err
	}
	var s *nlsocket.Socket
	err = namespace.Do(int(ns), func() (err error) {
		s, err = nlsocket.Dial(unix.NETLINK_NETFILTER, time.Time{})
		return err
	})
	if err != nil {
		return err
	}
	defer func() { _ = s.Close() }()
	return took("apply: the kernel's part of netlink", func() error {
		if err := s.Send(datagram); err != nil {
			return err
		}
		replies, err := s.Receive()
		if err == nil && (len(replies) != 1 || replies[0].Errno() != 0) {
			err = fmt.Errorf("unexpected replies of the kernel: %+v", replies)
		}
		return err
	})
}

func netlinkRound(ctx context.Context, ns netns.NsHandle, rules *iptables.RuleSet, took measure) error {
	back, err := backends.New(backends.Config{NetNS: int(ns), Choice: backends.Auto})
	if err != nil {
		return err
	}
	apply := func() error { return back.Apply(ctx, rules) }
	return errors.Join(
		took("apply: netlink", apply), took("apply again: netlink", apply),
		took("verify (read and compare): netlink", func() error {
			in, err := back.Read(ctx)
			if err != nil {
				return err
			}
			if d := iptables.Diff(rules, in); len(d) > 0 {
				return fmt.Errorf("the installed rules have %d differences from the expected ones", len(d))
			}
			return nil
		}),
		took("clean: netlink", func() error { return back.Clean(ctx) }))
}

// commandRound measures the agent's iptables command as a process. For comparison, it measures a process that does nothing.
func (b *bench) commandRound(ctx context.Context, ns netns.NsHandle, took measure) error {
	agent := filepath.Join(b.bin, "pilotfish-agent")
	run := func(args ...string) func() error {
		return func() error {
			return b.program(ctx, ns, "", agent, args...)
		}
	}
	return errors.Join(took("apply: the command", run(dualStackFlags...)), took("clean: the command", run("iptables", "clean")),
		took("the command's help", run("iptables", "--help")),
		took("a program that does nothing: true", func() error { return b.program(ctx, ns, "", "true") }))
}
