package xds

import (
	"testing"
	"time"
)

// rejectListeners rejects listener responses the specified number of times, and requests the listeners again each time.
func (c *deltaClient) rejectListeners(times int) {
	c.t.Helper()
	for range times {
		c.nack(c.next(), "no")
		c.unsubscribe(lds, "*")
		c.subscribe(lds, "*")
	}
}

func (f *fakeSource) setAttributionTime(takes time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.attributionTime = takes
}

func TestRepeatedNACKsDelayReads(t *testing.T) {
	const takes, more = 2 * time.Millisecond, 3
	r, c := startDelta(t)
	c.subscribe(lds, "*")
	c.rejectListeners(freeNACKs + maxDelayFactor)
	r.source.setAttributionTime(takes)
	start := time.Now()
	c.rejectListeners(more)
	if took := time.Since(start); took < (more-1)*takes*maxDelayFactor {
		t.Errorf("the server answered %d more rejections, each of which costs %v, within %v", more, takes, took)
	}
	c.ack(c.next())
	r.awaitStatus("in sync", func(s ClientStatus) bool { return s.InSync })
}

func TestACKsBetweenNACKsDoNotResetBackoff(t *testing.T) {
	const takes = 2 * time.Millisecond
	r, c := startDelta(t)
	c.subscribe(lds, "*")
	alternate := func(times int) {
		for range times {
			c.rejectListeners(1)
			c.ack(c.next())
			c.unsubscribe(lds, "*")
			c.subscribe(lds, "*")
		}
	}
	alternate(freeNACKs + 10)
	r.source.setAttributionTime(takes)
	const more = 3
	start := time.Now()
	alternate(more)
	if took := time.Since(start); took < (more-1)*takes*maxDelayFactor {
		t.Errorf("the server answered %d more rejections, each of which costs %v, within %v", more, takes, took)
	}
}

func TestOldNACKsResetTheBackoff(t *testing.T) {
	const took = 10 * time.Millisecond
	var r nackBackoff
	now := time.Now()
	rests := func(want time.Duration) {
		t.Helper()
		if got := r.delay(took, now); got != want {
			t.Errorf("after %d rejections the server pauses for %v, want %v", r.count, got, want)
		}
	}
	for range freeNACKs - 1 {
		r.add(now)
		rests(0)
	}
	for factor := 1; factor < maxDelayFactor; factor *= 2 {
		now = now.Add(nackResetInterval - 1)
		r.add(now)
		rests(time.Duration(factor) * took)
	}
	r.add(now)
	rests(maxDelayFactor * took)
	now = now.Add(nackResetInterval)
	rests(0)
	r.add(now)
	rests(0)
}

func TestClientInBackoffStillReceivesPushes(t *testing.T) {
	r, c := startDelta(t)
	c.subscribe(cds)
	c.expect("cds +a=eds1 +b=static1")
	c.subscribe(lds, "*")
	c.rejectListeners(freeNACKs + maxDelayFactor)
	r.source.setAttributionTime(10 * time.Millisecond) // a delay of one second
	w := smallState
	for range 20 { // after a suspension of the machine, the server reads the request in time
		c.nack(c.next(), "no")
		c.subscribe(rds, "r1")
		w = w.withResource(cds, "b", w[cds]["b"]+"+")
		r.push(w, cds+" b")
		first, second := c.next(), c.next()
		c.ack(first)
		c.ack(second)
		if first.GetTypeUrl() == cds && second.GetTypeUrl() == rds {
			return
		}
		c.unsubscribe(rds, "r1")
		c.unsubscribe(lds, "*")
		c.subscribe(lds, "*")
	}
	t.Error("the change was sent only after the responses to all requests")
}
