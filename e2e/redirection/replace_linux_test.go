package redirection

import (
	"sync"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/iptables"
	owners "github.com/pilotfish-mesh/pilotfish/iptables/backends"
)

// During each replacement, a connection that both rule sets capture must be captured or wait.
func TestNoConnectionEscapesWhileRulesAreReplaced(t *testing.T) {
	turns := map[string]int{"nftables": 200, "iptables-nft": 12, "iptables-legacy": 12}
	for name, backend := range backends {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newTestNetwork(t)
			w.serve(t)
			b := backend(t, w.pod)
			all := compiledSets(t, flags(star, dual, tproxy), flags(star, dual, []string{"drop-invalid=true"}), flags(star, dual, tproxy), flags(star, dual, dns),
				flags(star, dual, tproxy, dns, []string{"drop-invalid=true"}))
			replace := func(turn int) {
				if err := b.Apply(t.Context(), all[turn%len(all)]); err != nil {
					t.Error(err)
				}
			}
			w.whileConnecting(t, func() {
				for turn := range turns[name] {
					replace(turn)
				}
			}, replace)
		})
	}
}

// The same holds if another backend replaces the rules.
func TestNoConnectionEscapesWhileBackendsAlternate(t *testing.T) {
	for _, family := range []string{"iptables", "ip6tables"} {
		requirePrograms(t, family+"-nft-restore", family+"-legacy-restore")
	}
	for mode, set := range map[string][]string{"REDIRECT": flags(star, dual), "TPROXY": flags(star, dual, tproxy)} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			w := newTestNetwork(t)
			w.serve(t)
			rules := compiledSets(t, set)[0]
			takes := func(turn int) {
				choice := []owners.Choice{owners.NFTables, owners.IPTablesNFT, owners.IPTablesLegacy}[turn%3]
				b, err := owners.New(owners.Config{NetNS: int(w.pod.Handle), Choice: choice})
				if err == nil {
					err = b.Apply(t.Context(), rules)
				}
				if err != nil {
					t.Errorf("%s: %v", choice, err)
				}
			}
			w.whileConnecting(t, func() {
				for turn := range 9 {
					takes(turn + 1)
				}
			}, takes)
		})
	}
}

// whileConnecting calls do while clients make connections that must be captured.
func (w *testNetwork) whileConnecting(t *testing.T, do func(), begin func(turn int)) {
	t.Helper()
	begin(0)
	done := make(chan struct{})
	var clients sync.WaitGroup
	for _, c := range connections() {
		if c.name == "app tcp mesh:80" || c.name == "peer tcp own:8080" {
			for family := range 2 {
				clients.Go(func() { w.connectRepeatedly(t, c, family, done) })
			}
		}
	}
	do()
	close(done)
	clients.Wait()
}

func compiledSets(t testing.TB, all ...[]string) (sets []*iptables.RuleSet) {
	for _, f := range all {
		rules, err := iptables.Compile(parse(t, f))
		if err != nil {
			t.Fatal(err)
		}
		sets = append(sets, rules)
	}
	return sets
}

// connectRepeatedly makes the connection repeatedly. A connection without an immediate reply has not escaped.
func (w *testNetwork) connectRepeatedly(t *testing.T, c connection, family int, done chan struct{}) {
	captured := 0
	end := time.Now().Add(time.Minute)
	for {
		select {
		case <-done:
			// The number of attempts depends on the load of the machine: a waiting connection needs its whole timeout.
			if captured > 0 {
				return
			}
			if time.Now().After(end) {
				t.Errorf("%s, IPv%d: was never captured", c.name, 4+2*family)
				return
			}
		default:
		}
		p, _ := c.probe(family)
		p.wait = 400 * time.Millisecond
		switch got := p.run(c.namespace(w)); arrival(got) {
		case c.all:
			captured++
		case "silence", "refused":
		default:
			t.Errorf("%s, IPv%d: escaped to %s", c.name, 4+2*family, got)
		}
	}
}
