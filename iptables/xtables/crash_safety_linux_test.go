package xtables

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
	"github.com/pilotfish-mesh/pilotfish/internal/testns"
	"github.com/pilotfish-mesh/pilotfish/iptables"
	"github.com/pilotfish-mesh/pilotfish/iptables/route"
)

// inNamespace returns a copy of the back end for another namespace. It does not search for the programs again.
func (b *Backend) inNamespace(ns *testns.Namespace, inject func(string) error) *Backend {
	c := Config{NetNS: int(ns.Handle), Flavour: b.cfg.Flavour, Logger: b.cfg.Logger, Inject: inject}
	return &Backend{cfg: c, ns: namespace{fd: c.NetNS}, tools: b.tools, routes: route.New(route.Config{NetNS: c.NetNS, Inject: inject})}
}

// killedAt changes the installed rules and simulates a kill before step n: the change stops without a rollback. It returns
// false if the change has fewer steps.
func killedAt(t *testing.T, b *Backend, ns *testns.Namespace, to *iptables.RuleSet, n int) (killed bool) {
	t.Helper()
	killed = true
	done := make(chan struct{})
	go func() {
		defer close(done)
		err := turnInto(t, b.inNamespace(ns, func(string) error {
			if n--; n == 0 {
				runtime.Goexit()
			}
			return nil
		}), to)
		if err != nil {
			t.Error(err)
		}
		killed = false
	}()
	<-done
	return killed
}

// turnInto applies the rules, or removes the installed ones if rules is nil.
func turnInto(t *testing.T, b *Backend, to *iptables.RuleSet) error {
	if to == nil {
		return b.Clean(t.Context())
	}
	return b.Apply(t.Context(), to)
}

// After a kill between two runs of programs, each family has its previous rules, its new rules, or a guard. Connections
// never bypass the proxy. The next apply completes the change.
func TestKilledApplyLeavesOldRulesNewRulesOrAGuard(t *testing.T) {
	for name, way := range map[string]struct {
		from, to *iptables.RuleSet
		steps    int
	}{
		"the first apply":               {nil, wordy(), 11},
		"other rules, of another table": {twoTables(15001), ofBoth(small(15002)), 6},
		"one table, in two families":    {ofBoth(small(15001)), ofBoth(small(15002)), 6},
		"cleaning up":                   {twoTables(15001), nil, 6},
	} {
		t.Run(name, func(t *testing.T) {
			forEachFlavour(t, func(t *testing.T, _ *testns.Namespace, b *Backend) { killed(t, b, way.from, way.to, way.steps) })
		})
	}
}

func ofBoth(rules *iptables.RuleSet) *iptables.RuleSet {
	rules.Families = iptables.BothFamilies
	return rules
}

func twoTables(port uint16) *iptables.RuleSet {
	rules := ofBoth(small(port))
	rules.Chains = append(rules.Chains, iptables.Chain{Table: iptables.Mangle, Name: "mangle_prerouting", Hook: iptables.Prerouting, Rules: []iptables.Rule{
		{ID: "invalid", Match: iptables.Match{States: []iptables.State{iptables.Invalid}}, Verdict: iptables.Verdict{Action: iptables.Drop}},
	}})
	return rules
}

func killed(t *testing.T, b *Backend, from, to *iptables.RuleSet, steps int) {
	begin := func() *testns.Namespace {
		ns := testns.New(t)
		if from != nil {
			apply(t, b.inNamespace(ns, nil), from)
		}
		return ns
	}
	former, done := begin(), begin()
	if err := turnInto(t, b.inNamespace(done, nil), to); err != nil {
		t.Fatal(err)
	}
	want := everything(t, done)
	before, _ := inForce(t, b, former)
	after, _ := inForce(t, b, done)
	for n := 1; ; n++ {
		ns := begin()
		if !killedAt(t, b, ns, to, n) {
			if n <= steps {
				t.Errorf("only %d steps", n-1)
			}
			return
		}
		got, strange := inForce(t, b, ns)
		if !agrees(got, before) && !agrees(got, after) {
			t.Errorf("killed before step %d: neither the previous rules nor the new ones are installed, and no guard: %v", n, got)
		}
		if slices.Contains(slices.Collect(maps.Values(got)), held) && !strings.Contains(strange, "blocks new connections") {
			t.Errorf("killed before step %d: the guard is not reported: %q", n, strange)
		}
		if err := turnInto(t, b.inNamespace(ns, nil), to); err != nil {
			t.Fatal(err)
		}
		now := everything(t, ns)
		if b.cfg.Flavour == Legacy { // legacy tables remain when they are empty
			now, want = withoutEmpty(now), withoutEmpty(want)
		}
		if now != want {
			t.Errorf("killed before step %d, then repeated:\n%s\nwithout a kill:\n%s", n, now, want)
		}
	}
}

// held is the state of a family whose new connections are blocked by a guard.
const held = "held up"

// agrees reports whether each family has the rules of the state, or is blocked by a guard.
func agrees(got, state map[iptables.Families]string) bool {
	for family, text := range got {
		if text != held && text != state[family] {
			return false
		}
	}
	return true
}

