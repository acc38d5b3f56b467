package registry

import (
	"maps"
	"math/rand/v2"
	"testing"
)

func TestTableEqualsAMapAndFormerTablesDoNotChange(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1))
	var tables []table[int, int]
	var want []map[int]int
	current, expected := table[int, int]{}, map[int]int{}
	for range 200 {
		edit := current.edit()
		for range random.IntN(20) {
			key := random.IntN(300)
			if random.IntN(3) == 0 {
				edit.remove(key)
				delete(expected, key)
			} else {
				edit.set(key, random.Int())
				expected[key], _ = edit.get(key)
			}
		}
		current = edit.table
		tables, want = append(tables, current), append(want, maps.Clone(expected))
	}
	for i, table := range tables {
		if got := maps.Collect(table.all()); !maps.Equal(got, want[i]) || table.size != len(want[i]) {
			t.Fatalf("table %d contains %v of size %d, want %v", i, got, table.size, want[i])
		}
		for key := range 300 {
			value, ok := table.get(key)
			if wanted, known := want[i][key]; ok != known || value != wanted {
				t.Fatalf("table %d: key %d is %d, %t", i, key, value, ok)
			}
		}
	}
}
