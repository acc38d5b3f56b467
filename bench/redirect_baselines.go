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

	"github.com/vishvananda/netns"

	"github.com/pilotfish-mesh/pilotfish/iptables"
	"github.com/pilotfish-mesh/pilotfish/iptables/xtables"
)

// baseline is a way to install the same rules with iptables-restore. Istio passes all tables of an IP family in one input.
// It also checks existing rules with iptables-save and one process per rule, which this measurement does not include.
type baseline struct {
	flavour  string
	perTable bool // one process per table and IP family, instead of one per family
}

var baselines = []baseline{{"legacy", false}, {"legacy", true}, {"nft", false}, {"nft", true}}

func (r baseline) name() string {
	if r.perTable {
		return "iptables-" + r.flavour + "-restore, one process per table and family"
	}
	return "iptables-" + r.flavour + "-restore, one process per family"
}

// baselineFamilies are the iptables programs of the IP families. The flavour is appended to the name.
var baselineFamilies = []struct {
	family  iptables.Families
	program string
}{{iptables.IPv4, "iptables"}, {iptables.IPv6, "ip6tables"}}

func findBaselines() error {
	for _, r := range baselines {
		for _, f := range baselineFamilies {
			if _, err := exec.LookPath(f.program + "-" + r.flavour + "-restore"); err != nil {
				return fmt.Errorf("%w: install the package iptables", err)
			}
		}
	}
	return nil
}

// input is the standard input of an iptables-restore program.
type input struct{ program, text string }

func (r baseline) inputs(rules *iptables.RuleSet) (put, clean []input, err error) {
	for _, f := range baselineFamilies {
		text, err := xtables.Text(rules, f.family)
		if err != nil {
			return nil, nil, err
		}
		program := f.program + "-" + r.flavour + "-restore"
		tables := tablesOf(text)
		var empty strings.Builder
		for _, t := range tables {
			name, _, _ := strings.Cut(t, "\n")
			empty.WriteString(name + "\n-F\n-X\nCOMMIT\n")
		}
		clean = append(clean, input{program, empty.String()})
		if !r.perTable {
			tables = []string{text}
		}
		for _, t := range tables {
			put = append(put, input{program, t})
		}
	}
	return put, clean, nil
}

// tablesOf splits the input of iptables-restore into tables.
func tablesOf(text string) (tables []string) {
	for _, t := range strings.SplitAfter(text, "\nCOMMIT\n") {
		if at := strings.Index(t, "*"); at >= 0 {
			tables = append(tables, t[at:])
		}
	}
	return tables
}

// baseline measures the time that r needs to install rules. If andClean is set, it also measures their removal, except
// for baselines with one process per table.
func (b *bench) baseline(ctx context.Context, ns netns.NsHandle, r baseline, rules *iptables.RuleSet, took measure, andClean bool) error {
	put, clean, err := r.inputs(rules)
	if err != nil {
		return err
	}
	all := func(inputs []input) func() error {
		return func() error {
			for _, in := range inputs {
				if err := b.program(ctx, ns, in.text, in.program, "--noflush"); err != nil {
					return err
				}
			}
			return nil
		}
	}
	err = took("apply: "+r.name(), all(put))
	if err == nil && andClean && !r.perTable {
		err = took("clean: "+r.name(), all(clean))
	}
	return err
}

// program runs a program in a network namespace. It uses a separate xtables lock, so that the program does not wait for
// other processes.
func (b *bench) program(ctx context.Context, ns netns.NsHandle, stdin, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "XTABLES_LOCKFILE="+filepath.Join(b.dir, "xtables.lock"))
	cmd.Stdin = strings.NewReader(stdin)
	var output strings.Builder
	cmd.Stdout, cmd.Stderr = &output, &output
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // permanently: the thread stays in the namespace
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

// oneByOne installs rules with one iptables-legacy process for each line of the iptables-restore input.
func (b *bench) oneByOne(ctx context.Context, ns netns.NsHandle, rules *iptables.RuleSet) error {
	put, _, err := baselines[0].inputs(rules)
	if err != nil {
		return err
	}
	for _, in := range put {
		if err := b.lineByLine(ctx, ns, strings.TrimSuffix(in.program, "-restore"), in.text); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) lineByLine(ctx context.Context, ns netns.NsHandle, program, text string) error {
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
		if err := b.program(ctx, ns, "", program, args...); err != nil {
			return err
		}
	}
	return nil
}

// words splits a line at the spaces that are not between quotes.
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

// printPeak prints the peak memory of the agent's iptables command, which time(1) reports. If the benchmark started the
// command directly, the value would include the memory of the benchmark.
func (b *bench) printPeak(ctx context.Context) error {
	watch, err := exec.LookPath("time")
	if errors.Is(err, exec.ErrNotFound) {
		fmt.Println("memory of the command: not measured, because the program time is missing (install the package time)")
		return nil
	}
	if err != nil {
		return err
	}
	for _, of := range []string{"pilotfish-agent", "pilotfish-iptables"} {
		file := filepath.Join(b.dir, "peak")
		args := append([]string{"-f", "%M", "-o", file, filepath.Join(b.bin, of)}, dualStackFlags...)
		if of == "pilotfish-iptables" {
			args = append(args[:5:5], dualStackFlags[1:]...)
		}
		if err := inNewNamespace(func(ns netns.NsHandle) error { return b.program(ctx, ns, "", watch, args...) }); err != nil {
			return err
		}
		peak, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		fmt.Printf("  peak memory of %s: %s KiB\n", of, strings.TrimSpace(string(peak)))
	}
	return nil
}
