package snapshot

import (
	"sync"

	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
)

// Cache holds resources that were made of snapshots, so that each is made and marshalled once however many proxies get
// it and however many snapshots it outlives. It is shared by all snapshots that were built from one another, and safe
// for concurrent use.
//
// A key has to hold all that the resource depends on: values, and pointers to what is immutable. Then an entry is never
// wrong; it can only be no longer asked for, and such entries go once in a while.
type Cache struct {
	mu      sync.Mutex
	entries map[any]*cacheEntry
	// epoch counts sweeps; made is how many entries were added since the last one, kept how many older ones were in use
	// then.
	epoch, made, kept int
}

type cacheEntry struct {
	once     sync.Once
	resource *xds.Resource
	err      error
	epoch    int
}

func newCache() *Cache { return &Cache{entries: map[any]*cacheEntry{}} }

// Get gives the resource of a key, and makes it if it is not there. Concurrent callers of one key wait for the one that
// makes it.
func (c *Cache) Get(key any, build func() (*xds.Resource, error)) (*xds.Resource, error) {
	c.mu.Lock()
	e := c.entries[key]
	if e == nil {
		c.sweep()
		e = &cacheEntry{}
		c.entries[key] = e
		c.made++
	}
	e.epoch = c.epoch
	c.mu.Unlock()
	e.once.Do(func() { e.resource, e.err = build() })
	return e.resource, e.err
}

// Len is how many resources are held.
func (c *Cache) Len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.entries)
}

// sweepAfter is how many entries are added at least before the cache looks for idle ones.
const sweepAfter = 1024

// sweep drops what nobody asked for since the last sweep, whenever as much was added as was in use then: so the work is in
// proportion to what is made, and the cache stays within a small multiple of what is in use.
func (c *Cache) sweep() {
	if c.made < sweepAfter+c.kept {
		return
	}
	for key, e := range c.entries {
		if e.epoch < c.epoch {
			delete(c.entries, key)
		}
	}
	// What was added since the last sweep may be in use or not: that shows by the next one.
	c.kept = len(c.entries) - c.made
	c.epoch++
	c.made = 0
}
