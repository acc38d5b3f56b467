package xds

import (
	"testing"
	"time"
)

// refuse refuses what comes of the listeners, and asks for them again at once, as often as that.
func (c *deltaClient) refuse(times int) {
	c.t.Helper()
	for range times {
		c.nack(c.next(), "no")
		c.unsubscribe(lds, "*")
		c.subscribe(lds, "*")
	}
}

func (f *fake) blamesFor(takes time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.blames = takes
}

func TestClientThatRefusesAgainAndAgainIsAttendedToLess(t *testing.T) {
	const takes, more = 2 * time.Millisecond, 3
	r, c := startSmall(t)
	c.subscribe(lds, "*")
	c.refuse(patience + restFactor)
	r.source.blamesFor(takes)
	start := time.Now()
	c.refuse(more)
	if took := time.Since(start); took < (more-1)*takes*restFactor {
		t.Errorf("%d more refusals, of which each takes %v, were answered within %v", more, takes, took)
	}
	c.ack(c.next())
	r.only("in sync", func(s ClientStatus) bool { return s.InSync })
}

func TestClientThatAcceptsBetweenItsRefusalsIsAttendedToLess(t *testing.T) {
	const takes = 2 * time.Millisecond
	r, c := startSmall(t)
	c.subscribe(lds, "*")
	alternate := func(times int) {
		for range times {
			c.refuse(1)
			c.ack(c.next())
			c.unsubscribe(lds, "*")
			c.subscribe(lds, "*")
		}
	}
	alternate(patience + 10)
	r.source.blamesFor(takes)
	const more = 3
	start := time.Now()
	alternate(more)
	if took := time.Since(start); took < (more-1)*takes*restFactor {
		t.Errorf("%d more refusals, of which each takes %v, were answered within %v", more, takes, took)
	}
}

func TestRefusalsOfLongAgoAreForgotten(t *testing.T) {
	const took = 10 * time.Millisecond
	var r refusals
	now := time.Now()
	rests := func(want time.Duration) {
		t.Helper()
		if got := r.rest(took, now); got != want {
			t.Errorf("after %d refusals it rests for %v, and not for %v", r.times, got, want)
		}
	}
	for range patience - 1 {
		r.add(now)
		rests(0)
	}
	for factor := 1; factor < restFactor; factor *= 2 {
		now = now.Add(forgetting - 1)
		r.add(now)
		rests(time.Duration(factor) * took)
	}
	r.add(now)
	rests(restFactor * took)
	now = now.Add(forgetting)
	rests(0)
	r.add(now)
	rests(0)
}

func TestClientThatIsAttendedToLessIsSentWhatChanges(t *testing.T) {
	r, c := startSmall(t)
	c.subscribe(cds)
	c.expect("cds +a=eds1 +b=static1")
	c.subscribe(lds, "*")
	c.refuse(patience + restFactor)
	r.source.blamesFor(10 * time.Millisecond) // a second of rest
	w := small
	for range 20 { // on a machine that stood still meanwhile the request is read in time
		c.nack(c.next(), "no")
		c.subscribe(rds, "r1")
		w = w.with(cds, "b", w[cds]["b"]+"+")
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
	t.Error("what changed came only after all that the client had asked for")
}
