package xdsproxy

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// History, metrics and status report a chunked response like any other. With an open tap, the next one is not chunked.
func TestLargeResponseIsSeenInHistoryMetricsAndTap(t *testing.T) {
	registry := prometheus.NewRegistry()
	_, s, r, _, envoy := startRecordedEnvoy(t, Config{Metrics: registry, LastGood: LastGood{Dirs: []string{t.TempDir()}}})
	response := newLargeResponse(t, clusterType, clusterType, chunkedSize)
	resources := chunkedSize / 1000
	bytes := func() float64 { return testutil.ToFloat64(r.tracker.metrics.responseBytes.WithLabelValues("Cluster")) }
	before := bytes()
	s.sendPartially(response, len(response)/2)
	if r.History().Events[len(r.History().Events)-1].Bytes == len(response) {
		t.Error("the response is recorded before it is complete")
	}
	s.end(response, len(response)/2)
	envoy.accept(clusterType, "")
	s.receive(delta, clusterType)
	if r.isUnchunkable.Load() || r.isChunkBroken.Load() {
		t.Error("the response was not chunked")
	}
	if got := bytes() - before; got != float64(len(response)) {
		t.Errorf("the metrics count %v bytes of %d", got, len(response))
	}
	events := r.History().Events
	recorded := slices.ContainsFunc(events, func(e Event) bool {
		return e.Kind == EventResponse && e.Bytes == len(response) && e.Resources == resources && e.Version == "s" && e.Nonce == "n"
	})
	last := events[len(events)-1]
	if !recorded || last.Kind != EventAck || last.Nonce != "n" {
		t.Errorf("response recorded: %v; last event %+v", recorded, last)
	}
	if st := typeStatus(r, clusterType); st.LastResources != resources || st.State != StateAcknowledged || st.Version != "s" {
		t.Errorf("%+v", st)
	}

	lines := startTap(t, r, TapOptions{Types: []string{"cds"}, Contents: true})
	s.send(newLargeResponse(t, clusterType, clusterType, chunkedSize))
	envoy.accept(clusterType, "")
	testenv.Eventually(t, "the tap has all of it", func() error {
		all := lines()
		i := slices.IndexFunc(all, func(l TapLine) bool {
			return l.Kind == TapResponse && l.Bytes == len(response) && l.Resources == resources
		})
		switch {
		case i < 0:
			return fmt.Errorf("%d lines, none of the response", len(all))
		case !slices.ContainsFunc(all[i:], func(l TapLine) bool { return l.Kind == TapResource && l.Name == "c4" && len(l.Content) > 0 }):
			return errors.New("a resource is missing")
		case !slices.ContainsFunc(all[i:], func(l TapLine) bool { return l.Kind == TapAck }):
			return errors.New("the answer is missing")
		}
		return nil
	})
}
