package xds

import "time"

const (
	// freeNACKs is the number of NACKs of a type that the server handles without delay. If one of many resources is
	// invalid, Envoy rejects several partial responses before the server has isolated the invalid resource.
	freeNACKs = 10
	// nackResetInterval: when no NACK of a type arrived for this time, the count of its NACKs is reset. An ACK does not
	// reset the count, because a faulty client may alternate between ACKs and NACKs.
	nackResetInterval = 10 * time.Second
	// After a NACK beyond freeNACKs, the server pauses before it reads the client's next request. The pause is a
	// multiple of the time that the server needed to handle the NACK. The factor is 1 at first, and doubles with each
	// further NACK up to maxDelayFactor. maxNACKDelay is the maximum pause.
	maxDelayFactor = 100
	maxNACKDelay   = 5 * time.Second
	// minNACKDelay is the minimum pause: the server does not pause for a shorter time.
	minNACKDelay = time.Millisecond
)

// nackBackoff counts the NACKs of one type, each of which followed the previous one within nackResetInterval.
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

// delay returns the pause before the server reads the next request of the client; 0 means no pause. handling is the
// time that the server needed to handle the last request.
func (r *nackBackoff) delay(handling time.Duration, now time.Time) time.Duration {
	beyond := r.count - freeNACKs
	if beyond < 0 || now.Sub(r.last) >= nackResetInterval {
		return 0
	}
	factor := maxDelayFactor
	if beyond < 7 { // 1<<7 exceeds maxDelayFactor
		factor = min(1<<beyond, maxDelayFactor)
	}
	if rest := min(time.Duration(factor)*handling, maxNACKDelay); rest >= minNACKDelay {
		return rest
	}
	return 0
}

// handleWithBackoff calls handle for r. If the client sends many NACKs in succession, it then pauses reading from the
// client: a NACK is expensive, because the server searches for its cause, and nothing else limits the rate of a
// client's requests. Pushes to the client continue during the pause.
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
