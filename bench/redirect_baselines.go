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

// baseline is a way of installing the same rules with iptables-restore. Istio passes all tables of a family in one
// input, and first checks with iptables-save and one exec per rule, which is not included here.
type baseline struct {
	flavour  string
	perTable bool // one exec per table and family, instead of one per family
}

var baselines = []baseline{{"legacy", false}, {"legacy", true}, {"nft", false}, {"nft", true}}

func (r baseline) name() string {
	if r.perTable {
		return "iptables-" + r.flavour + "-restore, one exec a table and family"
	}
	return "iptables-" + r.flavour + "-restore, one exec a family"
}

// baselineFamilies are the programs of each family, without their flavour.
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

// input is the input of a program.
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

// baseline installs rules with a baseline, and removes them.
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

// program runs a program in a namespace. It uses a private xtables lock, so that it waits for no other process.
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

// oneByOne runs a legacy iptables program for each line of the iptables-restore input.
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

// words splits a line at blanks outside of quotes.
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

// printPeak prints the command's peak memory as reported by time(1). A process's own value would include that of its
// parent.
func (b *bench) printPeak(ctx context.Context) error {
	watch, err := exec.LookPath("time")
	if errors.Is(err, exec.ErrNotFound) {
		fmt.Println("the command's memory: not measured without the program time (package time)")
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
		fmt.Printf("  memory of %s at its peak: %s KiB\n", of, strings.TrimSpace(string(peak)))
	}
	return nil
}
