package snapshot

import (
	"container/list"
	"sync"

	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
)

// Cache is an LRU cache of resources, so that each is built and marshalled only once for all proxies and snapshots. All
// snapshots built from one another share it. It is safe for concurrent use.
//
// A key must contain everything the resource depends on: values, and pointers to immutable objects. So an entry is
// never stale, and unused entries are evicted when the limit is reached.
type Cache struct {
	mu      sync.Mutex
	entries map[any]*list.Element
	lru     *list.List // of *cacheEntry, the most recently used first
	limit   int
}

type cacheEntry struct {
	key      any
	once     sync.Once
	resource *xds.Resource
	err      error
}

// minCacheLimit is the minimum of the entry limit.
const minCacheLimit = 4096

func newCache() *Cache {
	return &Cache{entries: map[any]*list.Element{}, lru: list.New(), limit: minCacheLimit}
}

// Get returns the resource of a key, and builds it if it is not cached. Concurrent callers with the same key wait for
// one build.
func (c *Cache) Get(key any, build func() (*xds.Resource, error)) (*xds.Resource, error) {
	e := c.lookup(key)
	e.once.Do(func() { e.resource, e.err = build() })
	return e.resource, e.err
}

func (c *Cache) lookup(key any) *cacheEntry {
	c.mu.Lock()
	defer c.mu.Unlock()
	if at, ok := c.entries[key]; ok {
		c.lru.MoveToFront(at)
		return at.Value.(*cacheEntry)
	}
	for len(c.entries) >= c.limit {
		oldest := c.lru.Remove(c.lru.Back()).(*cacheEntry)
		delete(c.entries, oldest.key)
	}
	e := &cacheEntry{key: key}
	c.entries[key] = c.lru.PushFront(e)
	return e
}

// setExpected sets the entry limit from the expected number of entries. With a lower limit, many proxies of several
// scopes would evict each other's entries. Half of the entries may belong to earlier snapshots.
func (c *Cache) setExpected(use int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.limit = max(minCacheLimit, 2*use)
}

// Len returns the number of cached resources.
func (c *Cache) Len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.entries)
}
