package xds

import (
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
)

// resume is a client's first request of a type after a reconnect.
func (c *deltaClient) resume(typeURL string, names []string, has map[string]string) {
	c.t.Helper()
	c.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: typeURL, ResourceNamesSubscribe: names, InitialResourceVersions: has})
}

func TestReconnectWithEverythingIsLeftInPeace(t *testing.T) {
	r, c := startSmall(t)
	c.resume(cds, nil, map[string]string{"a": "eds1", "b": "static1"})
	c.resume(eds, []string{"a"}, map[string]string{"a": "ends1"})
	c.resume(lds, nil, map[string]string{"l1": "1", "l2": "1"})
	c.resume(rds, []string{"r1"}, map[string]string{"r1": "1"})
	c.silence()
	st := r.only("in sync", func(s ClientStatus) bool { return s.InSync && len(s.Types) == 4 })
	if got := typeOf(st, cds).Resources; got != 2 {
		t.Fatalf("the client is thought to have %d clusters, want 2", got)
	}
	r.push(small.with(lds, "l1", "2"), lds)
	c.expect("lds +l1=2")
}

func TestReconnectGetsOnlyWhatDiffers(t *testing.T) {
	_, c := startSmall(t)
	c.resume(lds, nil, map[string]string{"l1": "0", "l2": "1"})
	c.expect("lds +l1=1")
	c.resume(rds, []string{"r1", "r2"}, map[string]string{"r1": "1", "r2": "0"})
	c.expect("rds +r2=1")
	c.silence()
}

func TestReconnectGetsWhatItAsksForAndDoesNotHave(t *testing.T) {
	_, c := startSmall(t)
	c.resume(rds, []string{"r1", "r2", "ghost"}, map[string]string{"r1": "1"})
	c.expect("rds +r2=1 -ghost")
}

func TestReconnectWithStarAndNamesIsBoth(t *testing.T) {
	_, c := startSmall(t)
	c.resume(cds, []string{"*", "b"}, map[string]string{"b": "static1"})
	c.expect("cds +a=eds1")
}

func TestReconnectIsToldWhatNoLongerExistsListenersFirst(t *testing.T) {
	// Quiet comes only after the listeners' request; the pause before it is as long as the client likes.
	r := newRig(t, Config{Settle: time.Hour})
	r.push(small)
	c := r.delta()
	c.resume(cds, nil, map[string]string{"a": "eds1", "b": "static1", "gone": "eds1"})
	c.resume(eds, []string{"a", "gone"}, map[string]string{"a": "ends1", "gone": "ends1"})
	c.resume(lds, nil, map[string]string{"l1": "1", "l2": "1", "old": "1"})
	c.expect("lds -old")
	c.silence()
}

func TestReconnectIsToldOfRemovedClustersOnceItIsQuiet(t *testing.T) {
	_, c := startSmall(t)
	c.resume(cds, nil, map[string]string{"a": "eds1", "b": "static1", "gone": "eds1"})
	c.resume(eds, []string{"a", "gone"}, map[string]string{"a": "ends1", "gone": "ends1"})
	c.expect("eds -gone")
	c.expect("cds -gone")
	c.silence()
}

func TestResourceThatReturnsBeforeItsRemovalIsNotRemoved(t *testing.T) {
	r := newRig(t, Config{Settle: 100 * time.Millisecond})
	r.push(small)
	c := r.delta()
	c.resume(cds, nil, map[string]string{"a": "eds1", "b": "static1", "back": "static1", "gone": "static1"})
	r.only("the client", func(s ClientStatus) bool { return len(s.Types) == 1 })
	r.push(small.with(cds, "back", "static1"), cds)
	c.expect("cds -gone")
	c.silence()
}

func TestReconnectGetsAssignmentsOfClustersThatWereSentAgain(t *testing.T) {
	// The cluster changed while the client was away, its endpoints did not: it would warm for 15 s.
	_, c := startSmall(t)
	c.resume(cds, nil, map[string]string{"a": "eds0", "b": "static1"})
	c.resume(eds, []string{"a"}, map[string]string{"a": "ends1"})
	c.expect("cds +a=eds1")
	c.expect("eds +a=ends1")
	c.silence()
}

func TestReconnectThatAsksForEndpointsFirstGetsThemBehindTheirClusters(t *testing.T) {
	_, c := startSmall(t)
	c.resume(eds, []string{"a"}, map[string]string{"a": "ends1"})
	c.silence()
	c.resume(cds, nil, map[string]string{"a": "eds0", "b": "static1"})
	c.expect("cds +a=eds1")
	c.expect("eds +a=ends1")
}