// inForce returns our installed rules of each family, and the strange ones.
func inForce(t *testing.T, b *Backend, ns *testns.Namespace) (states map[iptables.Families]string, strange string) {
	t.Helper()
	s, err := b.inNamespace(ns, nil).readTables(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	states = map[iptables.Families]string{}
	for tool, all := range s {
		switch {
		case states[tool.family] == held:
		case !guardOf(tableOf(all, guardTable)).empty():
			states[tool.family] = held
		default:
			for _, table := range tables {
				if o := ownOf(tableOf(all, table)); !o.empty() {
					states[tool.family] += fmt.Sprintf("%s %s %v\n", tool, table, o)
				}
			}
		}
	}
	return states, strings.Join(decode(s).Strange, " ")
}

// A kill of the container also kills the iptables program that runs in it. That program may have changed only one of its
// tables.
func TestApplyKilledWithItsProgramLeavesAGuard(t *testing.T) {
	const killing = "KILLED_WITH_A_PROGRAM"
	if flavour := os.Getenv(killing); flavour != "" {
		b, err := New(t.Context(), Config{Flavour: Flavour(flavour)})
		if err == nil {
			err = b.Apply(t.Context(), wordy())
		}
		t.Fatal(err)
	}
	forEachFlavour(t, func(t *testing.T, ns *testns.Namespace, b *Backend) {
		folder, name := t.TempDir(), "iptables-"+string(b.cfg.Flavour)
		for end, script := range map[string]string{
			"": `exec "$program" "$@"`, "-save": `exec "$program" "$@"`,
			"-restore": `cat > input
[ $(grep -c COMMIT input) = 1 ] && exec "$program" "$@" < input
sed /COMMIT/q input | "$program" "$@"
touch between
kill -9 $PPID`,
		} {
			program, err := exec.LookPath(name + end)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(folder, name+end), []byte("#!/bin/sh\nprogram="+program+"\n"+script+"\n"), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		first := exec.Command(os.Args[0], "-test.run=^TestApplyKilledWithItsProgramLeavesAGuard$")
		first.Env = append(os.Environ(), killing+"="+string(b.cfg.Flavour), "PATH="+folder+":"+os.Getenv("PATH"))
		first.Dir = folder
		output, gone := ns.Start(t, first)
		<-gone
		if _, err := os.Stat(filepath.Join(folder, "between")); err != nil {
			t.Fatalf("it was not killed between two tables: %v\n%s", err, output)
		}
		states, strange := inForce(t, b, ns)
		if states[iptables.IPv4] != held || states[iptables.IPv6] != held || !strings.Contains(strange, "blocks new connections") {
			t.Errorf("no guard: %v, %q", states, strange)
		}
		if err := b.Apply(t.Context(), wordy()); err != nil {
			t.Fatal(err)
		}
		fresh := testns.New(t)
		apply(t, b.inNamespace(fresh, nil), wordy())
		if got, want := everything(t, ns), everything(t, fresh); got != want {
			t.Errorf("repeated:\n%s\nwithout a kill:\n%s", got, want)
		}
	})
}

// If this process is killed, its iptables program continues and changes the namespace. The lock must remain held until the
// program exits. Otherwise the program could overwrite a later change.
func TestLockOfKilledProcessIsHeldUntilItsProgramEnds(t *testing.T) {
	const killing = "KILLED_WHILE_A_PROGRAM_RUNS"
	if os.Getenv(killing) != "" {
		b, err := New(t.Context(), Config{Flavour: Legacy})
		if err == nil {
			err = b.Apply(t.Context(), small(15001))
		}
		t.Fatal(err)
	}
	b, err := New(t.Context(), Config{Flavour: Legacy})
	if err != nil {
		t.Skip(err)
	}
	ns, folder := testns.New(t), t.TempDir()
	program, err := exec.LookPath("iptables-legacy")
	if err != nil {
		t.Skip(err)
	}
	for end, script := range map[string]string{
		"": "exec " + program, "-save": "exec " + program + "-save",
		"-restore": ": > began\nwhile ! [ -e go ]; do sleep 0.01; done\n" + program + "-restore",
	} {
		if err := os.WriteFile(filepath.Join(folder, "iptables-legacy"+end), []byte("#!/bin/sh\n"+script+" \"$@\"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	first := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	first.Env = append(os.Environ(), killing+"=1", "PATH="+folder+":"+os.Getenv("PATH"))
	first.Dir = folder
	output, gone := ns.Start(t, first)
	testenv.Eventually(t, "the program runs", func() error {
		_, err := os.Stat(filepath.Join(folder, "began"))
		return err
	})
	if err := first.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-gone
	second := make(chan error, 1)
	go func() { second <- b.inNamespace(ns, nil).Apply(t.Context(), small(15002)) }()
	select {
	case err := <-second:
		t.Fatalf("the second process did not wait: %v\n%s", err, output)
	case <-time.After(time.Second):
	}
	if err := os.WriteFile(filepath.Join(folder, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := <-second; err != nil {
		t.Fatal(err)
	}
	fresh := testns.New(t)
	apply(t, b.inNamespace(fresh, nil), small(15002))
	if got, want := everything(t, ns), everything(t, fresh); got != want {
		t.Errorf("afterwards:\n%s\nin a fresh namespace:\n%s", got, want)
	}
}
