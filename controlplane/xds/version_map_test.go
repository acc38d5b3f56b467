package xds

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
)

// TestVersionMapBehavesLikeAMap compares a version map with a map after random operations and page sharing.
func TestVersionMapBehavesLikeAMap(t *testing.T) {
	var shared pageCache
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 1))
		var l versionMap
		m := map[string]string{}
		for range 2000 {
			name, version := fmt.Sprint("n", r.IntN(300)), fmt.Sprint("v", r.IntN(3))
			switch r.IntN(8) {
			case 0, 1:
				l.remove(name)
				delete(m, name)
			case 2:
				l.compact(&shared)
			default:
				l.set(name, version)
				m[name] = version
			}
			if v, ok := l.get(name); v != m[name] || ok != mapContains(m, name) || l.len() != len(m) {
				t.Fatalf("seed %d: %s is %q %v of %d, want %q of %d", seed, name, v, ok, l.len(), m[name], len(m))
			}
		}
		bytes := 0
		for name, version := range m {
			bytes += len(name) + len(version) + nameCost
		}
		if l.compact(&shared); l.bytes != bytes {
			t.Fatalf("seed %d: the map accounts for %d bytes, want %d", seed, l.bytes, bytes)
		}
		var again versionMap
		if again.addAll(&shared, len(m), maps.All(m)); again.bytes != bytes {
			t.Fatalf("seed %d: after sharing a page the map accounts for %d bytes, want %d", seed, again.bytes, bytes)
		}
		if got := maps.Collect(l.all); !maps.Equal(got, m) || !slices.Equal(l.sorted(), mapKeys(m)) {
			t.Fatalf("seed %d: the map contains %v, want %v", seed, got, m)
		}
	}
}

func mapContains(m map[string]string, name string) bool { _, ok := m[name]; return ok }

// TestEqualMapsShareAPage checks that equal maps share a page, in any order of insertion, and that the page is freed
// when no map uses it.
func TestEqualMapsShareAPage(t *testing.T) {
	var shared pageCache
	versionMaps := make([]versionMap, 10)
	for i := range versionMaps {
		for n := range 500 {
			versionMaps[i].set(fmt.Sprint("n", (n+i*37)%500), "v")
		}
		versionMaps[i].compact(&shared)
		if versionMaps[i].shared != versionMaps[0].shared || len(versionMaps[i].overrides) > 0 {
			t.Fatalf("client %d does not share the page", i)
		}
	}
	versionMaps[3].set("n7", "w")
	if v, _ := versionMaps[4].get("n7"); v != "v" {
		t.Errorf("a change for one client is visible in another: %s", v)
	}
	clear(versionMaps)
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
	t.Error("an unused page is still cached")
}

// TestAddAllEqualsSet checks that addAll and set yield equal maps, which share pages only with equal maps.
func TestAddAllEqualsSet(t *testing.T) {
	var shared pageCache
	m := map[string]string{}
	for n := range 500 {
		m[fmt.Sprint("n", n)] = "v"
	}
	var first, second, other versionMap
	first.addAll(&shared, len(m), maps.All(m))
	first.compact(&shared)
	second.addAll(&shared, len(m), maps.All(m))
	if second.shared == nil || second.shared != first.shared || len(second.overrides) > 0 {
		t.Error("the second map does not share the page")
	}
	m["n7"] = "w"
	other.addAll(&shared, len(m), maps.All(m))
	if other.shared == first.shared || !maps.Equal(maps.Collect(other.all), m) || other.len() != len(m) {
		t.Errorf("the other map has %d names, and n7 is %q", other.len(), maps.Collect(other.all)["n7"])
	}
	second.addAll(&shared, len(m), maps.All(m)) // the map is not empty before
	if !maps.Equal(maps.Collect(second.all), m) || first.has("n7") && maps.Collect(first.all)["n7"] != "v" {
		t.Error("an override of a shared page is wrong, or visible in another map")
	}
}
