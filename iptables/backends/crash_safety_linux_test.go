package backends

import (
	"fmt"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/internal/testns"
	"github.com/pilotfish-mesh/pilotfish/iptables"
	"github.com/pilotfish-mesh/pilotfish/iptables/xtables"
)

// If a process is killed while it replaces the rules of the same or another back end, either a complete rule set remains
// installed, or new connections are blocked. The next apply completes the change.
func TestKilledReplacementLeavesNoTrafficUnprotected(t *testing.T) {
	for _, turn := range []struct {
		from, to Choice
		steps    int
	}{
		{NFTables, NFTables, 3}, {NFTables, IPTablesNFT, 6}, {NFTables, IPTablesLegacy, 6}, {IPTablesNFT, NFTables, 6},
		{IPTablesLegacy, NFTables, 6}, {IPTablesNFT, IPTablesLegacy, 6},
	} {
		t.Run(fmt.Sprintf("%s then %s", turn.from, turn.to), func(t *testing.T) {
			fresh := testns.New(t)
			if err := open(t, fresh, turn.to).Apply(t.Context(), rules(t, iptables.RedirectMode)); err != nil {
				t.Fatal(err)
			}
			for n := 1; ; n++ {
				ns := testns.New(t)
				if err := open(t, ns, turn.from).Apply(t.Context(), rules(t, iptables.TProxyMode)); err != nil {
					t.Fatal(err)
				}
				if !killedAt(t, ns, turn.to, n) {
					if n <= turn.steps {
						t.Errorf("only %d steps", n-1)
					}
					return
				}
				if why := unprotected(t, ns); why != "" {
					t.Errorf("killed before step %d: %s", n, why)
				}
				b := open(t, ns, turn.to)
				if err := b.Apply(t.Context(), rules(t, iptables.RedirectMode)); err != nil {
					t.Fatal(err)
				}
				if got, want := listing(state(t, ns)), listing(state(t, fresh)); got != want {
					t.Errorf("killed before step %d, and applied again:\n%s\nfresh:\n%s", n, got, want)
				}
			}
		})
	}
}

// killedAt applies the rules and simulates a kill before step n: the change stops without a rollback. It returns false if
// the change has fewer steps.
func killedAt(t *testing.T, ns *testns.Namespace, c Choice, n int) (killed bool) {
	t.Helper()
	b, err := New(Config{NetNS: int(ns.Handle), Choice: c, Inject: func(string) error {
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
		if err := b.Apply(t.Context(), rules(t, iptables.RedirectMode)); err != nil {
			t.Error(err)
		}
		killed = false
	}()
	<-done
	return killed
}

// unprotected returns a description of the namespace if connections can bypass the proxy: no back end has a complete rule
// set, and new connections are not blocked. Otherwise it returns "".
func unprotected(t *testing.T, ns *testns.Namespace) string {
	t.Helper()
	b := open(t, ns, Auto)
	byNFTables, err := b.nft.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	x, err := xtables.New(t.Context(), xtables.Config{NetNS: int(ns.Handle)})
	if err != nil {
		t.Fatal(err)
	}
	byIPTables, err := x.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(strings.Join(byIPTables.Strange, " "), "blocks new connections") {
		return ""
	}
	for _, mode := range []iptables.Interception{iptables.TProxyMode, iptables.RedirectMode} {
		whole := iptables.Canonical(rules(t, mode))
		for _, in := range []*iptables.Installed{byNFTables, byIPTables} {
			if in.Rules != nil && reflect.DeepEqual(in.Rules.Chains, whole.Chains) {
				return ""
			}
		}
	}
	return fmt.Sprintf("by nftables there is %+v, by iptables %+v", byNFTables, byIPTables)
}
