package xds

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
)

// TestLedgerIsAMap whatever is done to it, and however often what it has is shared.
func TestLedgerIsAMap(t *testing.T) {
	var shared pages
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 1))
		var l ledger
		m := map[string]string{}
		for range 2000 {
			name, version := fmt.Sprint("n", r.IntN(300)), fmt.Sprint("v", r.IntN(3))
			switch r.IntN(8) {
			case 0, 1:
				l.remove(name)
				delete(m, name)
			case 2:
				l.settle(&shared)
			default:
				l.set(name, version)
				m[name] = version
			}
			if v, ok := l.get(name); v != m[name] || ok != mapHas(m, name) || l.len() != len(m) {
				t.Fatalf("seed %d: %s is %q %v of %d, and not %q of %d", seed, name, v, ok, l.len(), m[name], len(m))
			}
		}
		bytes := 0
		for name, version := range m {
			bytes += len(name) + len(version) + nameCost
		}
		if l.settle(&shared); l.bytes != bytes {
			t.Fatalf("seed %d: it takes %d bytes, and not %d", seed, l.bytes, bytes)
		}
		var again ledger
		if again.adopt(&shared, len(m), maps.All(m)); again.bytes != bytes {
			t.Fatalf("seed %d: adopted it takes %d bytes, and not %d", seed, again.bytes, bytes)
		}
		if got := maps.Collect(l.all); !maps.Equal(got, m) || !slices.Equal(l.sorted(), mapKeys(m)) {
			t.Fatalf("seed %d: %v, and not %v", seed, got, m)
		}
	}
}

func mapHas(m map[string]string, name string) bool { _, ok := m[name]; return ok }

// TestClientsWithTheSameShareIt, in whatever order it came to them, and nobody keeps it when they are gone.
func TestClientsWithTheSameShareIt(t *testing.T) {
	var shared pages
	ledgers := make([]ledger, 10)
	for i := range ledgers {
		for n := range 500 {
			ledgers[i].set(fmt.Sprint("n", (n+i*37)%500), "v")
		}
		ledgers[i].settle(&shared)
		if ledgers[i].shared != ledgers[0].shared || len(ledgers[i].own) > 0 {
			t.Fatalf("client %d has a page of its own", i)
		}
	}
	ledgers[3].set("n7", "w")
	if v, _ := ledgers[4].get("n7"); v != "v" {
		t.Errorf("what one client gets shows in another: %s", v)
	}
	clear(ledgers)
	for range 100 {
		runtime.GC()
		shared.mu.Lock()
		left := len(shared.bySum)
		shared.mu.Unlock()
		if left == 0 {
			return
		}
		runtime.Gosched()
	}
	t.Error("a page is kept that nobody has")
}

// TestAdoptedLedgersAreTheSameAsThoseThatAreSet, and share a page with whoever has the same, but never with another.
func TestAdoptedLedgersAreTheSameAsThoseThatAreSet(t *testing.T) {
	var shared pages
	m := map[string]string{}
	for n := range 500 {
		m[fmt.Sprint("n", n)] = "v"
	}
	var first, second, other ledger
	first.adopt(&shared, len(m), maps.All(m))
	first.settle(&shared)
	second.adopt(&shared, len(m), maps.All(m))
	if second.shared == nil || second.shared != first.shared || len(second.own) > 0 {
		t.Error("the second has something of its own")
	}
	m["n7"] = "w"
	other.adopt(&shared, len(m), maps.All(m))
	if other.shared == first.shared || !maps.Equal(maps.Collect(other.all), m) || other.len() != len(m) {
		t.Errorf("the other has %d names, and n7 is %q", other.len(), maps.Collect(other.all)["n7"])
	}
	second.adopt(&shared, len(m), maps.All(m)) // it had something before
	if !maps.Equal(maps.Collect(second.all), m) || first.has("n7") && maps.Collect(first.all)["n7"] != "v" {
		t.Error("what was set over a shared page is wrong, or shows elsewhere")
	}
}
