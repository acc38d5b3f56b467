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

// What went on in parts is told of as what went on whole; who listens sees the next one with all that is in it.
func TestLargeResponseIsSeenInHistoryMetricsAndTap(t *testing.T) {
	registry := prometheus.NewRegistry()
	_, s, r, _, envoy := begun(t, Config{Metrics: registry, LastGood: LastGood{Dirs: []string{t.TempDir()}}})
	response := large(t, clusterType, clusterType, flowing)
	resources := flowing / 1000
	bytes := func() float64 { return testutil.ToFloat64(r.book.metrics.responseBytes.WithLabelValues("Cluster")) }
	before := bytes()
	s.begins(response, len(response)/2)
	if r.History().Events[len(r.History().Events)-1].Bytes == len(response) {
		t.Error("it is told of before it is there")
	}
	s.ends(response, len(response)/2)
	envoy.take(clusterType, "")
	s.hears(delta, clusterType)
	if r.unfit.Load() || r.broken.Load() {
		t.Error("it did not go on in parts")
	}
	if got := bytes() - before; got != float64(len(response)) {
		t.Errorf("the metrics have %v bytes of %d", got, len(response))
	}
	events := r.History().Events
	told := slices.ContainsFunc(events, func(e Event) bool {
		return e.Kind == EventResponse && e.Bytes == len(response) && e.Resources == resources && e.Version == "s" && e.Nonce == "n"
	})
	last := events[len(events)-1]
	if !told || last.Kind != EventAck || last.Nonce != "n" {
		t.Errorf("told of the response: %v; at last %+v", told, last)
	}
	if st := typeStatus(r, clusterType); st.LastResources != resources || st.State != StateAcknowledged || st.Version != "s" {
		t.Errorf("%+v", st)
	}

	lines := tapping(t, r, TapOptions{Types: []string{"cds"}, Contents: true})
	s.says(large(t, clusterType, clusterType, flowing))
	envoy.take(clusterType, "")
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
