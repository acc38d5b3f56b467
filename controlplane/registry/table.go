package registry

import (
	"hash/maphash"
	"iter"
	"slices"
)

// table is an immutable hash table. An edit shares all unchanged buckets with the table from which it started, so the
// cost of a change hardly depends on the size of the table. The zero value is an empty table.
type table[K comparable, V any] struct {
	buckets [][]tableEntry[K, V] // the number of buckets is a power of two
	size    int
}

type tableEntry[K comparable, V any] struct {
	key   K
	value V
}

// maxBucketSize is the average size of buckets at which a table receives more buckets. An edit copies the list of
// buckets, and the buckets that it changes.
const maxBucketSize = 32

var tableSeed = maphash.MakeSeed()

func bucketOf[K comparable](key K, buckets int) int {
	return int(maphash.Comparable(tableSeed, key) & uint64(buckets-1))
}

func (t table[K, V]) get(key K) (value V, ok bool) {
	if len(t.buckets) == 0 {
		return value, false
	}
	for _, e := range t.buckets[bucketOf(key, len(t.buckets))] {
		if e.key == key {
			return e.value, true
		}
	}
	return value, false
}

// all iterates over the entries, in no particular order.
func (t table[K, V]) all() iter.Seq2[K, V] {
	return func(yield func(K, V) bool) {
		for _, bucket := range t.buckets {
			for _, e := range bucket {
				if !yield(e.key, e.value) {
					return
				}
			}
		}
	}
}

// tableEdit is a series of changes to a copy of a table.
type tableEdit[K comparable, V any] struct {
	table[K, V]
	owned []bool // the buckets that the edit has copied
}

// edit starts changes to a copy of the table.
func (t table[K, V]) edit() *tableEdit[K, V] {
	e := &tableEdit[K, V]{table: table[K, V]{buckets: slices.Clone(t.buckets), size: t.size}}
	e.owned = make([]bool, len(e.buckets))
	return e
}

// bucket returns the bucket of a key, which the caller may change.
func (e *tableEdit[K, V]) bucket(key K) *[]tableEntry[K, V] {
	at := bucketOf(key, len(e.buckets))
	if !e.owned[at] {
		e.owned[at] = true
		e.buckets[at] = slices.Clone(e.buckets[at])
	}
	return &e.buckets[at]
}

func (e *tableEdit[K, V]) set(key K, value V) {
	if e.size >= len(e.buckets)*maxBucketSize {
		e.grow()
	}
	bucket := e.bucket(key)
	for i := range *bucket {
		if (*bucket)[i].key == key {
			(*bucket)[i].value = value
			return
		}
	}
	*bucket = append(*bucket, tableEntry[K, V]{key, value})
	e.size++
}

func (e *tableEdit[K, V]) remove(key K) {
	if _, ok := e.get(key); !ok {
		return
	}
	bucket := e.bucket(key)
	*bucket = slices.DeleteFunc(*bucket, func(entry tableEntry[K, V]) bool { return entry.key == key })
	e.size--
}

// grow quadruples the number of buckets, so the entries are seldom distributed again.
func (e *tableEdit[K, V]) grow() {
	old := e.buckets
	n := max(1, 4*len(old))
	e.buckets, e.owned = make([][]tableEntry[K, V], n), make([]bool, n)
	for i := range e.owned {
		e.owned[i] = true
	}
	for _, bucket := range old {
		for _, entry := range bucket {
			at := bucketOf(entry.key, n)
			e.buckets[at] = append(e.buckets[at], entry)
		}
	}
}
