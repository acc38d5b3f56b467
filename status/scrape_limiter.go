package status

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// maxHold is how long a scrape may run while other scrapes wait.
const maxHold = 3 * time.Second

// scrapeLimiter limits the concurrent scrapes, in total and per client address. A client that reads slowly or scrapes
// continuously cannot exclude other scrapers: if a client waits, the longest running scrape is cancelled.
type scrapeLimiter struct {
	slots        chan struct{} // has one element for each running scrape
	maxPerClient int
	maxHold      time.Duration

	mu      sync.Mutex
	callers map[netip.Addr]*caller
	running []*turn // running scrapes, oldest first
}

type caller struct {
	slots chan struct{} // has one element for each running scrape of the client
	count int           // running and waiting scrapes of the client
}

// turn is a running scrape.
type turn struct {
	since  time.Time
	cancel func() // nil after it was called
}

func newScrapeLimiter(maxTotal, maxPerClient int, maxHold time.Duration) *scrapeLimiter {
	return &scrapeLimiter{slots: make(chan struct{}, maxTotal), maxPerClient: maxPerClient, maxHold: maxHold, callers: make(map[netip.Addr]*caller)}
}

// acquire waits for a slot. ok is false if the context ends first. done releases the slot. acquire may call cancel
// later, at most once and not after done; cancel must make the caller call done soon.
func (t *scrapeLimiter) acquire(ctx context.Context, remote string, cancel func()) (done func(), ok bool) {
	address, _ := netip.ParseAddrPort(remote) // clients with an unknown address are one client
	who := address.Addr()
	own := t.enter(who)
	select {
	case own <- struct{}{}:
	case <-ctx.Done():
		t.leave(who)
		return nil, false
	}
	if !t.waitSlot(ctx) {
		<-own
		t.leave(who)
		return nil, false
	}
	mine := t.begin(cancel)
	return func() { t.end(mine); <-t.slots; <-own; t.leave(who) }, true
}

// waitSlot waits for a free slot. Each time maxHold has elapsed, it cancels a running scrape.
func (t *scrapeLimiter) waitSlot(ctx context.Context) bool {
	select {
	case t.slots <- struct{}{}:
		return true
	default:
	}
	for {
		timer := time.NewTimer(t.cancelOldest())
		select {
		case t.slots <- struct{}{}:
			timer.Stop()
			return true
		case <-ctx.Done():
			timer.Stop()
			return false
		case <-timer.C:
		}
	}
}

func (t *scrapeLimiter) begin(cancel func()) *turn {
	t.mu.Lock()
	defer t.mu.Unlock()
	mine := &turn{since: time.Now(), cancel: cancel}
	t.running = append(t.running, mine)
	return mine
}

func (t *scrapeLimiter) end(mine *turn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.running = slices.DeleteFunc(t.running, func(other *turn) bool { return other == mine })
}

// cancelOldest cancels the oldest scrape if it has run for longer than maxHold. It returns the delay until the next
// check.
func (t *scrapeLimiter) cancelOldest() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, oldest := range t.running {
		if oldest.cancel == nil {
			continue // already cancelled
		}
		if left := t.maxHold - time.Since(oldest.since); left > 0 {
			return left
		}
		oldest.cancel()
		oldest.cancel = nil
		break
	}
	return t.maxHold
}

func (t *scrapeLimiter) enter(who netip.Addr) chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.callers[who]
	if c == nil {
		c = &caller{slots: make(chan struct{}, t.maxPerClient)}
		t.callers[who] = c
	}
	c.count++
	return c.slots
}

// leave ends a scrape of a client. It removes the client's entry if the client has no other scrape.
func (t *scrapeLimiter) leave(who netip.Addr) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.callers[who].count--; t.callers[who].count == 0 {
		delete(t.callers, who)
	}
}
