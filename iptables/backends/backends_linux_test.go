package backends

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/internal/testns"
	"github.com/pilotfish-mesh/pilotfish/iptables"
	"github.com/pilotfish-mesh/pilotfish/iptables/nft"
)

func rules(t testing.TB, mode iptables.Interception) *iptables.RuleSet {
	t.Helper()
	o := iptables.DefaultOptions()
	o.Interception = mode
	o.InboundPorts.All, o.OutboundCIDRs.All, o.RedirectDNS, o.CaptureAllDNS = true, true, true, true
	r, err := iptables.Compile(o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func open(t testing.TB, ns *testns.Namespace, c Choice) *Backend {
	t.Helper()
	if _, err := exec.LookPath("iptables-nft"); err != nil {
		t.Skip("iptables is not installed")
	}
	b, err := New(Config{NetNS: int(ns.Handle), Choice: c})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// state returns everything in the namespace that back ends change.
func state(t testing.TB, ns *testns.Namespace) string {
	t.Helper()
	var out []byte
	err := ns.Run(func() (err error) {
		out, err = exec.Command("sh", "-c", "nft list ruleset; ip rule; ip -6 rule; ip route show table all; ip addr show lo; cat /proc/self/net/ip_tables_names").CombinedOutput()
		return err
	})
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return string(out)
}

func TestChangeOfBackEndCleansThePreviousOne(t *testing.T) {
	ctx := context.Background()
	for _, former := range []Choice{IPTablesNFT, IPTablesLegacy, NFTables} {
		for _, next := range []Choice{Auto, IPTablesNFT, IPTablesLegacy} {
			t.Run(fmt.Sprintf("%s then %s", former, next), func(t *testing.T) {
				ns, fresh := testns.New(t), testns.New(t)
				if err := open(t, ns, former).Apply(ctx, rules(t, iptables.TProxyMode)); err != nil {
					t.Fatal(err)
				}
				want := rules(t, iptables.RedirectMode)
				if err := open(t, ns, next).Apply(ctx, want); err != nil {
					t.Fatal(err)
				}
				if err := open(t, fresh, next).Apply(ctx, want); err != nil {
					t.Fatal(err)
				}
				if got, want := listing(state(t, ns)), listing(state(t, fresh)); got != want {
					t.Errorf("got:\n%s\nfresh:\n%s", got, want)
				}
				in, err := open(t, ns, Auto).Read(ctx)
				if err != nil || len(in.Strange) > 0 || in.Rules == nil || len(in.Rules.Chains) != len(want.Chains) {
					t.Errorf("read %+v, %v", in, err)
				}
			})
		}
	}
}

// listing returns the state without the list of legacy tables, which remain when they are empty, and without the order of
// chains, which has no meaning.
func listing(state string) string {
	lines := strings.Split(state[:strings.LastIndex(state, "valid_lft")], "\n")
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func TestCleaningFindsTheRulesOfEitherBackEnd(t *testing.T) {
	ctx := context.Background()
	for _, c := range []Choice{NFTables, IPTablesNFT, IPTablesLegacy} {
		t.Run(string(c), func(t *testing.T) {
			ns := testns.New(t)
			before := listing(state(t, ns))
			if err := open(t, ns, c).Apply(ctx, rules(t, iptables.TProxyMode)); err != nil {
				t.Fatal(err)
			}
			if err := open(t, ns, Auto).Clean(ctx); err != nil {
				t.Fatal(err)
			}
			if after := listing(state(t, ns)); after != before {
				t.Errorf("before:\n%s\nafter:\n%s", before, after)
			}
		})
	}
}

func TestIPTablesServeWhereTheKernelHasNoNFTables(t *testing.T) {
	ctx := context.Background()
	ns := testns.New(t)
	b := open(t, ns, Auto)
	lacking, err := nft.New(nft.Config{NetNS: int(ns.Handle), Inject: func(string) error { return nft.ErrUnsupported }})
	if err != nil {
		t.Fatal(err)
	}
	b.nft = lacking
	if err := b.Apply(ctx, rules(t, iptables.RedirectMode)); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(b.Name(), "iptables-") {
		t.Errorf("used back end: %s", b.Name())
	}
	if got := state(t, ns); !strings.Contains(got, "ISTIO_REDIRECT") && !strings.Contains(got, "nat") {
		t.Errorf("no rules are installed:\n%s", got)
	}
	b.cfg.Choice = NFTables
	if err := b.Apply(ctx, rules(t, iptables.RedirectMode)); !errors.Is(err, nft.ErrUnsupported) {
		t.Errorf("with nftables selected, iptables was used: %v", err)
	}
}

func TestNothingIsRunWhereIPTablesHasNothing(t *testing.T) {
	ns := testns.New(t)
	b := open(t, ns, Auto)
	t.Setenv("PATH", "")
	ctx := context.Background()
	if err := b.Apply(ctx, rules(t, iptables.RedirectMode)); err != nil {
		t.Fatal(err)
	}
	if there, err := hasIPTables(t, b); there || err != nil {
		t.Errorf("iptables has rules: %v %v", there, err)
	}
	in, err := b.Read(ctx)
	if err != nil || !reflect.DeepEqual(in.Rules, iptables.Canonical(rules(t, iptables.RedirectMode))) {
		t.Errorf("read %+v %v", in, err)
	}
}

func TestSettingsOfTheContractChooseTheBackEnd(t *testing.T) {
	for _, c := range []struct {
		binary string
		native bool
		want   Choice
		fails  bool
	}{
		{"", false, Auto, false}, {"", true, NFTables, false}, {"legacy", false, IPTablesLegacy, false}, {"nft", false, IPTablesNFT, false},
		{"nft", true, "", true}, {"ipchains", false, "", true},
	} {
		if got, err := ParseChoice(c.binary, c.native); got != c.want || (err != nil) != c.fails {
			t.Errorf("%q %v: %q %v", c.binary, c.native, got, err)
		}
	}
}

func TestConcurrentAppliesByTwoBackEndsInstallOne(t *testing.T) {
	ns := testns.New(t)
	want := rules(t, iptables.RedirectMode)
	for turn := range 5 {
		var both sync.WaitGroup
		for _, c := range []Choice{NFTables, IPTablesLegacy} {
			b := open(t, ns, c)
			both.Go(func() {
				if err := b.Apply(context.Background(), want); err != nil {
					t.Errorf("%s: %v", c, err)
				}
			})
		}
		both.Wait()
		in, err := open(t, ns, Auto).Read(context.Background())
		if err != nil || len(in.Strange) > 0 || !reflect.DeepEqual(in.Rules, iptables.Canonical(want)) {
			t.Fatalf("round %d: installed rules: %+v, %v", turn, in, err)
		}
	}
}

func TestForeignLegacyTablesAreNotOurs(t *testing.T) {
	ctx := context.Background()
	ns := testns.New(t)
	b := open(t, ns, Auto)
	others := func(script string) {
		t.Helper()
		err := ns.Run(func() error {
			out, err := exec.Command("sh", "-ec", "for p in iptables-legacy ip6tables-legacy; do "+script+"; done").CombinedOutput()
			t.Logf("%s", out)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	others("$p -w -t nat -N THEIRS; $p -w -t nat -A THEIRS -p tcp --dport 80 -j RETURN; $p -w -t filter -S")
	if err := b.Apply(ctx, rules(t, iptables.RedirectMode)); err != nil {
		t.Fatal(err)
	}
	if there, err := hasIPTables(t, b); there || err != nil {
		t.Errorf("rules of other programs are recognized as ours: %v %v", there, err)
	}
	others("$p -w -t nat -N ISTIO_OUTPUT")
	if there, err := hasIPTables(t, b); !there || err != nil {
		t.Errorf("a chain of ours is not found: %v %v", there, err)
	}
}

func hasIPTables(t *testing.T, b *Backend) (bool, error) {
	t.Helper()
	turn, err := b.acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer turn.Release()
	return turn.hasIPTables(t.Context())
}
