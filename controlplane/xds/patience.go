package xds

import "time"

const (
	// patience is how many refusals of a type in a row are looked into as they come. An Envoy that is sent something bad among
	// many resources refuses some of them before it is found which.
	patience = 10
	// restFactor is how much longer than it took to answer such a client it waits in the end for its next request to be read:
	// once as long after the first refusal beyond patience, twice after the next, and so on. restMost bounds that.
	restFactor = 50
	restMost   = 5 * time.Second
	// worthResting: less is not worth a timer.
	worthResting = time.Millisecond
)

// rested handles a request, and has a client that refuses again and again wait afterwards: each refusal costs more than
// most requests, since it is looked into what the cause may be, and nothing bounds how often a client asks for the same
// again. Its requests are not read meanwhile; what changes is sent to it as to any other that has not answered yet.
func (c *connection) rested(r *request, handle func(*request) error) error {
	start := time.Now()
	err := handle(r)
	sub := c.subs[r.typeURL]
	if sub == nil || sub.refusals < patience {
		return err
	}
	factor := min(sub.refusals-patience+1, restFactor)
	if rest := min(time.Duration(factor)*time.Since(start), restMost); rest >= worthResting {
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
