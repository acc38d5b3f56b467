package status

import (
	"context"
	"net/netip"
	"sync"
)

// turns bound how many scrapes are answered at a time, in all and of one address: whoever takes his answers slowly, or
// asks all the time, does not keep other scrapers out.
type turns struct {
	places chan struct{} // holds one for each that is answered
	ofOne  int

	mu      sync.Mutex
	callers map[netip.Addr]*caller
}

type caller struct {
	places chan struct{}
	here   int // answered or waiting
}

func newTurns(inAll, ofOne int) *turns {
	return &turns{places: make(chan struct{}, inAll), ofOne: ofOne, callers: make(map[netip.Addr]*caller)}
}

// take waits for a turn as long as the context lasts; done gives it back.
func (t *turns) take(ctx context.Context, remote string) (done func(), ok bool) {
	address, _ := netip.ParseAddrPort(remote) // those of which nothing is known count as one
	who := address.Addr()
	own := t.enter(who)
	select {
	case own <- struct{}{}:
	case <-ctx.Done():
		t.leave(who)
		return nil, false
	}
	select {
	case t.places <- struct{}{}:
	case <-ctx.Done():
		<-own
		t.leave(who)
		return nil, false
	}
	return func() { <-t.places; <-own; t.leave(who) }, true
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
