package xt

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/internal/testns"
	"github.com/pilotfish-mesh/pilotfish/iptables"
)

// killedAt applies as one who is killed before the n-th step: nothing is undone. It tells whether there was such a step.
func killedAt(t *testing.T, ns *testns.Namespace, flavour Flavour, n int) (killed bool) {
	t.Helper()
	b, err := New(t.Context(), Config{NetNS: int(ns.Handle), Flavour: flavour, Inject: func(string) error {
		if n--; n == 0 {
			runtime.Goexit()
		}
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	killed = true
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := b.Apply(t.Context(), wordy()); err != nil {
			t.Error(err)
		}
		killed = false
	}()
	<-done
	return killed
}

func TestAFirstApplyThatIsKilledLeavesNoFamilyCapturedInPart(t *testing.T) {
	each(t, func(t *testing.T, _ *testns.Namespace, b *Backend) {
		fresh := testns.New(t)
		apply(t, backend(t, fresh, b.cfg.Flavour), wordy())
		want := everything(t, fresh)
		for n := 1; ; n++ {
			ns := testns.New(t)
			if !killedAt(t, ns, b.cfg.Flavour, n) {
				if n < 12 {
					t.Errorf("there were but %d steps", n-1)
				}
				return
			}
			b := backend(t, ns, b.cfg.Flavour)
			s, err := b.look(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for tool, all := range s {
				if state := inPart(all); state != "" {
					t.Errorf("killed before step %d: %s has %s", n, tool, state)
				}
			}
			in, err := b.Read(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if told := strings.Join(in.Strange, " ") + iptables.Summary(iptables.Diff(wordy(), in)); told == "" {
				t.Errorf("killed before step %d: nothing is told of it", n)
			}
			apply(t, b, wordy())
			if got := everything(t, ns); got != want {
				t.Errorf("killed before step %d, and applied again:\n%s\nfresh:\n%s", n, got, want)
			}
		}
	})
}

// inPart says what a family has if it is neither nothing, nor all, nor guarded.
func inPart(all []saved) string {
	if !guardOf(tableOf(all, guardTable)).empty() {
		return ""
	}
	var have []iptables.Table
	for _, table := range tables {
		if !ownOf(tableOf(all, table)).empty() {
			have = append(have, table)
		}
	}
	if len(have) == 0 || len(have) == len(tables) {
		return ""
	}
	return fmt.Sprintf("%v, and no guard", have)
}
