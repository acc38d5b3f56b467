package xds

import (
	"strconv"
	"testing"
	"time"
)

// quiet pushes until a client has taken note of it, and proves that it is sent nothing.
func (r *rig) quiet(c *deltaClient, w world, touched ...string) {
	r.t.Helper()
	r.push(w, touched...)
	r.only("the push is noted", func(s ClientStatus) bool { return s.Pushing })
	c.silence()
}

func TestPushesAreMergedWhileAnAnswerIsAwaited(t *testing.T) {
	r := newRig(t, Config{Await: time.Hour})
	r.push(small)
	c := r.delta()
	c.subscribe(lds)
	c.expect("lds +l1=1 +l2=1")
	r.only("in sync", func(s ClientStatus) bool { return s.InSync })
	r.push(small.with(lds, "l1", "2"), lds+" l1")
	first := c.next()
	r.quiet(c, small.with(lds, "l1", "3"), lds+" l1")
	r.quiet(c, small.with(lds, "l1", "4").with(lds, "l2", "4"), lds+" l2")
	c.ack(first)
	c.expect("lds +l1=4 +l2=4")
	r.only("in sync", func(s ClientStatus) bool { return s.InSync })
}

func TestAnswerThatCrossesAPushFreesIt(t *testing.T) {
	r := newRig(t, Config{Await: time.Hour})
	r.push(small)
	c := r.delta()
	c.subscribe(lds)
	c.expect("lds +l1=1 +l2=1")
	for i := range 500 {
		content := strconv.Itoa(i + 2)
		r.push(small.with(lds, "l1", content), lds+" l1")
		c.expect("lds +l1=" + content)
	}
}

func TestRejectionIsAnAnswerToo(t *testing.T) {
	r := newRig(t, Config{Await: time.Hour})
	r.push(small)
	c := r.delta()
	c.subscribe(lds)
	c.expect("lds +l1=1 +l2=1")
	r.push(small.with(lds, "l1", "2"), lds)
	first := c.next()
	r.quiet(c, small.with(lds, "l1", "3"), lds)
	c.nack(first, "no")
	c.expect("lds +l1=3")
}

func TestEndpointsDoNotWaitForClustersAndRoutesDo(t *testing.T) {
	r := newRig(t, Config{Await: time.Hour})
	r.push(small)
	c := r.delta()
	c.subscribe(cds)
	c.expect("cds +a=eds1 +b=static1")
	c.subscribe(eds, "a")
	c.expect("eds +a=ends1")
	c.subscribe(rds, "r1")
	c.expect("rds +r1=1")
	next := small.with(cds, "n", "static1").with(rds, "r1", "to n")
	r.push(next, cds+" n", rds+" r1")
	clusters := c.next()
	if show(clusters) != "cds +n=static1" {
		t.Fatal(show(clusters))
	}
	r.push(next.with(eds, "a", "ends2"), eds+" a")
	c.expect("eds +a=ends2") // while the cluster warms up
	c.silence()
	c.ack(clusters)
	c.expect("rds +r1=to n")
}

func TestClustersGoOnlyWhenTheClientHasTakenRoutesThatDoWithoutThem(t *testing.T) {
	r := newRig(t, Config{Await: time.Hour})
	r.push(small)
	c := r.delta()
	c.subscribe(cds)
	c.expect("cds +a=eds1 +b=static1")
	c.subscribe(rds, "r1")
	c.expect("rds +r1=1")
	r.push(small.without(cds, "b").with(rds, "r1", "without b"), cds+" b", rds+" r1")
	routes := c.next()
	if show(routes) != "rds +r1=without b" {
		t.Fatal(show(routes))
	}
	c.silence()
	c.ack(routes)
	c.expect("cds -b")
	r.only("in sync", func(s ClientStatus) bool { return s.InSync })
}

func TestClientThatNeverAnswersGetsWhatChangesAllTheSame(t *testing.T) {
	r := newRig(t, Config{Await: 20 * time.Millisecond})
	r.push(small)
	c := r.delta()
	c.subscribe(cds)
	c.subscribe(rds, "r1")
	c.next()
	c.next()
	r.push(small.without(cds, "b").with(cds, "n", "static1").with(rds, "r1", "2"), cds, rds)
	for _, want := range []string{"cds +n=static1", "rds +r1=2", "cds -b"} {
		if m := c.next(); show(m) != want {
			t.Fatalf("%s, want %s", show(m), want)
		}
	}
}

func TestWhatIsAskedForComesBehindTheClustersThatItNeeds(t *testing.T) {
	r := newRig(t, Config{Await: time.Hour})
	r.push(small)
	c := r.delta()
	c.subscribe(cds)
	first := c.next() // not confirmed
	r.quiet(c, small.with(cds, "n", "static1").with(rds, "r1", "to n"), cds+" n", rds+" r1")
	c.subscribe(rds, "r1")
	c.expect("cds +n=static1")
	c.expect("rds +r1=to n")
	c.ack(first)
}
