package status

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// maxHold is how long a scrape may last while others wait.
const maxHold = 3 * time.Second

// scrapeLimiter limits the concurrent scrapes, in total and per client address. Clients that read slowly or scrape all
// the time cannot exclude other scrapers: when a client waits, the longest running scrape is cancelled.
type scrapeLimiter struct {
	slots  chan struct{} // has one element for each running scrape
	ofOne  int
	tenure time.Duration

	mu      sync.Mutex
	callers map[netip.Addr]*caller
	running []*turn // running scrapes, oldest first
}

type caller struct {
	places chan struct{}
	here   int // running or waiting
}

// turn is a running scrape.
type turn struct {
	since  time.Time
	giveUp func() // nil after it was called
}

func newScrapeLimiter(inAll, ofOne int, tenure time.Duration) *scrapeLimiter {
	return &scrapeLimiter{slots: make(chan struct{}, inAll), ofOne: ofOne, tenure: tenure, callers: make(map[netip.Addr]*caller)}
}

// acquire waits for a slot until the context ends. done releases the slot. giveUp must make the caller release it soon;
// it is called at most once, and not after done.
func (t *scrapeLimiter) acquire(ctx context.Context, remote string, giveUp func()) (done func(), ok bool) {
	address, _ := netip.ParseAddrPort(remote) // clients with an unknown address count as one
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
	mine := t.begin(giveUp)
	return func() { t.end(mine); <-t.slots; <-own; t.leave(who) }, true
}

// waitSlot waits for a free slot. After some time it cancels another scrape.
func (t *scrapeLimiter) waitSlot(ctx context.Context) bool {
	select {
	case t.slots <- struct{}{}:
		return true
	default:
	}
	for {
		timer := time.NewTimer(t.shortenDeadline())
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

func (t *scrapeLimiter) begin(giveUp func()) *turn {
	t.mu.Lock()
	defer t.mu.Unlock()
	mine := &turn{since: time.Now(), giveUp: giveUp}
	t.running = append(t.running, mine)
	return mine
}

func (t *scrapeLimiter) end(mine *turn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.running = slices.DeleteFunc(t.running, func(other *turn) bool { return other == mine })
}

// shortenDeadline cancels the oldest scrape if it is older than maxHold, and returns when to check again.
func (t *scrapeLimiter) shortenDeadline() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, oldest := range t.running {
		if oldest.giveUp == nil {
			continue // it is ending
		}
		if left := t.tenure - time.Since(oldest.since); left > 0 {
			return left
		}
		oldest.giveUp()
		oldest.giveUp = nil
		break
	}
	return t.tenure
}

func (t *scrapeLimiter) enter(who netip.Addr) chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.callers[who]
	if c == nil {
		c = &caller{places: make(chan struct{}, t.ofOne)}
		t.callers[who] = c
	}
	c.here++
	return c.places
}

// leave removes an address without running or waiting scrapes.
func (t *scrapeLimiter) leave(who netip.Addr) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.callers[who].here--; t.callers[who].here == 0 {
		delete(t.callers, who)
	}
}
