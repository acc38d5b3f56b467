package dns

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// Sources of answers: values of the label "source" of pilotfish_dns_answers_total.
const (
	sourceMesh     = "mesh"     // the name table
	sourceCache    = "cache"    // a cached answer of a resolver
	sourceResolver = "resolver" // a resolver
	sourceStale    = "stale"    // an expired answer in the cache
	sourceFailed   = "failed"   // no resolver responded
	sourceRefused  = "refused"  // the query is not supported
)

// metrics are the server's metrics. A metric that also exists in Istio's agent has the same name as there.
type metrics struct {
	requests, upstreamRequests, upstreamFailures prometheus.Counter
	upstreamTime                                 prometheus.Histogram
	answers                                      *prometheus.CounterVec
	mesh, cached                                 prometheus.Counter // answer counters without label lookups
	dropped                                      *prometheus.CounterVec
	keepFailures                                 prometheus.Counter
}

func newMetrics() *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	m := &metrics{
		requests:         counter("istio_agent_dns_requests_total", "DNS queries received."),
		upstreamRequests: counter("istio_agent_dns_upstream_requests_total", "DNS queries sent to resolvers."),
		upstreamFailures: counter("istio_agent_dns_upstream_failures_total", "DNS queries to which a resolver did not respond, or responded with a failure."),
		upstreamTime: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "istio_agent_dns_upstream_request_duration_seconds", Help: "Seconds until a resolver responded to a query.",
			Buckets: []float64{.001, .005, .02, .1, .5, 1, 2, 5},
		}),
		answers: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pilotfish_dns_answers_total", Help: "Responses to DNS queries, by the source of the answer.",
		}, []string{"source"}),
		dropped: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pilotfish_dns_dropped_total", Help: "DNS packets and connections that were dropped, by reason.",
		}, []string{"reason"}),
		keepFailures: counter("pilotfish_dns_keep_failures_total", "Failed attempts to store the name table on disk."),
	}
	for _, source := range []string{sourceResolver, sourceStale, sourceFailed, sourceRefused} {
		m.answers.WithLabelValues(source)
	}
	m.mesh, m.cached = m.answers.WithLabelValues(sourceMesh), m.answers.WithLabelValues(sourceCache)
	for _, reason := range []string{dropSource, dropMalformed, dropFull, dropIdle} {
		m.dropped.WithLabelValues(reason)
	}
	return m
}

func (m *metrics) register(r prometheus.Registerer, s *Server) error {
	if r == nil {
		return nil
	}
	names := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "pilotfish_dns_mesh_hosts", Help: "Hosts in the name table of the mesh.",
	}, func() float64 {
		if x := s.index.Load(); x != nil {
			return float64(len(x.table.Hosts))
		}
		return 0
	})
	held := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "pilotfish_dns_cache_entries", Help: "Answers of resolvers in the cache.",
	}, func() float64 { return float64(s.forward.cache.len()) })
	received := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "pilotfish_dns_names_received_timestamp_seconds", Help: "Unix time at which the control plane sent the current name table; 0 without a name table.",
	}, func() float64 {
		if at, _ := s.tableOrigin(); !at.IsZero() {
			return float64(at.Unix())
		}
		return 0
	})
	fromDisk := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "pilotfish_dns_names_kept", Help: "1 while the server uses the name table that an earlier run stored on disk, else 0.",
	}, func() float64 {
		if _, kept := s.tableOrigin(); kept {
			return 1
		}
		return 0
	})
	for _, c := range []prometheus.Collector{
		m.keepFailures, received, fromDisk,
		m.requests, m.upstreamRequests, m.upstreamFailures, m.upstreamTime, m.answers, m.dropped, names, held,
	} {
		if err := r.Register(c); err != nil {
			return fmt.Errorf("registering the DNS server's metrics: %w", err)
		}
	}
	return nil
}
