package status

import (
	"fmt"

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
