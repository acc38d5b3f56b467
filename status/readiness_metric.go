package status

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// readinessMetric is a Prometheus collector with one gauge per component. It runs the readiness checks on each scrape.
type readinessMetric struct {
	server *Server
	desc   *prometheus.Desc
}

// registerReadiness registers the metric. Without a registerer it does nothing.
func (s *Server) registerReadiness(r prometheus.Registerer) error {
	if r == nil {
		return nil
	}
	m := &readinessMetric{server: s, desc: prometheus.NewDesc("pilotfish_ready",
		"1 if a component is ready, else 0. The proxy is ready when all components are.", []string{"part"}, nil)}
	if err := r.Register(m); err != nil {
		return fmt.Errorf("registering the readiness metric: %w", err)
	}
	return nil
}

func (m *readinessMetric) Describe(descs chan<- *prometheus.Desc) { descs <- m.desc }

func (m *readinessMetric) Collect(values chan<- prometheus.Metric) {
	for _, p := range m.server.Readiness().Reasons {
		value := 0.0
		if p.Ready {
			value = 1
		}
		values <- prometheus.MustNewConstMetric(m.desc, prometheus.GaugeValue, value, p.Part)
	}
}

// readinessWait limits two waits of a scrape: for the readiness checks, and until the request to Envoy is sent.
const readinessWait = 20 * time.Millisecond

// startReadinessChecks starts the readiness checks before Envoy is scraped, and waits for them for at most
// readinessWait. While Envoy builds its statistics, its admin interface does not respond, and later checks would wait.
// The channel is closed when all checks have finished.
func (s *Server) startReadinessChecks() (done <-chan struct{}) {
	finished := make(chan struct{})
	if s.Registerer == nil || s.Metrics.Envoy == nil || s.Metrics.WithoutEnvoy {
		close(finished)
		return finished
	}
	go func() {
		defer close(finished)
		s.Readiness()
	}()
	timer := time.NewTimer(readinessWait)
	defer timer.Stop()
	select {
	case <-finished:
	case <-timer.C:
	}
	return finished
}
