package status

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// readinessMetric tells each part's readiness, asked for when it is scraped.
type readinessMetric struct {
	server *Server
	desc   *prometheus.Desc
}

// registerReadiness registers the metric; without a registerer it does nothing.
func (s *Server) registerReadiness(r prometheus.Registerer) error {
	if r == nil {
		return nil
	}
	m := &readinessMetric{server: s, desc: prometheus.NewDesc("pilotfish_ready",
		"Whether a part is ready: 1 or 0. The proxy is ready when all parts are.", []string{"part"}, nil)}
	if err := r.Register(m); err != nil {
		return fmt.Errorf("registering the metric of readiness: %w", err)
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

// foresight is how long a scrape waits for the parts' readiness, and for its request to Envoy to be on its way, before it goes
// on without.
const foresight = 20 * time.Millisecond

// foresee asks for the readiness that the agent's own metrics will tell, before Envoy is asked for its statistics: while
// Envoy puts those together it answers nobody, and all that the agent has of its own would wait for it. The channel is
// closed when all parts have answered.
func (s *Server) foresee() (done <-chan struct{}) {
	known := make(chan struct{})
	if s.Registerer == nil || s.Metrics.Envoy == nil {
		close(known)
		return known
	}
	go func() {
		defer close(known)
		s.Readiness()
	}()
	timer := time.NewTimer(foresight)
	defer timer.Stop()
	select {
	case <-known:
	case <-timer.C:
	}
	return known
}
