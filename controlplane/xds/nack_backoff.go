package xds

import "time"

const (
	// freeNACKs is the number of NACKs of a type that are handled without delay. When one of many resources is bad,
	// Envoy rejects some of the partial responses before the bad one is found.
	freeNACKs = 10
	// nackResetInterval is the time without a NACK of a type after which its count is reset. An ACK does not reset it,
	// because a client may alternate between ACKs and NACKs.
	nackResetInterval = 10 * time.Second
	// maxDelayFactor limits the delay before the next request of such a client is read, as a multiple of the handling
	// time. The factor is 1 after the first NACK beyond freeNACKs and doubles with each further one. maxNACKDelay
	// limits the delay.
	maxDelayFactor = 100
	maxNACKDelay   = 5 * time.Second
	// minNACKDelay is the shortest delay that is worth a timer.
	minNACKDelay = time.Millisecond
)

// nackBackoff counts the NACKs of one type that follow each other within nackResetInterval.
type nackBackoff struct {
	count int
	last  time.Time
}

func (r *nackBackoff) add(now time.Time) {
	if now.Sub(r.last) >= nackResetInterval {
		r.count = 0
	}
	r.count, r.last = r.count+1, now
}

// delay returns the time until the next request of the client is read, after a request that was handled within took. 0
// means no delay.
func (r *nackBackoff) delay(took time.Duration, now time.Time) time.Duration {
	beyond := r.count - freeNACKs
	if beyond < 0 || now.Sub(r.last) >= nackResetInterval {
		return 0
	}
	factor := maxDelayFactor
	if beyond < 7 { // 1<<7 exceeds maxDelayFactor
		factor = min(1<<beyond, maxDelayFactor)
	}
	if rest := min(time.Duration(factor)*took, maxNACKDelay); rest >= minNACKDelay {
		return rest
	}
	return 0
}

// handleWithBackoff handles a request and pauses reading from a client that sends NACK after NACK. Handling a NACK is
// expensive, because its cause is searched, and the rate of a client's requests is otherwise unlimited. Pushes to the
// client continue during the pause.
func (c *connection) handleWithBackoff(r *request, handle func(*request) error) error {
	start := time.Now()
	err := handle(r)
	sub := c.subs[r.typeURL]
	if sub == nil {
		return err
	}
	now := time.Now()
	if rest := sub.refusals.delay(now.Sub(start), now); rest > 0 {
		c.readsPaused = true
		c.nackTimer.Reset(rest)
	}
	return err
}

// readableRequests returns the channel of the client's requests, or nil while reading is paused.
func (c *connection) readableRequests() <-chan *request {
	if c.readsPaused {
		return nil
	}
	return c.requests
}
