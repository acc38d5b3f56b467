package nft

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/internal/testns"
	"github.com/pilotfish-mesh/pilotfish/iptables"
)

// sorted returns a snapshot in which chains are sorted, because their order has no meaning.
func sorted(t testing.TB, ns *testns.Namespace) string {
	t.Helper()
	lines := strings.Split(snapshot(t, ns), "\n")
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

var errInjected = errors.New("injected")

// failAt makes the step with the specified number fail. It counts all steps.
type failAt struct {
	number, steps int
	failed        string
}

func (f *failAt) inject(step string) error {
	f.steps++
	if f.steps == f.number {
		f.failed = step
		return fmt.Errorf("%s: %w", step, errInjected)
	}
	return nil
}

func TestAFailedApplyLeavesWhatWasThereBefore(t *testing.T) {
	for _, c := range [][2]string{{"", "tproxy dual"}, {"", "dual stack"}, {"tproxy dual", "all"}, {"tproxy dual", "tproxy"},
		{"tproxy", "tproxy dual"}, {"dual stack", "refuse IPv6"}, {"owners", "lists"}} {
		t.Run(c[0]+" to "+c[1], func(t *testing.T) {
			t.Parallel()
			ns := testns.New(t)
			foreignThings(t, ns)
			ctx := context.Background()
			if c[0] != "" {
				if err := backend(t, Config{NetNS: int(ns.Handle)}).Apply(ctx, compile(t, choices()[c[0]])); err != nil {
					t.Fatal(err)
				}
			}
			before := sorted(t, ns)
			for n := 1; ; n++ {
				fail := &failAt{number: n}
				b := backend(t, Config{NetNS: int(ns.Handle), Inject: fail.inject})
				err := b.Apply(ctx, compile(t, choices()[c[1]]))
				if err == nil && n > fail.steps {
					break
				}
				if !errors.Is(err, errInjected) {
					t.Fatalf("step %d of %d: %v", n, fail.steps, err)
				}
				if after := sorted(t, ns); after != before {
					t.Fatalf("after failing to %s, before:\n%s\nafter:\n%s", fail.failed, before, after)
				}
			}
			removeForeignRoute(t, ns) // in our table it is reported
			checkInForce(t, backend(t, Config{NetNS: int(ns.Handle)}), compile(t, choices()[c[1]]))
		})
	}
}

func TestConcurrentChangeIsDetectedBeforeReplace(t *testing.T) {
	for name, apply := range map[string]bool{"with rules of ours": true, "without": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ns := testns.New(t)
			if apply {
				mustApply(t, backend(t, Config{NetNS: int(ns.Handle)}), compile(t, choices()["all"]))
			}
			steps := 0
			b := backend(t, Config{NetNS: int(ns.Handle), Inject: func(string) error {
				if steps++; steps == 1 {
					nftCommand(t, ns, "add table inet pilotfish")
					nftCommand(t, ns, "add chain inet pilotfish late { type filter hook input priority 0; policy drop; }")
				}
				return nil
			}})
			want := compile(t, choices()["owners"])
			mustApply(t, b, want)
			checkInForce(t, b, want)
			if steps < 2 {
				t.Error("the state was not read again")
			}
		})
	}
}

func TestAFailedCleaningLeavesWhatWasThereBefore(t *testing.T) {
	ns := testns.New(t)
	ctx := context.Background()
	rules := compile(t, choices()["tproxy dual"])
	if err := backend(t, Config{NetNS: int(ns.Handle)}).Apply(ctx, rules); err != nil {
		t.Fatal(err)
	}
	before := sorted(t, ns)
	for n := 1; ; n++ {
		fail := &failAt{number: n}
		err := backend(t, Config{NetNS: int(ns.Handle), Inject: fail.inject}).Clean(ctx)
		if err == nil && n > fail.steps {
			break
		}
		if after := sorted(t, ns); !errors.Is(err, errInjected) || after != before {
			t.Fatalf("after failing to %s (%v), before:\n%s\nafter:\n%s", fail.failed, err, before, after)
		}
	}
}

func TestApplyOverOldRulesEqualsAFreshApply(t *testing.T) {
	ctx := context.Background()
	ns := testns.New(t)
	b := backend(t, Config{NetNS: int(ns.Handle)})
	fresh := map[string]string{}
	names := []string{"nothing", "lists", "owners", "dual stack", "refuse IPv6", "tproxy", "tproxy dual"}
	for _, name := range names {
		f := testns.New(t)
		if err := backend(t, Config{NetNS: int(f.Handle)}).Apply(ctx, compile(t, choices()[name])); err != nil {
			t.Fatal(err)
		}
		fresh[name] = sorted(t, f)
	}
	for _, first := range names {
		for _, second := range names {
			for _, name := range []string{first, second, second} {
				if err := b.Apply(ctx, compile(t, choices()[name])); err != nil {
					t.Fatalf("%s, then %s: %v", first, second, err)
				}
			}
			if got := sorted(t, ns); got != fresh[second] {
				t.Fatalf("%s, then %s:\n%s\nfresh:\n%s", first, second, got, fresh[second])
			}
		}
	}
}

func canonical(t testing.TB, name string) *iptables.RuleSet {
	return iptables.Canonical(compile(t, choices()[name]))
}

func TestConcurrentAppliesDoNotConflict(t *testing.T) {
	ctx := context.Background()
	ns := testns.New(t)
	sets := []string{"tproxy dual", "dual stack", "all", "tproxy"}
	var wg sync.WaitGroup
	for _, name := range sets {
		rules := compile(t, choices()[name])
		for range 2 {
			wg.Go(func() {
				b := backend(t, Config{NetNS: int(ns.Handle)})
				for range 15 {
					if err := b.Apply(ctx, rules); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	wg.Wait()
	b := backend(t, Config{NetNS: int(ns.Handle)})
	got, err := b.Read(ctx)
	if err != nil || len(got.Strange) > 0 {
		t.Fatalf("%v %v", got, err)
	}
	for _, name := range sets {
		if difference(got.Rules, canonical(t, name)) == "no difference" {
			return
		}
	}
	t.Error("the installed rules are not one of the rule sets")
}
