package sds

import (
	"github.com/prometheus/client_golang/prometheus"
)

// metrics contains the server's counters. Where Istio's agent has the same metric, the name is the same.
type metrics struct {
	watchFailures  prometheus.Counter
	secretFailures prometheus.Counter
	nacks          prometheus.Counter
	outputFailures prometheus.Counter
	stalls         prometheus.Counter
}

func newMetrics() *metrics {
	return &metrics{
		watchFailures:  newCounter("istio_agent_num_file_watcher_failures_total", "Failures of the file notification system."),
		secretFailures: newCounter("istio_agent_num_file_secret_failures_total", "Secrets that could not be read from their files."),
		nacks:          newCounter("pilotfish_sds_nacks_total", "Secrets that Envoy rejected."),
		outputFailures: newCounter("pilotfish_sds_output_failures_total", "Failed writes of the identity to its directory."),
		stalls:         newCounter("pilotfish_sds_disk_stalls_total", "Number of times that the file system of certificate files did not respond."),
	}
}

func newCounter(name, help string) prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
}

func (m *metrics) register(registerer prometheus.Registerer, s *Server) error {
	return registerAll(registerer, m.watchFailures, m.secretFailures, m.nacks, m.outputFailures, m.stalls, &expiryCollector{
		server: s,
		desc: prometheus.NewDesc("istio_agent_cert_expiry_seconds",
			"Seconds until a served certificate expires; negative after its expiry.", []string{"resource_name"}, nil),
	})
}

func registerAll(registerer prometheus.Registerer, collectors ...prometheus.Collector) error {
	if registerer == nil {
		return nil
	}
	for _, c := range collectors {
		if err := registerer.Register(c); err != nil {
			return err
		}
	}
	return nil
}

// expiryCollector reports the seconds until each served certificate expires. It computes them at each scrape.
type expiryCollector struct {
	server *Server
	desc   *prometheus.Desc
}

func (e *expiryCollector) Describe(descs chan<- *prometheus.Desc) { descs <- e.desc }

func (e *expiryCollector) Collect(values chan<- prometheus.Metric) {
	now := e.server.config.Clock.Now()
	earliest := make(map[string]float64)
	for _, info := range e.server.Certificates() {
		end := info.NotAfter
		for _, link := range info.Chain {
			if link.NotAfter.Before(end) {
				end = link.NotAfter
			}
		}
		left := end.Sub(now).Seconds()
		if known, ok := earliest[info.Name]; !ok || left < known {
			earliest[info.Name] = left
		}
	}
	for name, left := range earliest {
		values <- prometheus.MustNewConstMetric(e.desc, prometheus.GaugeValue, left, name)
	}
}
