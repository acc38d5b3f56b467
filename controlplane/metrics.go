package controlplane

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/pilotfish-mesh/pilotfish/version"
)

// metrics contains the control plane's metrics. A metric has istiod's name if istiod has an equivalent one, so that
// dashboards for istiod work.
type metrics struct {
	debounce, snapshot prometheus.Histogram
	triggers, updates  *prometheus.CounterVec
}

func newMetrics(r prometheus.Registerer) *metrics {
	buckets := []float64{.001, .005, .01, .05, .1, .5, 1, 5, 10}
	m := &metrics{
		debounce: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "pilot_debounce_time", Buckets: buckets,
			Help: "Seconds from the first change of a batch to the start of the snapshot's build."}),
		snapshot: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "pilot_pushcontext_init_seconds", Buckets: buckets,
			Help: "Seconds to build a snapshot."}),
		triggers: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "pilot_push_triggers",
			Help: "Pushes, by reason."}, []string{"type"}),
		updates: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "pilot_inbound_updates",
			Help: "Documents that were added, changed or removed, by kind."}, []string{"type"}),
	}
	build := prometheus.NewGauge(prometheus.GaugeOpts{Name: "pilotfish_build_info", Help: "Version and commit of the build.",
		ConstLabels: prometheus.Labels{"version": version.Version, "commit": version.Commit}})
	build.Set(1)
	// istiod's dashboards read the versions of running control planes from this metric.
	info := prometheus.NewGauge(prometheus.GaugeOpts{Name: "pilot_info", Help: "The control plane's version.",
		ConstLabels: prometheus.Labels{"version": version.Version}})
	info.Set(1)
	r.MustRegister(m.debounce, m.snapshot, m.triggers, m.updates, build, info)
	return m
}

// recordBuild records the duration of one build of a snapshot, which began at start, and the delay between firstChange,
// the first change of its batch, and start.
func (m *metrics) recordBuild(start, firstChange time.Time) {
	m.snapshot.Observe(time.Since(start).Seconds())
	m.debounce.Observe(start.Sub(firstChange).Seconds())
}

func overTLS(ctx context.Context) bool {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return false
	}
	_, ok = p.AuthInfo.(credentials.TLSInfo)
	return ok
}
