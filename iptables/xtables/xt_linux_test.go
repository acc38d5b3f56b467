package xtables

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/internal/testns"
	"github.com/pilotfish-mesh/pilotfish/iptables"
)

func text(t testing.TB, v any) string {
	t.Helper()
	data, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestReadReturnsTheAppliedRules(t *testing.T) {
	forEachFlavour(t, func(t *testing.T, ns *testns.Namespace, b *Backend) {
		want := wordy()
		apply(t, b, want)
		got, err := b.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if len(got.Strange) > 0 {
			t.Errorf("strange: %q", got.Strange)
		}
		if want := iptables.Canonical(want); !reflect.DeepEqual(got.Rules, want) {
			t.Errorf("read\n%s\nwant\n%s", text(t, got.Rules), text(t, want))
		}
		if name, want := b.Name(), "iptables-"+string(b.cfg.Flavour); name != want {
			t.Errorf("Name returns %s, want %s", name, want)
		}
	})
}

// All groups are conditions of one rule, even after an Apply of another rule set failed and was rolled back.
func TestMaximumNumberOfGroupsCanBeCaptured(t *testing.T) {
	o := iptables.DefaultOptions()
	o.OutboundCIDRs.All, o.RedirectDNS, o.CaptureAllDNS, o.DualStack = true, true, true, true
	o.OwnerGroups = iptables.Groups{}
	for gid := range uint32(64) {
		o.OwnerGroups.Listed = append(o.OwnerGroups.Listed, 4294900000+2*gid)
	}
	want, err := iptables.Compile(o)
	if err != nil {
		t.Fatal(err)
	}
	forEachFlavour(t, func(t *testing.T, ns *testns.Namespace, b *Backend) {
		apply(t, b, want)
		got, err := b.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if want := iptables.Canonical(want); !reflect.DeepEqual(got.Rules, want) {
			t.Errorf("read\n%s\nwant\n%s", text(t, got.Rules), text(t, want))
		}
		once := everything(t, ns)
		b.cfg.Inject = func(step string) error {
			if strings.HasPrefix(step, "tables ") && strings.Contains(step, " of ip6") {
				return errors.New("no")
			}
			return nil
		}
		if err := b.Apply(t.Context(), wordy()); err == nil {
			t.Fatal("Apply did not fail")
		}
		if after := everything(t, ns); withoutEmpty(after) != withoutEmpty(once) {
			t.Errorf("before:\n%s\nafter:\n%s", once, after)
		}
	})
}

// small returns a rule set that uses only the table nat.
func small(port uint16) *iptables.RuleSet {
	return &iptables.RuleSet{Families: iptables.IPv4, Chains: []iptables.Chain{
		{Table: iptables.NAT, Name: "nat_output", Hook: iptables.Output, Rules: []iptables.Rule{
			{ID: "all", Match: iptables.Match{Protocol: iptables.TCP}, Verdict: iptables.Verdict{Action: iptables.Redirect, Port: port}},
		}},
	}}
}

func TestApplyingAgainChangesNothing(t *testing.T) {
	forEachFlavour(t, func(t *testing.T, ns *testns.Namespace, b *Backend) {
		apply(t, b, wordy())
		once := everything(t, ns)
		before, err := b.readTables(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, family := range families {
			texts, err := render(iptables.Canonical(wordy()), family)
			if err != nil {
				t.Fatal(err)
			}
			if todo := b.changes(before, family, &b.sortTools(before, family)[0], texts); len(todo) > 0 {
				t.Errorf("%d tables would be changed again; the first is %s of %s", len(todo), todo[0].table, todo[0].tool)
			}
		}
		apply(t, b, wordy())
		if twice := everything(t, ns); twice != once {
			t.Errorf("after once:\n%s\nafter twice:\n%s", once, twice)
		}
	})
}

func TestReplacingRulesEqualsAFreshApply(t *testing.T) {
	forEachFlavour(t, func(t *testing.T, ns *testns.Namespace, b *Backend) {
		fresh := testns.New(t)
		apply(t, backend(t, fresh, b.cfg.Flavour), small(15001))
		apply(t, b, wordy())
		apply(t, b, small(15002))
		apply(t, b, small(15001))
		got, want := everything(t, ns), everything(t, fresh)
		if b.cfg.Flavour == Legacy { // legacy tables remain when they are empty
			got, want = withoutEmpty(got), withoutEmpty(want)
		}
		if got != want {
			t.Errorf("after other rule sets:\n%s\nin a fresh namespace:\n%s", got, want)
		}
	})
}

// withoutEmpty removes lines of tables without content.
func withoutEmpty(all string) string {
	var lines []string
	for _, line := range strings.Split(all, "\n") {
		if line != "" && strings.Contains("-ra", line[:1]) || strings.HasPrefix(line, ":ISTIO") || strings.HasPrefix(line, ":PILOT") {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "\n")
}

const foreign = `
for f in nft legacy; do
	iptables-$f -w -t nat -N THEIRS
	iptables-$f -w -t nat -A THEIRS -p tcp --dport 81 -j RETURN
	iptables-$f -w -t nat -A OUTPUT -m comment --comment "-j ISTIO_OUTPUT" -j THEIRS
	iptables-$f -w -t nat -A PREROUTING -p tcp --dport 82 -j RETURN
	ip6tables-$f -w -t mangle -A OUTPUT -p udp -j ACCEPT
done`

func TestCleanLeavesForeignRules(t *testing.T) {
	for name, script := range map[string]string{"nothing": "true", "foreign rules": foreign, "an empty table": "iptables-nft -w -t raw -A OUTPUT -j ACCEPT; iptables-nft -w -t raw -F"} {
		t.Run(name, func(t *testing.T) {
			forEachFlavour(t, func(t *testing.T, ns *testns.Namespace, b *Backend) {
				shell(t, ns, script)
				before := everything(t, ns)
				apply(t, b, wordy())
				apply(t, b, small(15001))
				apply(t, b, wordy())
				if err := b.Clean(t.Context()); err != nil {
					t.Fatal(err)
				}
				unchanged(t, b, before, everything(t, ns))
				if in, err := b.Read(t.Context()); err != nil || in.Rules != nil || len(in.Strange) > 0 {
					t.Errorf("after Clean, Read returned %+v, %v", in, err)
				}
			})
		})
	}
}

func TestRulesThatTheKernelRefusesAreRolledBack(t *testing.T) {
	for _, table := range tables {
		broken := wordy()
		for i := range broken.Chains {
			if c := &broken.Chains[i]; c.Table == table {
				c.Rules = append(c.Rules, iptables.Rule{ID: "broken", Match: iptables.Match{Families: iptables.IPv6},
					Verdict: iptables.Verdict{Action: iptables.Jump, Chain: "ISTIO_NOWHERE"}})
			}
		}
		forEachFlavour(t, func(t *testing.T, ns *testns.Namespace, b *Backend) {
			shell(t, ns, foreign)
			apply(t, b, small(15001))
			before := everything(t, ns)
			err := b.Apply(t.Context(), broken)
			if err == nil || !strings.Contains(err.Error(), "table "+string(table)+": ") {
				t.Errorf("%v: it does not name the table %s", err, table)
			}
			unchanged(t, b, before, everything(t, ns))
		})
	}
}

// unchanged checks that the state of the namespace is the same as before.
func unchanged(t testing.TB, b *Backend, before, after string) {
	t.Helper()
	if b.cfg.Flavour == Legacy { // legacy tables remain when they are empty
		before, after = withoutEmpty(before), withoutEmpty(after)
	}
	if after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
}

var errInjected = errors.New("injected")

func TestApplyFailingAtAnyStepRestoresThePreviousState(t *testing.T) {
	forEachFlavour(t, func(t *testing.T, ns *testns.Namespace, b *Backend) {
		shell(t, ns, foreign)
		step := func(n int) func(string) error {
			return func(string) error {
				if n--; n == 0 {
					return errInjected
				}
				return nil
			}
		}
		for _, way := range []struct{ from, to *iptables.RuleSet }{{small(15001), wordy()}, {wordy(), nil}} {
			turn := func(n int, to *iptables.RuleSet) error {
				b, err := New(t.Context(), Config{NetNS: int(ns.Handle), Flavour: b.cfg.Flavour, Inject: step(n)})
				if err != nil {
					t.Fatal(err)
				}
				if to == nil {
					return b.Clean(t.Context())
				}
				return b.Apply(t.Context(), to)
			}
			if err := turn(0, way.from); err != nil {
				t.Fatal(err)
			}
			before := everything(t, ns)
			for n := 1; ; n++ {
				err := turn(n, way.to)
				if err == nil {
					if n < 4 {
						t.Errorf("only %d steps", n-1)
					}
					break
				}
				if !errors.Is(err, errInjected) {
					t.Fatal(err)
				}
				unchanged(t, b, before, everything(t, ns))
			}
		}
	})
}

func TestFlavourOfANamespaceDoesNotChange(t *testing.T) {
	for _, flavour := range []Flavour{NFT, Legacy} {
		ns := testns.New(t)
		apply(t, backend(t, ns, flavour), small(15001))
		// Listing with the other flavour creates an empty table.
		shell(t, ns, "iptables-nft -w -t nat -S; iptables-legacy -w -t nat -S")
		open := backend(t, ns, "")
		apply(t, open, small(15002))
		if name := open.Name(); name != "iptables-"+string(flavour) {
			t.Errorf("after %s it became %s", flavour, name)
		}
		other := backend(t, ns, map[Flavour]Flavour{NFT: Legacy, Legacy: NFT}[flavour])
		apply(t, other, small(15003))
		if rules := strings.Count(everything(t, ns), "--to-ports"); rules != 1 {
			t.Errorf("%d rules of two flavours:\n%s", rules, everything(t, ns))
		}
	}
}

func TestKilledApplyIsReportedAndRepaired(t *testing.T) {
	forEachFlavour(t, func(t *testing.T, ns *testns.Namespace, b *Backend) {
		apply(t, b, wordy())
		before := everything(t, ns)
		if _, err := b.guard(t.Context(), b.sortTools(nil, iptables.IPv4)[:1]); err != nil {
			t.Fatal(err)
		}
		in, err := b.Read(t.Context())
		if err != nil || len(in.Strange) != 1 || !strings.Contains(in.Strange[0], "blocks new connections") {
			t.Errorf("strange: %q, %v", in.Strange, err)
		}
		apply(t, b, wordy())
		unchanged(t, b, before, everything(t, ns))
	})
}

func TestChangedRulesAreReported(t *testing.T) {
	forEachFlavour(t, func(t *testing.T, ns *testns.Namespace, b *Backend) {
		apply(t, b, small(15001))
		program := "iptables-" + string(b.cfg.Flavour)
		shell(t, ns, program+" -w -t nat -I OUTPUT 1 -p tcp -j ACCEPT; "+program+" -w -t nat -A PILOTFISH_OUTPUT -p icmp -j ACCEPT")
		in, err := b.Read(t.Context())
		if err != nil || len(in.Strange) != 2 {
			t.Fatalf("strange: %q, %v", in.Strange, err)
		}
		shell(t, ns, program+" -w -t nat -F OUTPUT")
		in, err = b.Read(t.Context())
		if err != nil || in.Rules == nil || in.Rules.Chains[0].Hook != "" {
			t.Errorf("a chain that nothing calls is read as %+v, %v", in.Rules, err)
		}
		apply(t, b, small(15001))
		if in, err = b.Read(t.Context()); err != nil || !reflect.DeepEqual(in.Rules, iptables.Canonical(small(15001))) || len(in.Strange) > 0 {
			t.Errorf("after it is fixed, Read returned %+v, %v", in, err)
		}
	})
}
