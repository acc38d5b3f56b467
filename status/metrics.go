package status

import (
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics contains the server's metrics about itself. Metrics that also exist in Istio's agent have the same names.
type metrics struct {
	scrapes  prometheus.Counter
	failures *prometheus.CounterVec
	startup  prometheus.Gauge
	probes   *prometheus.CounterVec
}

// Values of the label "type" of the failure metric: the kinds of sources of /metrics.
const (
	sourceAgent       = "agent"
	sourceEnvoy       = "envoy"
	sourceApplication = "application"
)

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		scrapes: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "istio_agent_scrapes_total", Help: "Scrapes of the agent's merged metrics.",
		}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "istio_agent_scrape_failures_total", Help: "Sources that were missing from a scrape, by source.",
		}, []string{"type"}),
		probes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pilotfish_application_probes_total",
			Help: "Application probes that the agent ran for the kubelet, by path and result: success, failure, or refused because too many were in progress.",
		}, []string{"path", "result"}),
		startup: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "istio_agent_startup_duration_seconds", Help: "Time from the agent's start until it was first ready.",
		}),
	}
	// Create the series of each source at 0. Otherwise a source that never failed has no series, and an alert on an
	// increase misses the first failure.
	m.failures.WithLabelValues(sourceAgent)
	m.failures.WithLabelValues(sourceEnvoy)
	m.failures.WithLabelValues(sourceApplication)
	if r == nil {
		return m, nil
	}
	if err := errors.Join(r.Register(m.scrapes), r.Register(m.failures), r.Register(m.startup), r.Register(m.probes)); err != nil {
		return nil, fmt.Errorf("registering the status server's metrics: %w", err)
	}
	return m, nil
}
