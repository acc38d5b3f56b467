//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/pilotfish-mesh/pilotfish/iptables"
	"github.com/pilotfish-mesh/pilotfish/iptables/backends"
	"github.com/pilotfish-mesh/pilotfish/iptables/kernel"
	"github.com/pilotfish-mesh/pilotfish/iptables/namespace"
	"github.com/pilotfish-mesh/pilotfish/iptables/nft"
	"github.com/pilotfish-mesh/pilotfish/iptables/xt"
)

const (
	redirectRounds = 60 // of what takes milliseconds
	ruleRounds     = 5  // of one program a rule
	// settle is between two measurements: the kernel goes on tidying up after something was taken away, and lets whoever
	// comes next wait for that.
	settle = 50 * time.Millisecond
)

// redirection measures how long it takes to put a dual stack pod's rules in force, to read and compare them, and to take
// them away: by netlink in the process, by iptables-restore once for each family, by one iptables a rule, and by the whole
// command from its start to its exit.
func (b *bench) redirection(ctx context.Context) error {
	if os.Geteuid() != 0 {
		return errors.New("only root can make network namespaces")
	}
	for _, program := range []string{"iptables-legacy-restore", "ip6tables-legacy-restore"} {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("%w: install the package iptables", err)
		}
	}
	rules, err := dualStackRules()
	if err != nil {
		return err
	}
	times := map[string][]time.Duration{}
	for i := range redirectRounds {
		if err := b.redirectRound(ctx, rules, times, i < ruleRounds); err != nil {
			return err
		}
	}
	n := 0
	for _, c := range rules.Chains {
		n += len(c.Rules)
	}
	fmt.Printf("redirection: %d rules of IPv4 and IPv6, medians of %d rounds in fresh namespaces\n", n, redirectRounds)
	restore := times[restoreName]
	median(restore)
	for _, name := range redirectOrder {
		d := times[name]
		middle := median(d) // sorts
		line := fmt.Sprintf("  %-40s %7.2f ms, best %7.2f, p99 %7.2f", name, milliseconds(middle), milliseconds(d[0]), milliseconds(d[len(d)*99/100]))
		if strings.HasPrefix(name, "apply") && name != restoreName {
			line += fmt.Sprintf("; iptables-restore takes x%.1f of it, at best x%.1f", float64(median(restore))/float64(middle), float64(restore[0])/float64(d[0]))
		}
		fmt.Println(line)
	}
	return nil
}

// floorName is of what the kernel alone takes: one datagram that was made before, and its answer.
const floorName = "apply: the kernel's part of netlink"

const restoreName = "apply: iptables-restore, both families"

var redirectOrder = []string{floorName, "apply: netlink", "apply again: netlink", "verify (read and compare): netlink", "clean: netlink",
	restoreName, "clean: iptables-restore, both families", "apply: one iptables a rule",
	"apply: the command", "clean: the command", "the command's help"}

func dualStackRules() (*iptables.RuleSet, error) {
	o := iptables.DefaultOptions()
	o.DualStack, o.InboundPorts.All, o.OutboundCIDRs.All = true, true, true
	o.InboundExcludePorts = []iptables.PortRange{{First: 15020, Last: 15021}, {First: 15090, Last: 15090}}
	return iptables.Compile(o)
}

var dualStackFlags = []string{"iptables", "--dual-stack", "-b", "*", "-i", "*", "-d", "15020-15021,15090"}

func (b *bench) redirectRound(ctx context.Context, rules *iptables.RuleSet, times map[string][]time.Duration, perRule bool) error {
	took := func(name string, f func() error) error {
		pause(ctx, settle)
		began := time.Now()
		err := f()
		times[name] = append(times[name], time.Since(began))
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		return nil
	}
	inFresh := func(f func(netns.NsHandle) error) error {
		ns, err := newNetNS()
		if err != nil {
			return err
		}
		defer func() { _ = ns.Close() }()
		return f(ns)
	}
	err := errors.Join(
		inFresh(func(ns netns.NsHandle) error { return floorRound(ns, rules, took) }),
		inFresh(func(ns netns.NsHandle) error { return netlinkRound(ctx, ns, rules, took) }),
		inFresh(func(ns netns.NsHandle) error { return b.restoreRound(ctx, ns, rules, took) }),
		inFresh(func(ns netns.NsHandle) error { return b.commandRound(ctx, ns, took) }))
	if err == nil && perRule {
		err = inFresh(func(ns netns.NsHandle) error {
			return took("apply: one iptables a rule", func() error { return b.oneByOne(ctx, ns, rules) })
		})
	}
	return err
}

