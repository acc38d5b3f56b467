package xds

import (
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
)

// resume sends a client's first request of a type after a reconnect.
func (c *deltaClient) resume(typeURL string, names []string, has map[string]string) {
	c.t.Helper()
	c.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: typeURL, ResourceNamesSubscribe: names, InitialResourceVersions: has})
}

func TestReconnectWithAllResourcesGetsNothing(t *testing.T) {
	r, c := startDelta(t)
	c.resume(cds, nil, map[string]string{"a": "eds1", "b": "static1"})
	c.resume(eds, []string{"a"}, map[string]string{"a": "ends1"})
	c.resume(lds, nil, map[string]string{"l1": "1", "l2": "1"})
	c.resume(rds, []string{"r1"}, map[string]string{"r1": "1"})
	c.expectNothing()
	st := r.awaitStatus("in sync", func(s ClientStatus) bool { return s.InSync && len(s.Types) == 4 })
	if got := typeStatus(st, cds).Resources; got != 2 {
		t.Fatalf("the server assumes that the client has %d clusters, want 2", got)
	}
	r.push(smallState.withResource(lds, "l1", "2"), lds)
	c.expect("lds +l1=2")
}

func TestReconnectGetsOnlyDifferences(t *testing.T) {
	_, c := startDelta(t)
	c.resume(lds, nil, map[string]string{"l1": "0", "l2": "1"})
	c.expect("lds +l1=1")
	c.resume(rds, []string{"r1", "r2"}, map[string]string{"r1": "1", "r2": "0"})
	c.expect("rds +r2=1")
	c.expectNothing()
}

func TestReconnectGetsRequestedResourcesThatItLacks(t *testing.T) {
	_, c := startDelta(t)
	c.resume(rds, []string{"r1", "r2", "ghost"}, map[string]string{"r1": "1"})
	c.expect("rds +r2=1 -ghost")
}

func TestReconnectWithStarAndNamesSubscribesToBoth(t *testing.T) {
	_, c := startDelta(t)
	c.resume(cds, []string{"*", "b"}, map[string]string{"b": "static1"})
	c.expect("cds +a=eds1")
}

func TestReconnectRemovesListenersFirst(t *testing.T) {
	// The server starts to wait for quiet only after the request for listeners, even if a long pause precedes that
	// request.
	r := newTestServer(t, Config{Settle: time.Hour})
	r.push(smallState)
	c := r.newDeltaClient()
	c.resume(cds, nil, map[string]string{"a": "eds1", "b": "static1", "gone": "eds1"})
	c.resume(eds, []string{"a", "gone"}, map[string]string{"a": "ends1", "gone": "ends1"})
	c.resume(lds, nil, map[string]string{"l1": "1", "l2": "1", "old": "1"})
	c.expect("lds -old")
	c.expectNothing()
}

func TestReconnectRemovesClustersOnceQuiet(t *testing.T) {
	_, c := startDelta(t)
	c.resume(cds, nil, map[string]string{"a": "eds1", "b": "static1", "gone": "eds1"})
	c.resume(eds, []string{"a", "gone"}, map[string]string{"a": "ends1", "gone": "ends1"})
	c.expect("eds -gone")
	c.expect("cds -gone")
	c.expectNothing()
}

func TestResourceThatReturnsBeforeItsRemovalIsNotRemoved(t *testing.T) {
	r := newTestServer(t, Config{Settle: 100 * time.Millisecond})
	r.push(smallState)
	c := r.newDeltaClient()
	c.resume(cds, nil, map[string]string{"a": "eds1", "b": "static1", "back": "static1", "gone": "static1"})
	r.awaitStatus("the client", func(s ClientStatus) bool { return len(s.Types) == 1 })
	r.push(smallState.withResource(cds, "back", "static1"), cds)
	c.expect("cds -gone")
	c.expectNothing()
}

func TestReconnectGetsAssignmentsOfResentClusters(t *testing.T) {
	// The cluster changed while the client was disconnected, but its endpoints did not. If the server sent no
	// assignment, Envoy would warm the cluster for 15 s.
	_, c := startDelta(t)
	c.resume(cds, nil, map[string]string{"a": "eds0", "b": "static1"})
	c.resume(eds, []string{"a"}, map[string]string{"a": "ends1"})
	c.expect("cds +a=eds1")
	c.expect("eds +a=ends1")
	c.expectNothing()
}

func TestReconnectGetsEndpointsAfterTheirClusters(t *testing.T) {
	_, c := startDelta(t)
	c.resume(eds, []string{"a"}, map[string]string{"a": "ends1"})
	c.expectNothing()
	c.resume(cds, nil, map[string]string{"a": "eds0", "b": "static1"})
	c.expect("cds +a=eds1")
	c.expect("eds +a=ends1")
}
