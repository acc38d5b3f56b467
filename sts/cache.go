package sts

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"sync"
	"time"
)

// Limits of the cache.
const (
	maxEntries   = 256
	maxBytes     = 1 << 20
	maxExchanges = 16 // concurrent exchanges
	// exchangeTime limits an exchange, including its retries.
	exchangeTime = 10 * time.Second
	// refreshAhead is how long before its expiry a token is renewed. The old token is returned in the meantime. During
	// the last period urgent before the expiry, clients wait for the new token, because some treat a token with less
	// than a minute as expired.
	refreshAhead = 300 * time.Second
	urgent       = 60 * time.Second
	// failurePause is the delay before the next exchange after a failure. Requests during the delay receive the
	// failure. While there is a valid token, the delay doubles with each failure, up to maxPause, and requests receive
	// the token.
	failurePause = time.Second
	maxPause     = 30 * time.Second
)

// key is a hash of a request, from which the tokens cannot be recovered.
type key [sha256.Size]byte

func (r Request) key() key {
	h := sha256.New()
	write := func(values ...string) {
		var n [8]byte
		binary.BigEndian.PutUint64(n[:], uint64(len(values)))
		h.Write(n[:])
		for _, v := range values {
			binary.BigEndian.PutUint64(n[:], uint64(len(v)))
			h.Write(n[:])
			h.Write([]byte(v))
		}
	}
	if r.owner != "" {
		write(r.owner)
	} else {
		write(string(r.Subject), r.SubjectType)
	}
	write(string(r.Actor), r.ActorType, r.Scope, r.RequestedType)
	write(r.Resources...)
	write(r.Audiences...)
	return key(h.Sum(nil))
}

// cache stores tokens until they expire. For equal requests, it runs at most one exchange at a time (single flight). It
// renews a token only when a client requests it, so it has no permanent goroutine.
type cache struct {
	now      func() time.Time
	exchange func(context.Context, Request) (Token, error)
	slots    chan struct{}
	// life is the context of all exchanges. Its end cancels them.
	life     context.Context
	inflight sync.WaitGroup

	mu      sync.Mutex
	entries map[key]*entry
	bytes   int
}

// entry is the cached state of one request.
type entry struct {
	token    Token // its Access is empty if there is no token
	issued   time.Time
	used     time.Time
	inflight *inflight
	failure  error
	failures int
	retryAt  time.Time
}

// inflight is a running exchange. Its results are valid after done is closed.
type inflight struct {
	done  chan struct{}
	token Token
	err   error
}

func newCache(life context.Context, now func() time.Time, exchange func(context.Context, Request) (Token, error)) *cache {
	return &cache{
		now: now, exchange: exchange, life: life,
		slots:   make(chan struct{}, maxExchanges),
		entries: make(map[key]*entry),
	}
}

// get returns the token for request: the cached one, or the result of an exchange. If ctx ends, get returns, but the
// exchange continues, because other callers may wait for its result.
func (c *cache) get(ctx context.Context, request Request) (Token, error) {
	c.mu.Lock()
	now := c.now()
	e, err := c.entry(request.key(), now)
	if err != nil {
		c.mu.Unlock()
		return Token{}, err
	}
	e.used = now
	held, left := e.heldToken(now), e.remaining(now)
	if left > e.shorten(refreshAhead, 2) {
		c.mu.Unlock()
		return held, nil
	}
	if e.inflight == nil && !now.Before(e.retryAt) {
		c.start(e, request)
	}
	f, failure, wait := e.inflight, e.failure, left <= e.shorten(urgent, 10)
	c.mu.Unlock()
	if wait && f != nil {
		fresh, err := f.wait(ctx)
		if err == nil {
			return fresh, nil
		}
		failure = err
	}
	if left > 0 {
		return held, nil
	}
	return Token{}, failure
}

func (f *inflight) wait(ctx context.Context) (Token, error) {
	select {
	case <-f.done:
		return f.token, f.err
	case <-ctx.Done():
		return Token{}, ctx.Err()
	}
}

// heldToken returns the cached token if it is still valid, and otherwise an empty token.
func (e *entry) heldToken(now time.Time) Token {
	if e.remaining(now) <= 0 {
		return Token{}
	}
	return e.token
}

// remaining returns the remaining lifetime of the cached token, or 0.
func (e *entry) remaining(now time.Time) time.Duration {
	if e.token.Access == "" {
		return 0
	}
	return max(remaining(e.token.Expires, now), 0)
}

