package xds

import "time"

const (
	// patience is how many refusals of a type are looked into as they come. An Envoy that is sent something bad among many
	// resources refuses some of them before it is found which.
	patience = 10
	// forgetting is how long a client has to refuse nothing of a type for its refusals to be forgotten. That it accepts
	// something between them says little: it may do so as often as it refuses.
	forgetting = 10 * time.Second
	// restFactor is how much longer than it took to answer such a client it waits in the end for its next request to be read:
	// as long after the first refusal beyond patience, twice as long after the next, and so on. restMost bounds that.
	restFactor = 100
	restMost   = 5 * time.Second
	// worthResting: less is not worth a timer.
	worthResting = time.Millisecond
)

// refusals are those of one type that a client does not stop with.
type refusals struct {
	times int
	last  time.Time
}

func (r *refusals) add(now time.Time) {
	if now.Sub(r.last) >= forgetting {
		r.times = 0
	}
	r.times, r.last = r.times+1, now
}

// rest is how long the client has to wait until its next request is read, after one that took so long to be answered; 0 is
// not at all.
func (r *refusals) rest(took time.Duration, now time.Time) time.Duration {
	beyond := r.times - patience
	if beyond < 0 || now.Sub(r.last) >= forgetting {
		return 0
	}
	factor := restFactor
	if beyond < 7 { // 128 is more than the factor
		factor = min(1<<beyond, restFactor)
	}
	if rest := min(time.Duration(factor)*took, restMost); rest >= worthResting {
		return rest
	}
	return 0
}

// rested handles a request, and has a client that refuses again and again wait afterwards: each refusal costs more than
// most requests, since it is looked into what the cause may be, and nothing bounds how often a client asks for the same
// again. Its requests are not read meanwhile; what changes is sent to it as to any other that has not answered yet.
func (c *connection) rested(r *request, handle func(*request) error) error {
	start := time.Now()
	err := handle(r)
	sub := c.subs[r.typeURL]
	if sub == nil {
		return err
	}
	now := time.Now()
	if rest := sub.refusals.rest(now.Sub(start), now); rest > 0 {
		c.resting = true
		c.rest.Reset(rest)
	}
	return err
}

// readable are the client's requests; nil while they are not to be read.
func (c *connection) readable() <-chan *request {
	if c.resting {
		return nil
	}
	return c.requests
}
