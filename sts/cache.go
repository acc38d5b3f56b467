package sts

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"sync"
	"time"
)

// What the cache keeps to.
const (
	mostEntries   = 256
	mostBytes     = 1 << 20
	mostExchanges = 16 // at a time
	// exchangeTime bounds an exchange with all its attempts.
	exchangeTime = 10 * time.Second
	// refreshAhead is how long before its end a token is renewed, while it is still given out; urgent is when clients
	// begin to wait for the new one, since some take a token with less than a minute for expired.
	refreshAhead = 300 * time.Second
	urgent       = 60 * time.Second
	// failurePause is how long a failure is remembered, at first; with a token at hand it doubles up to mostPause.
	failurePause = time.Second
	mostPause    = 30 * time.Second
)

// key stands for a request; the tokens in it cannot be got back from it.
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

// cache keeps tokens until they end, and asks for each at most once at a time. It does nothing by itself: what nobody
// asks for is not renewed.
type cache struct {
	now      func() time.Time
	exchange func(context.Context, Request) (Token, error)
	slots    chan struct{}
	// life ends when the exchanges that are under way shall.
	life    context.Context
	flights sync.WaitGroup

	mu      sync.Mutex
	entries map[key]*entry
	bytes   int
}

// entry is what is known for one request.
type entry struct {
	token    Token // Access is empty when there is none
	issued   time.Time
	used     time.Time
	flight   *flight
	failure  error
	failures int
	retryAt  time.Time
}

// flight is an exchange that is under way. Its results are there once done is closed.
type flight struct {
	done  chan struct{}
	token Token
	err   error
}

func newCache(life context.Context, now func() time.Time, exchange func(context.Context, Request) (Token, error)) *cache {
	return &cache{
		now: now, exchange: exchange, life: life,
		slots:   make(chan struct{}, mostExchanges),
		entries: make(map[key]*entry),
	}
}

// get gives the token for the request. The exchange goes on when the caller leaves: others may want it, or the caller
// when it comes back.
func (c *cache) get(ctx context.Context, request Request) (Token, error) {
	c.mu.Lock()
	now := c.now()
	e, err := c.entry(request.key(), now)
	if err != nil {
		c.mu.Unlock()
		return Token{}, err
	}
	e.used = now
	held, left := e.held(now), e.left(now)
	if left > e.ahead(refreshAhead, 2) {
		c.mu.Unlock()
		return held, nil
	}
	if e.flight == nil && !now.Before(e.retryAt) {
		c.start(e, request)
	}
	f, failure, wait := e.flight, e.failure, left <= e.ahead(urgent, 10)
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

func (f *flight) wait(ctx context.Context) (Token, error) {
	select {
	case <-f.done:
		return f.token, f.err
	case <-ctx.Done():
		return Token{}, ctx.Err()
	}
}

// held is the token while it is good, and left how long that is.
func (e *entry) held(now time.Time) Token {
	if e.left(now) <= 0 {
		return Token{}
	}
	return e.token
}

func (e *entry) left(now time.Time) time.Duration {
	if e.token.Access == "" {
		return 0
	}
	return max(remaining(e.token.Expires, now), 0)
}

// remaining is the shorter of what the wall clock and the monotonic one tell: the first may be set back, and the second
// stands still while the machine sleeps.
func remaining(expires, now time.Time) time.Duration {
	return min(expires.Sub(now), expires.Round(0).Sub(now.Round(0)))
}

// ahead shortens a span for tokens that do not live much longer than it: they would never be fresh.
func (e *entry) ahead(span time.Duration, part int) time.Duration {
	return min(span, e.token.Expires.Sub(e.issued)/time.Duration(part))
}

var errBusy = errors.New("too many different exchanges are under way")

// entry finds or makes the entry of a key.
func (c *cache) entry(k key, now time.Time) (*entry, error) {
	if e := c.entries[k]; e != nil {
		return e, nil
	}
	if len(c.entries) >= mostEntries {
		c.sweep(now)
	}
	for len(c.entries) >= mostEntries {
		if !c.evict(nil) {
			return nil, errBusy
		}
	}
	e := &entry{}
	c.entries[k] = e
	return e, nil
}

// sweep drops what is of no use any more.
func (c *cache) sweep(now time.Time) {
	for k, e := range c.entries {
		if e.flight == nil && e.left(now) == 0 && !now.Before(e.retryAt) {
			c.drop(k, e)
		}
	}
}

// evict drops the entry that nobody asked for the longest, but for the one given and those under way.
func (c *cache) evict(keep *entry) bool {
	var oldest *entry
	var of key
	for k, e := range c.entries {
		if e != keep && e.flight == nil && (oldest == nil || e.used.Before(oldest.used)) {
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

// start begins an exchange; the caller holds the lock.
func (c *cache) start(e *entry, request Request) {
	f := &flight{done: make(chan struct{})}
	e.flight = f
	c.flights.Go(func() {
		ctx, cancel := context.WithTimeout(c.life, exchangeTime)
		defer cancel()
		begun := c.now()
		f.token, f.err = c.inTurn(ctx, request)
		if f.err == nil && !f.token.Expires.IsZero() && !c.now().Before(f.token.Expires) {
			f.err = errors.New("the exchange server gave a token that has expired already")
		}
		c.land(e, f, begun)
		close(f.done)
	})
}

// inTurn exchanges once there is room.
func (c *cache) inTurn(ctx context.Context, request Request) (Token, error) {
	select {
	case c.slots <- struct{}{}:
		defer func() { <-c.slots }()
		return c.exchange(ctx, request)
	case <-ctx.Done():
		return Token{}, errBusy
	}
}

// land notes how an exchange ended.
func (c *cache) land(e *entry, f *flight, begun time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e.flight = nil
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
	for c.bytes > mostBytes && c.evict(e) {
	}
}

// pause is how long to leave the exchange server alone after a failure. While a token is held, nobody is in a hurry.
func (e *entry) pause(now time.Time) time.Duration {
	if e.left(now) == 0 {
		return failurePause
	}
	return min(failurePause<<min(e.failures, 10), mostPause)
}

// lease is what a held token tells of itself.
type lease struct {
	kind            string
	issued, expires time.Time
}

func (c *cache) leases() (leases []lease) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	for _, e := range c.entries {
		if e.left(now) > 0 {
			leases = append(leases, lease{kind: e.token.IssuedType, issued: e.issued, expires: e.token.Expires})
		}
	}
	return leases
}
