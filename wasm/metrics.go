package wasm

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Values of the label "result" of the metrics of conversions and fetches. Istio's agent uses the same values.
const (
	resultSuccess      = "success"
	resultNoRemote     = "no_remote_load"
	resultMarshal      = "marshal_failure"
	resultFetch        = "fetch_failure"
	resultMissingHint  = "miss_remote_fetch_hint"
	resultDownload     = "download_failure"
	resultMismatch     = "checksum_mismatched"
	millisecondsPerSec = 1000
)

// metrics contains the package's metrics. Those named istio_agent_… have the same name in Istio's agent.
type metrics struct {
	lookups     *prometheus.CounterVec
	fetches     *prometheus.CounterVec
	conversions *prometheus.CounterVec
	duration    prometheus.Histogram
	waiting     prometheus.Gauge
}

func newMetrics() *metrics {
	vector := func(name, help, label string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{label})
	}
	return &metrics{
		lookups:     vector("istio_agent_wasm_cache_lookup_count", "Lookups of Wasm modules in the cache, by result.", "hit"),
		fetches:     vector("istio_agent_wasm_remote_fetch_count", "Fetches of Wasm modules, by result.", "result"),
		conversions: vector("istio_agent_wasm_config_conversion_count", "Filters whose Wasm module was converted to a local file, by result.", "result"),
		waiting: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "pilotfish_wasm_stand_ins", Help: "Filters that are replaced by a placeholder because their Wasm module could not be fetched.",
		}),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "istio_agent_wasm_config_conversion_duration",
			Help:    "Milliseconds per response for converting modules to local files.",
			Buckets: []float64{1, 5, 10, 50, 100, 500, 1000, 5000, 10000, 60000},
		}),
	}
}

func (m *metrics) register(registerer prometheus.Registerer, s *store) error {
	if registerer == nil {
		return nil
	}
	entries := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "istio_agent_wasm_cache_entries", Help: "Cached Wasm modules.",
	}, func() float64 { n, _ := s.count(); return float64(n) })
	size := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "pilotfish_wasm_cache_bytes", Help: "Total size of the cached Wasm modules in bytes.",
	}, func() float64 { _, bytes := s.count(); return float64(bytes) })
	for _, c := range []prometheus.Collector{m.lookups, m.fetches, m.conversions, m.duration, m.waiting, entries, size} {
		if err := registerer.Register(c); err != nil {
			return err
		}
	}
	return nil
}

func (m *metrics) countLookup(hit bool) {
	value := "false"
	if hit {
		value = "true"
	}
	m.lookups.WithLabelValues(value).Inc()
}

func (m *metrics) countFetch(err error) {
	result := resultSuccess
	switch {
	case errors.Is(err, errMismatch):
		result = resultMismatch
	case err != nil:
		result = resultDownload
	}
	m.fetches.WithLabelValues(result).Inc()
}

func (m *metrics) observeDuration(d time.Duration) {
	m.duration.Observe(d.Seconds() * millisecondsPerSec)
}
