package status

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// tenure is how long an answer may take while others wait for its turn.
const tenure = 3 * time.Second

// turns bound how many scrapes are answered at a time, in all and of one address: whoever takes his answers slowly, or
// asks all the time, does not keep other scrapers out. When several addresses do so together, the answer that has been
// under way for the longest is given up for the next scraper.
type turns struct {
	places chan struct{} // holds one for each that is answered
	ofOne  int
	tenure time.Duration

	mu      sync.Mutex
	callers map[netip.Addr]*caller
	under   []*turn // way, the oldest first
}

type caller struct {
	places chan struct{}
	here   int // answered or waiting
}

// turn is one that is answered.
type turn struct {
	since  time.Time
	giveUp func() // nil once it was called
}

func newTurns(inAll, ofOne int, tenure time.Duration) *turns {
	return &turns{places: make(chan struct{}, inAll), ofOne: ofOne, tenure: tenure, callers: make(map[netip.Addr]*caller)}
}

// take waits for a turn as long as the context lasts; done gives it back. What giveUp does has to make the caller of take
// end his turn soon; it is called at most once, and not after done.
func (t *turns) take(ctx context.Context, remote string, giveUp func()) (done func(), ok bool) {
	address, _ := netip.ParseAddrPort(remote) // those of which nothing is known count as one
	who := address.Addr()
	own := t.enter(who)
	select {
	case own <- struct{}{}:
	case <-ctx.Done():
		t.leave(who)
		return nil, false
	}
	if !t.place(ctx) {
		<-own
		t.leave(who)
		return nil, false
	}
	mine := t.begin(giveUp)
	return func() { t.end(mine); <-t.places; <-own; t.leave(who) }, true
}

// place waits for a place, and has one made free when it takes long.
func (t *turns) place(ctx context.Context) bool {
	select {
	case t.places <- struct{}{}:
		return true
	default:
	}
	for {
		timer := time.NewTimer(t.hasten())
		select {
		case t.places <- struct{}{}:
			timer.Stop()
			return true
		case <-ctx.Done():
			timer.Stop()
			return false
		case <-timer.C:
		}
	}
}

func (t *turns) begin(giveUp func()) *turn {
	t.mu.Lock()
	defer t.mu.Unlock()
	mine := &turn{since: time.Now(), giveUp: giveUp}
	t.under = append(t.under, mine)
	return mine
}

func (t *turns) end(mine *turn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.under = slices.DeleteFunc(t.under, func(other *turn) bool { return other == mine })
}

// hasten gives up the oldest answer if it is older than the tenure, and says when to look again.
func (t *turns) hasten() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, oldest := range t.under {
		if oldest.giveUp == nil {
			continue // which ends
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

func (t *turns) enter(who netip.Addr) chan struct{} {
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

// leave forgets an address of which nobody is here.
func (t *turns) leave(who netip.Addr) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.callers[who].here--; t.callers[who].here == 0 {
		delete(t.callers, who)
	}
}
