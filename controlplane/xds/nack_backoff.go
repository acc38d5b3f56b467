package xds

import "time"

const (
	// freeNACKs is the number of NACKs of a type that the server handles without delay. If one of many resources is
	// invalid, Envoy rejects several partial responses before the server has isolated the invalid resource.
	freeNACKs = 10
	// nackResetInterval is the time without a NACK of a type after which the count of its NACKs is reset. An ACK does
	// not reset it, because a faulty client may alternate between ACKs and NACKs.
	nackResetInterval = 10 * time.Second
	// maxDelayFactor limits the pause before the server reads the next request of a client that sends many NACKs in
	// succession. It is a multiple of the time that the server needed to handle the request. The factor is 1 after the
	// first NACK beyond freeNACKs, and doubles with each further one. maxNACKDelay is the maximum pause.
	maxDelayFactor = 100
	maxNACKDelay   = 5 * time.Second
	// minNACKDelay is the minimum pause for which the server starts a timer.
	minNACKDelay = time.Millisecond
)

// nackBackoff counts NACKs of one type that follow the previous one within nackResetInterval.
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

// delay returns the pause before the server reads the next request of the client. took is the time that the server
// needed to handle the last request. 0 means no pause.
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

// handleWithBackoff handles a request. If the client sends many NACKs in succession, it then pauses reading from the
// client. Handling a NACK is expensive, because the server searches for its cause, and the rate of a client's requests
// has no other limit. Pushes to the client continue during the pause.
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
