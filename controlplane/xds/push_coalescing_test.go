package xds

import (
	"strconv"
	"testing"
	"time"
)

// expectNoPush pushes, waits until the push is processed for the client, and checks that the server sends nothing.
func (r *testServer) expectNoPush(c *deltaClient, w meshState, touched ...string) {
	r.t.Helper()
	r.push(w, touched...)
	r.awaitStatus("the push is noted", func(s ClientStatus) bool { return s.Pushing })
	c.expectNothing()
}

func TestPushesAreMergedWhileWaitingForACK(t *testing.T) {
	r := newTestServer(t, Config{Await: time.Hour})
	r.push(smallState)
	c := r.newDeltaClient()
	c.subscribe(lds)
	c.expect("lds +l1=1 +l2=1")
	r.awaitStatus("in sync", func(s ClientStatus) bool { return s.InSync })
	r.push(smallState.withResource(lds, "l1", "2"), lds+" l1")
	first := c.next()
	r.expectNoPush(c, smallState.withResource(lds, "l1", "3"), lds+" l1")
	r.expectNoPush(c, smallState.withResource(lds, "l1", "4").withResource(lds, "l2", "4"), lds+" l2")
	c.ack(first)
	c.expect("lds +l1=4 +l2=4")
	r.awaitStatus("in sync", func(s ClientStatus) bool { return s.InSync })
}

func TestACKDuringPushReleasesIt(t *testing.T) {
	r := newTestServer(t, Config{Await: time.Hour})
	r.push(smallState)
	c := r.newDeltaClient()
	c.subscribe(lds)
	c.expect("lds +l1=1 +l2=1")
	for i := range 500 {
		content := strconv.Itoa(i + 2)
		r.push(smallState.withResource(lds, "l1", content), lds+" l1")
		c.expect("lds +l1=" + content)
	}
}

func TestNACKReleasesTheNextPush(t *testing.T) {
	r := newTestServer(t, Config{Await: time.Hour})
	r.push(smallState)
	c := r.newDeltaClient()
	c.subscribe(lds)
	c.expect("lds +l1=1 +l2=1")
	r.push(smallState.withResource(lds, "l1", "2"), lds)
	first := c.next()
	r.expectNoPush(c, smallState.withResource(lds, "l1", "3"), lds)
	c.nack(first, "no")
	c.expect("lds +l1=3")
}

func TestEndpointsDoNotWaitForClustersAndRoutesDo(t *testing.T) {
	r := newTestServer(t, Config{Await: time.Hour})
	r.push(smallState)
	c := r.newDeltaClient()
	c.subscribe(cds)
	c.expect("cds +a=eds1 +b=static1")
	c.subscribe(eds, "a")
	c.expect("eds +a=ends1")
	c.subscribe(rds, "r1")
	c.expect("rds +r1=1")
	next := smallState.withResource(cds, "n", "static1").withResource(rds, "r1", "to n")
	r.push(next, cds+" n", rds+" r1")
	clusters := c.next()
	if describe(clusters) != "cds +n=static1" {
		t.Fatal(describe(clusters))
	}
	r.push(next.withResource(eds, "a", "ends2"), eds+" a")
	c.expect("eds +a=ends2") // sent while the cluster warms up
	c.expectNothing()
	c.ack(clusters)
	c.expect("rds +r1=to n")
}

func TestClustersAreRemovedAfterTheRoutesToThemAreACKed(t *testing.T) {
	r := newTestServer(t, Config{Await: time.Hour})
	r.push(smallState)
	c := r.newDeltaClient()
	c.subscribe(cds)
	c.expect("cds +a=eds1 +b=static1")
	c.subscribe(rds, "r1")
	c.expect("rds +r1=1")
	r.push(smallState.withoutResource(cds, "b").withResource(rds, "r1", "without b"), cds+" b", rds+" r1")
	routes := c.next()
	if describe(routes) != "rds +r1=without b" {
		t.Fatal(describe(routes))
	}
	c.expectNothing()
	c.ack(routes)
	c.expect("cds -b")
	r.awaitStatus("in sync", func(s ClientStatus) bool { return s.InSync })
}

func TestClientWithoutACKsStillReceivesPushes(t *testing.T) {
	r := newTestServer(t, Config{Await: 20 * time.Millisecond})
	r.push(smallState)
	c := r.newDeltaClient()
	c.subscribe(cds)
	c.subscribe(rds, "r1")
	c.next()
	c.next()
	r.push(smallState.withoutResource(cds, "b").withResource(cds, "n", "static1").withResource(rds, "r1", "2"), cds, rds)
	for _, want := range []string{"cds +n=static1", "rds +r1=2", "cds -b"} {
		if m := c.next(); describe(m) != want {
			t.Fatalf("%s, want %s", describe(m), want)
		}
	}
}

func TestRequestedResourcesFollowTheirClusters(t *testing.T) {
	r := newTestServer(t, Config{Await: time.Hour})
	r.push(smallState)
	c := r.newDeltaClient()
	c.subscribe(cds)
	first := c.next() // the test does not ACK this response
	r.expectNoPush(c, smallState.withResource(cds, "n", "static1").withResource(rds, "r1", "to n"), cds+" n", rds+" r1")
	c.subscribe(rds, "r1")
	c.expect("cds +n=static1")
	c.expect("rds +r1=to n")
	c.ack(first)
}
