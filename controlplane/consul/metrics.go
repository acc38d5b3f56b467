package consul

import "github.com/prometheus/client_golang/prometheus"

// Metrics contains the metrics of a source.
type Metrics struct {
	connected, services, instances *prometheus.GaugeVec
	responses                      *prometheus.CounterVec
}

// NewMetrics registers the metrics.
func NewMetrics(r prometheus.Registerer) *Metrics {
	labels := []string{"datacenter"}
	m := &Metrics{
		connected: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "pilotfish_consul_connected",
			Help: "Whether the last query for the services of a Consul datacenter succeeded (1) or not (0)."}, labels),
		services: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "pilotfish_consul_services",
			Help: "Services of a Consul datacenter that the control plane follows."}, labels),
		instances: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "pilotfish_consul_instances",
			Help: "Usable instances of the services of a Consul datacenter, by health (passing or failing)."}, append(labels, "health")),
		responses: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "pilotfish_consul_queries_total",
			Help: "Queries to Consul for a datacenter, by result (succeeded or failed)."}, append(labels, "result")),
	}
	r.MustRegister(m.connected, m.services, m.instances, m.responses)
	return m
}
