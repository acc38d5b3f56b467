package snapshot

import (
	"container/list"
	"sync"

	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
)

// Cache holds resources that were made of snapshots, so that each is made and marshalled once however many proxies get
// it and however many snapshots it outlives. It is shared by all snapshots that were built from one another, and safe
// for concurrent use.
//
// A key has to hold all that the resource depends on: values, and pointers to what is immutable. Then an entry is never
// wrong; it can only be no longer asked for, and such entries go when there are more than the mesh can have use for.
type Cache struct {
	mu      sync.Mutex
	entries map[any]*list.Element
	recent  *list.List // of *cacheEntry, the one that was asked for last in front
	limit   int
}

type cacheEntry struct {
	key      any
	once     sync.Once
	resource *xds.Resource
	err      error
}

// leastLimit is how many entries are held at any rate.
const leastLimit = 4096

func newCache() *Cache {
	return &Cache{entries: map[any]*list.Element{}, recent: list.New(), limit: leastLimit}
}

// Get gives the resource of a key, and makes it if it is not there. Concurrent callers of one key wait for the one that
// makes it.
func (c *Cache) Get(key any, build func() (*xds.Resource, error)) (*xds.Resource, error) {
	e := c.entry(key)
	e.once.Do(func() { e.resource, e.err = build() })
	return e.resource, e.err
}

func (c *Cache) entry(key any) *cacheEntry {
	c.mu.Lock()
	defer c.mu.Unlock()
	if at, ok := c.entries[key]; ok {
		c.recent.MoveToFront(at)
		return at.Value.(*cacheEntry)
	}
	for len(c.entries) >= c.limit {
		oldest := c.recent.Remove(c.recent.Back()).(*cacheEntry)
		delete(c.entries, oldest.key)
	}
	e := &cacheEntry{key: key}
	c.entries[key] = c.recent.PushFront(e)
	return e
}

// expect sets how many entries are held at most, by what a mesh has use for: fewer would be made again and again when
// many proxies of several scopes come at once. Half of them may be of snapshots before.
func (c *Cache) expect(use int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.limit = max(leastLimit, 2*use)
}

// Len is how many resources are held.
func (c *Cache) Len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.entries)
}