// remaining returns the time from now to expires, by the wall clock or the monotonic clock, whichever is less. The wall
// clock may be set back, and the monotonic clock stops while the machine is suspended.
func remaining(expires, now time.Time) time.Duration {
	return min(expires.Sub(now), expires.Round(0).Sub(now.Round(0)))
}

// shorten limits span to the fraction 1/part of the token's lifetime. Otherwise a token whose lifetime is shorter than
// span would be renewed at every request.
func (e *entry) shorten(span time.Duration, part int) time.Duration {
	return min(span, e.token.Expires.Sub(e.issued)/time.Duration(part))
}

var errBusy = errors.New("too many different token exchanges are in progress; retry later")

// entry returns the entry of k, and creates it if it is missing. It returns errBusy if the cache is full and all
// entries have a running exchange.
func (c *cache) entry(k key, now time.Time) (*entry, error) {
	if e := c.entries[k]; e != nil {
		return e, nil
	}
	if len(c.entries) >= maxEntries {
		c.sweep(now)
	}
	for len(c.entries) >= maxEntries {
		if !c.evict(nil) {
			return nil, errBusy
		}
	}
	e := &entry{}
	c.entries[k] = e
	return e, nil
}

// sweep removes entries without a valid token, a running exchange or a failure that is still cached.
func (c *cache) sweep(now time.Time) {
	for k, e := range c.entries {
		if e.inflight == nil && e.remaining(now) == 0 && !now.Before(e.retryAt) {
			c.drop(k, e)
		}
	}
}

// evict removes the least recently used entry, except keep and entries with a running exchange. It returns false if
// there is none.
func (c *cache) evict(keep *entry) bool {
	var oldest *entry
	var of key
	for k, e := range c.entries {
		if e != keep && e.inflight == nil && (oldest == nil || e.used.Before(oldest.used)) {
			oldest, of = e, k
		}
	}
	if oldest == nil {
		return false
	}
	c.drop(of, oldest)
	return true
}

func (c *cache) drop(k key, e *entry) {
	c.bytes -= e.token.size()
	delete(c.entries, k)
}

func (t Token) size() int { return len(t.Access) + len(t.Refresh) + len(t.Scope) }

// start starts an exchange for e in the background. The caller must have locked c.mu.
func (c *cache) start(e *entry, request Request) {
	f := &inflight{done: make(chan struct{})}
	e.inflight = f
	c.inflight.Go(func() {
		ctx, cancel := context.WithTimeout(c.life, exchangeTime)
		defer cancel()
		begun := c.now()
		f.token, f.err = c.exchangeLimited(ctx, request)
		if f.err == nil && !f.token.Expires.IsZero() && !c.now().Before(f.token.Expires) {
			f.err = errors.New("the exchange server returned an expired token")
		}
		c.finish(e, f, begun)
		close(f.done)
	})
}

// exchangeLimited waits until fewer than maxExchanges exchanges are running, and then calls exchange. It returns
// errBusy if ctx ends first.
func (c *cache) exchangeLimited(ctx context.Context, request Request) (Token, error) {
	select {
	case c.slots <- struct{}{}:
		defer func() { <-c.slots }()
		return c.exchange(ctx, request)
	case <-ctx.Done():
		return Token{}, errBusy
	}
}

// finish records the result f of an exchange for e that began at begun.
func (c *cache) finish(e *entry, f *inflight, begun time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e.inflight = nil
	now := c.now()
	if f.err != nil {
		e.failure, e.retryAt = f.err, now.Add(e.pause(now))
		e.failures++
		return
	}
	e.failure, e.failures, e.retryAt = nil, 0, time.Time{}
	c.bytes -= e.token.size()
	e.token = Token{}
	if f.token.Expires.IsZero() {
		return
	}
	e.token, e.issued = f.token, begun
	c.bytes += e.token.size()
	for c.bytes > maxBytes && c.evict(e) {
	}
}

// pause returns the delay before the next exchange after a failure. It doubles with each failure while there is a valid
// token.
func (e *entry) pause(now time.Time) time.Duration {
	if e.remaining(now) == 0 {
		return failurePause
	}
	return min(failurePause<<min(e.failures, 10), maxPause)
}

// lease describes a cached token, without the token itself.
type lease struct {
	kind            string
	issued, expires time.Time
}

func (c *cache) leases() (leases []lease) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	for _, e := range c.entries {
		if e.remaining(now) > 0 {
			leases = append(leases, lease{kind: e.token.IssuedType, issued: e.issued, expires: e.token.Expires})
		}
	}
	return leases
}
