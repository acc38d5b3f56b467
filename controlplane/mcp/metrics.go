package mcp

import "github.com/prometheus/client_golang/prometheus"

// Metrics contains the metrics of all sources.
type Metrics struct {
	connected, documents *prometheus.GaugeVec
	responses            *prometheus.CounterVec
}

// NewMetrics registers the metrics.
func NewMetrics(r prometheus.Registerer) *Metrics {
	m := &Metrics{
		connected: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "pilotfish_config_source_connected",
			Help: "Whether the control plane has a stream to a configuration source of the scheme xds (1) or not (0)."}, []string{"source"}),
		documents: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "pilotfish_config_source_documents",
			Help: "Accepted documents of a configuration source of the scheme xds."}, []string{"source"}),
		responses: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "pilotfish_config_source_responses_total",
			Help: "Responses of a configuration source of the scheme xds, by result (accepted or rejected)."}, []string{"source", "result"}),
	}
	r.MustRegister(m.connected, m.documents, m.responses)
	return m
}