type measure func(name string, f func() error) error

func floorRound(ns netns.NsHandle, rules *iptables.RuleSet, took measure) error {
	datagram, err := nft.Transaction(rules)
	if err != nil {
		return err
	}
	var s *kernel.Socket
	err = namespace.Do(int(ns), func() (err error) {
		s, err = kernel.Dial(unix.NETLINK_NETFILTER, time.Now().Add(time.Minute))
		return err
	})
	if err != nil {
		return err
	}
	defer func() { _ = s.Close() }()
	return took(floorName, func() error {
		if err := s.Send(datagram); err != nil {
			return err
		}
		replies, err := s.Receive()
		if err == nil && (len(replies) != 1 || replies[0].Errno() != 0) {
			err = fmt.Errorf("%+v", replies)
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
				return fmt.Errorf("%d differences", len(d))
			}
			return nil
		}),
		took("clean: netlink", func() error { return back.Clean(ctx) }))
}

// restoreFamilies are the programs for each family. Their lock is a file of ours, so that nobody waits for it.
var restoreFamilies = []struct {
	family  iptables.Families
	program string
}{{iptables.IPv4, "iptables-legacy"}, {iptables.IPv6, "ip6tables-legacy"}}

// program runs one in a namespace.
func (b *bench) program(ctx context.Context, ns netns.NsHandle, stdin, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "XTABLES_LOCKFILE="+filepath.Join(b.dir, "xtables.lock"))
	cmd.Stdin = strings.NewReader(stdin)
	var output strings.Builder
	cmd.Stdout, cmd.Stderr = &output, &output
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: the thread is in the namespace
		err := netns.Set(ns)
		if err == nil {
			err = cmd.Run()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, output.String())
	}
	return nil
}

func (b *bench) restoreRound(ctx context.Context, ns netns.NsHandle, rules *iptables.RuleSet, took measure) error {
	texts := map[iptables.Families]string{}
	for _, f := range restoreFamilies {
		text, err := xt.Text(rules, f.family)
		if err != nil {
			return err
		}
		texts[f.family] = text
	}
	all := func(text func(iptables.Families) string) func() error {
		return func() error {
			for _, f := range restoreFamilies {
				if err := b.program(ctx, ns, text(f.family), f.program+"-restore", "--noflush"); err != nil {
					return err
				}
			}
			return nil
		}
	}
	return errors.Join(
		took(restoreName, all(func(f iptables.Families) string { return texts[f] })),
		took("clean: iptables-restore, both families", all(func(iptables.Families) string {
			return "*nat\n-F\n-X\nCOMMIT\n"
		})))
}

// oneByOne runs a program for each line that iptables-restore would get.
func (b *bench) oneByOne(ctx context.Context, ns netns.NsHandle, rules *iptables.RuleSet) error {
	for _, f := range restoreFamilies {
		text, err := xt.Text(rules, f.family)
		if err != nil {
			return err
		}
		table := ""
		for _, line := range strings.Split(text, "\n") {
			args := []string{"-t", table}
			switch {
			case strings.HasPrefix(line, "*"):
				table = line[1:]
				continue
			case strings.HasPrefix(line, ":"):
				name := strings.Fields(line[1:])[0]
				if name == "OUTPUT" || name == "PREROUTING" {
					continue
				}
				args = append(args, "-N", name)
			case strings.HasPrefix(line, "-"):
				args = append(args, words(line)...)
			default:
				continue
			}
			if err := b.program(ctx, ns, "", f.program, args...); err != nil {
				return err
			}
		}
	}
	return nil
}

// words splits a line at blanks that are not within quotes.
func words(line string) (out []string) {
	for i, part := range strings.Split(line, `"`) {
		if i%2 == 1 {
			out = append(out, part)
			continue
		}
		out = append(out, strings.Fields(part)...)
	}
	return out
}

// commandRound measures the agent's command as a process.
func (b *bench) commandRound(ctx context.Context, ns netns.NsHandle, took measure) error {
	agent := filepath.Join(b.bin, "pilotfish-agent")
	run := func(args ...string) func() error {
		return func() error {
			return b.program(ctx, ns, "", agent, args...)
		}
	}
	return errors.Join(took("apply: the command", run(dualStackFlags...)), took("clean: the command", run("iptables", "clean")),
		took("the command's help", run("iptables", "--help")))
}
