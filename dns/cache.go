package dns

import (
	"container/list"
	"sync"
	"time"
)

// question is the key of the cache. Answers depend on nothing else.
type question struct {
	name            string // fully qualified, lower case
	qtype, class    uint16
	dnssec, nocheck bool // the DO and CD bits
}

// cache stores answers until they are too old even as stale answers, or until the least recently used one must be
// evicted.
type cache struct {
	entries, bytes int
	now            func() time.Time

	mu    sync.Mutex
	held  int
	byKey map[question]*list.Element
	order *list.List // of *cached, most recently used first
}

type cached struct {
	key    question
	answer *answer
	keep   time.Duration // maximum age of an entry
}

// entryOverhead is the approximate memory of an entry without its message and name, in bytes.
const entryOverhead = 300

func (c *cached) size() int { return len(c.key.name) + len(c.answer.wire) + entryOverhead }

func newCache(entries, bytes int, now func() time.Time) *cache {
	return &cache{entries: entries, bytes: bytes, now: now, byKey: make(map[question]*list.Element), order: list.New()}
}

func (c *cache) get(key question) *answer {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.use(c.byKey[key])
}

// getBytes is get without the allocation of a string for the name.
func (c *cache) getBytes(name []byte, key question) *answer {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.use(c.byKey[question{string(name), key.qtype, key.class, key.dnssec, key.nocheck}])
}

// use marks an entry as used; at may be nil. The caller holds the lock.
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

// clear removes all entries. It is called when the resolvers change, because others may know different names.
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
