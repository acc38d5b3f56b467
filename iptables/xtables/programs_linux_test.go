package xtables

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/testns"
)

const knownVersion = `[ "$1" = --version ] && { echo "iptables v1.8.9 (legacy)"; exit; }
`

// programs creates a directory of programs of the legacy flavour, as the first directory of $PATH. All of them run the same
// script.
func programs(t *testing.T, script string) {
	t.Helper()
	folder := t.TempDir()
	for _, name := range []string{"iptables-legacy", "ip6tables-legacy"} {
		for _, end := range []string{"", "-save", "-restore"} {
			if err := os.WriteFile(filepath.Join(folder, name+end), []byte("#!/bin/sh\n"+script), 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Setenv("PATH", folder+":"+os.Getenv("PATH"))
}

func TestHungProgramsTimeOut(t *testing.T) {
	for name, script := range map[string]string{
		"at all":                 "",
		"but to name themselves": knownVersion,
	} {
		t.Run(name, func(t *testing.T) {
			ns := testns.New(t)
			shell(t, ns, "iptables-legacy -w -t nat -S") // creates a legacy table, so that the back end runs the save program
			began := filepath.Join(t.TempDir(), "began")
			programs(t, script+": > "+began+"; exec sleep 60\n")
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			go func() { // cancel only after the program was started
				for ctx.Err() == nil {
					if _, err := os.Stat(began); err == nil {
						cancel()
					}
					time.Sleep(10 * time.Millisecond)
				}
			}()
			b, err := New(ctx, Config{NetNS: int(ns.Handle), Flavour: Legacy})
			if err == nil {
				err = b.Apply(ctx, small(15001))
			}
			if err == nil || !strings.Contains(err.Error(), "did not exit in time") || !strings.Contains(err.Error(), "iptables-legacy") {
				t.Errorf("error %v", err)
			}
		})
	}
}

func TestUnexpectedVersionOutputIsReported(t *testing.T) {
	for said, want := range map[string]string{
		"echo nonsense\n":                            "iptables-legacy does not work",
		knownVersion + "echo '-A nonsense'\n":        "iptables-legacy: line 1",
		knownVersion + "yes '' | head -c 20000000\n": "exceeds 16 MiB",
		knownVersion + "echo no >&2; exit 7\n":       "exit status 7: no",
		knownVersion + "exit 0\n":                    "", // the programs print no rules, and Apply does not verify the installed ones
		knownVersion + "printf '*nat\\n-A X'\n":      "in an undeclared chain",
	} {
		ns := testns.New(t)
		shell(t, ns, "iptables-legacy -w -t nat -S")
		t.Run(said, func(t *testing.T) {
			programs(t, said)
			b, err := New(t.Context(), Config{NetNS: int(ns.Handle), Flavour: Legacy})
			if err == nil {
				err = b.Apply(t.Context(), small(15001))
			}
			if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
				t.Errorf("error %v, want %s", err, want)
			}
		})
	}
}
