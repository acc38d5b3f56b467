package xdsproxy

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// How a stream ended.
const (
	endError  = "error"
	endCancel = "cancel"
)

// metrics are named as Istio's agent names them, where it has them.
type metrics struct {
	connectFailures prometheus.Counter
	upstreamEnds    *prometheus.CounterVec
	envoyEnds       *prometheus.CounterVec
	requests        prometheus.Counter
	responses       prometheus.Counter
	acks            *prometheus.CounterVec
	nacks           *prometheus.CounterVec
	responseBytes   *prometheus.CounterVec
	lastAccepted    *prometheus.GaugeVec
	largest         prometheus.Gauge

	mu      sync.Mutex
	longest int // request so far
}

func newMetrics() *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	vector := func(name, help string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{"type"})
	}
	ends := func(name, help string) *prometheus.CounterVec {
		v := vector(name, help)
		for _, kind := range []string{endError, endCancel} {
			v.WithLabelValues(kind) // so that the first end is seen as a rise
		}
		return v
	}
	return &metrics{
		connectFailures: counter("istio_agent_istiod_connection_failures", "Attempts to connect to the control plane that failed."),
		upstreamEnds:    ends("istio_agent_istiod_connection_terminations", "Streams that the control plane ended, by error or cancel."),
		envoyEnds:       ends("istio_agent_envoy_connection_terminations", "Streams that Envoy ended, by error or cancel."),
		requests:        counter("istio_agent_xds_proxy_requests", "Discovery requests of Envoy."),
		responses:       counter("istio_agent_xds_proxy_responses", "Discovery responses of the control plane."),
		acks:            vector("pilotfish_xds_acks_total", "Responses that Envoy accepted, by type of resource."),
		nacks:           vector("pilotfish_xds_nacks_total", "Responses that Envoy rejected, by type of resource."),
		responseBytes:   vector("pilotfish_xds_response_bytes_total", "Bytes of responses, by type of resource."),
		largest: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "istio_agent_pilot_xds_recv_max",
			Help: "Bytes of the largest discovery request so far.",
		}),
		lastAccepted: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "pilotfish_xds_last_accepted_timestamp_seconds",
			Help: "When Envoy last accepted a response, in seconds since 1970, by type of resource.",
		}, []string{"type"}),
	}
}

func (m *metrics) register(registerer prometheus.Registerer, book *ledger) error {
	if registerer == nil {
		return nil
	}
	connected := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "pilotfish_xds_connected",
		Help: "Whether Envoy's stream reaches a control plane: 1 or 0.",
	}, func() float64 {
		if book.status().Connected {
			return 1
		}
		return 0
	})
	if err := registerer.Register(rejectedCollector{book}); err != nil {
		return err
	}
	for _, c := range []prometheus.Collector{
		m.connectFailures, m.upstreamEnds, m.envoyEnds, m.requests, m.responses, m.acks, m.nacks, m.responseBytes, m.lastAccepted, m.largest, connected,
	} {
		if err := registerer.Register(c); err != nil {
			return err
		}
	}
	return nil
}

// begin has the counters of a type at 0: of one that appears with its first rejection nobody sees the increase.
func (m *metrics) begin(typeURL string) {
	m.acks.WithLabelValues(shortType(typeURL))
	m.nacks.WithLabelValues(shortType(typeURL))
}

// received measures a request.
func (m *metrics) received(bytes int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if bytes > m.longest {
		m.longest = bytes
		m.largest.Set(float64(bytes))
	}
}

// ended counts the end of a stream as Istio's agent does: by "error", or "cancel" when it was orderly.
func (m *metrics) ended(vector *prometheus.CounterVec, err error) {
	kind := endError
	if isOrderly(err) {
		kind = endCancel
	}
	vector.WithLabelValues(kind).Inc()
}

var rejectedResources = prometheus.NewDesc("pilotfish_xds_rejected_resources",
	"Resources that Envoy rejects at the moment, as far as it names them, by type.", []string{"type"}, nil)

// rejectedCollector counts rejected resources when it is asked.
type rejectedCollector struct{ book *ledger }

func (c rejectedCollector) Describe(descriptions chan<- *prometheus.Desc) {
	descriptions <- rejectedResources
}

func (c rejectedCollector) Collect(metrics chan<- prometheus.Metric) {
	c.book.mu.Lock()
	defer c.book.mu.Unlock()
	counts := make(map[string]int)
	for _, a := range c.book.types {
		counts[shortType(a.TypeURL)] += len(a.rejected)
	}
	for name, n := range counts {
		metrics <- prometheus.MustNewConstMetric(rejectedResources, prometheus.GaugeValue, float64(n), name)
	}
}
