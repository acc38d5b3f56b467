package snapshot

import (
	"container/list"
	"sync"

	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
)

// Cache is an LRU cache of resources, so that each is built and marshalled only once for all proxies and snapshots. A
// snapshot shares the cache with the snapshots that are built from it. It is safe for concurrent use.
//
// A key must contain everything on which the resource depends: values, and pointers to immutable objects. An entry is
// therefore never stale. When the limit is reached, the least recently used entries are
// evicted.
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

// minCacheLimit is the lower bound of the entry limit.
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

// setExpected sets the entry limit from the expected number of entries. The limit is twice that number, because half of
// the entries may belong to earlier snapshots. With a lower limit, the proxies of different scopes would evict each
// other's entries.
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
