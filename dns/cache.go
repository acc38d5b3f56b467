package dns

import (
	"container/list"
	"sync"
	"time"
)

// question is the key of the cache. It contains everything that a resolver's answer depends on.
type question struct {
	name            string // fully qualified, lower case
	qtype, class    uint16
	dnssec, nocheck bool // the DO and CD bits
}

// cache is an LRU cache of resolvers' answers. An answer remains in the cache after it has expired, so that it can be
// served as a stale answer.
type cache struct {
	entries, bytes int // maximum number of entries, and of bytes
	now            func() time.Time

	mu    sync.Mutex
	held  int // size of all entries, in bytes
	byKey map[question]*list.Element
	order *list.List // the values are *cached; the most recently used entry is first
}

type cached struct {
	key    question
	answer *answer
	keep   time.Duration // age at which the entry is removed
}

// entryOverhead is the approximate memory per entry in bytes, in addition to the message and the name.
const entryOverhead = 300

func (c *cached) size() int { return len(c.key.name) + len(c.answer.wire) + entryOverhead }

func newCache(entries, bytes int, now func() time.Time) *cache {
	return &cache{entries: entries, bytes: bytes, now: now, byKey: make(map[question]*list.Element), order: list.New()}
}

// get returns the cached answer, which may be stale, or nil.
func (c *cache) get(key question) *answer {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.use(c.byKey[key])
}

// getBytes is like get, with the name as bytes instead of key.name. It does not allocate a string.
func (c *cache) getBytes(name []byte, key question) *answer {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.use(c.byKey[question{string(name), key.qtype, key.class, key.dnssec, key.nocheck}])
}

// use returns the answer of an entry and marks the entry as recently used. If the entry is too old, use removes it and
// returns nil. at may be nil. The caller holds the lock.
func (c *cache) use(at *list.Element) *answer {
	if at == nil {
		return nil
	}
	held := at.Value.(*cached)
	if held.answer.age(c.now()) >= held.keep {
		c.remove(at)
		return nil
	}
	c.order.MoveToFront(at)
	return held.answer
}

// put stores an answer and evicts the least recently used entries if the cache is full. keep is the age at which the
// entry is removed.
func (c *cache) put(key question, a *answer, keep time.Duration) {
	fresh := &cached{key: key, answer: a, keep: keep}
	c.mu.Lock()
	defer c.mu.Unlock()
	if at := c.byKey[key]; at != nil {
		c.remove(at)
	}
	if fresh.size() > c.bytes/8 {
		return
	}
	c.byKey[key] = c.order.PushFront(fresh)
	c.held += fresh.size()
	for c.order.Len() > c.entries || c.held > c.bytes {
		c.remove(c.order.Back())
	}
}

// clear removes all entries. It is called when the resolvers change, because the new ones may return other answers.
func (c *cache) clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.byKey)
	c.order.Init()
	c.held = 0
}

func (c *cache) remove(at *list.Element) {
	held := c.order.Remove(at).(*cached)
	delete(c.byKey, held.key)
	c.held -= held.size()
}

func (c *cache) len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.order.Len()
}
