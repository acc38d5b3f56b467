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
	"github.com/pilotfish-mesh/pilotfish/iptables/xt"
)

// rival is a way of putting the same rules in force by iptables-restore. Istio's has all tables of a family in one text, and
// looks with iptables-save and an exec a rule before, which is not done here.
type rival struct {
	flavour  string
	perTable bool // one exec a table and family, not one a family
}

var rivals = []rival{{"legacy", false}, {"legacy", true}, {"nft", false}, {"nft", true}}

func (r rival) name() string {
	if r.perTable {
		return "iptables-" + r.flavour + "-restore, one exec a table and family"
	}
	return "iptables-" + r.flavour + "-restore, one exec a family"
}

// rivalFamilies are the programs of each family, without their flavour.
var rivalFamilies = []struct {
	family  iptables.Families
	program string
}{{iptables.IPv4, "iptables"}, {iptables.IPv6, "ip6tables"}}

func findRivals() error {
	for _, r := range rivals {
		for _, f := range rivalFamilies {
			if _, err := exec.LookPath(f.program + "-" + r.flavour + "-restore"); err != nil {
				return fmt.Errorf("%w: install the package iptables", err)
			}
		}
	}
	return nil
}

// input is what a program reads.
type input struct{ program, text string }

func (r rival) inputs(rules *iptables.RuleSet) (put, clean []input, err error) {
	for _, f := range rivalFamilies {
		text, err := xt.Text(rules, f.family)
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

// tablesOf splits what iptables-restore reads.
func tablesOf(text string) (tables []string) {
	for _, t := range strings.SplitAfter(text, "\nCOMMIT\n") {
		if at := strings.Index(t, "*"); at >= 0 {
			tables = append(tables, t[at:])
		}
	}
	return tables
}

// rival puts rules in force by a rival, and takes them away.
func (b *bench) rival(ctx context.Context, ns netns.NsHandle, r rival, rules *iptables.RuleSet, took measure, andClean bool) error {
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

// program runs one in a namespace. Its lock is a file of ours, so that it waits for nobody.
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

// oneByOne runs a program of the legacy flavour for each line that its iptables-restore would get.
func (b *bench) oneByOne(ctx context.Context, ns netns.NsHandle, rules *iptables.RuleSet) error {
	put, _, err := rivals[0].inputs(rules)
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

// printPeak tells the memory of the command at its peak, as the program time sees it: a process's own count has that of
// whoever started it in it.
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
		if err := inFresh(func(ns netns.NsHandle) error { return b.program(ctx, ns, "", watch, args...) }); err != nil {
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
