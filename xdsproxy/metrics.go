package xdsproxy

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// Values of the label "type" of the metrics that count ended streams.
const (
	endError  = "error"
	endCancel = "cancel"
)

// metrics contains the relay's metrics. A metric that Istio's agent also exports has the same name here.
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
	requestBytesMax prometheus.Gauge

	mu              sync.Mutex
	maxRequestBytes int // largest request so far
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
			v.WithLabelValues(kind) // start at 0, so that increase() shows the first ended stream
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
		requestBytesMax: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "istio_agent_pilot_xds_recv_max",
			Help: "Bytes of the largest discovery request so far.",
		}),
		lastAccepted: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "pilotfish_xds_last_accepted_timestamp_seconds",
			Help: "Time at which Envoy last accepted a response, in seconds since 1970, by type of resource.",
		}, []string{"type"}),
	}
}

func (m *metrics) register(registerer prometheus.Registerer, tracker *statusTracker) error {
	if registerer == nil {
		return nil
	}
	connected := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "pilotfish_xds_connected",
		Help: "1 if Envoy's stream is connected to a control plane, 0 otherwise.",
	}, func() float64 {
		if tracker.status().Connected {
			return 1
		}
		return 0
	})
	if err := registerer.Register(rejectedCollector{tracker}); err != nil {
		return err
	}
	for _, c := range []prometheus.Collector{
		m.connectFailures, m.upstreamEnds, m.envoyEnds, m.requests, m.responses, m.acks, m.nacks, m.responseBytes, m.lastAccepted, m.requestBytesMax, connected,
	} {
		if err := registerer.Register(c); err != nil {
			return err
		}
	}
	return nil
}

// typeMetrics contains the metrics of one resource type. The relay looks them up only once per type, because updates
// are frequent.
type typeMetrics struct {
	acks, nacks, responseBytes prometheus.Counter
	lastAccepted               func() prometheus.Gauge
}

// newTypeMetrics returns the metrics of a type. It sets the counters to 0, so that increase() shows the first NACK. The
// gauge with the time of the last ACK is created at the first ACK.
func (m *metrics) newTypeMetrics(typeURL string) typeMetrics {
	name := shortType(typeURL)
	return typeMetrics{
		acks: m.acks.WithLabelValues(name), nacks: m.nacks.WithLabelValues(name), responseBytes: m.responseBytes.WithLabelValues(name),
		lastAccepted: sync.OnceValue(func() prometheus.Gauge { return m.lastAccepted.WithLabelValues(name) }),
	}
}

// observeRequest updates the metric with the size of the largest request.
func (m *metrics) observeRequest(bytes int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if bytes > m.maxRequestBytes {
		m.maxRequestBytes = bytes
		m.requestBytesMax.Set(float64(bytes))
	}
}

// countEnd counts the end of a stream in the same way as Istio's agent: as "cancel" after an orderly end, otherwise as
// "error".
func (m *metrics) countEnd(vector *prometheus.CounterVec, err error) {
	kind := endError
	if isOrderly(err) {
		kind = endCancel
	}
	vector.WithLabelValues(kind).Inc()
}

var rejectedResources = prometheus.NewDesc("pilotfish_xds_rejected_resources",
	"Resources that Envoy currently rejects and names in its NACKs, by type.", []string{"type"}, nil)

// rejectedCollector is a prometheus.Collector. At each scrape it counts the resources that Envoy rejects.
type rejectedCollector struct{ tracker *statusTracker }

func (c rejectedCollector) Describe(descriptions chan<- *prometheus.Desc) {
	descriptions <- rejectedResources
}

func (c rejectedCollector) Collect(metrics chan<- prometheus.Metric) {
	c.tracker.mu.Lock()
	defer c.tracker.mu.Unlock()
	counts := make(map[string]int)
	for _, a := range c.tracker.types {
		counts[shortType(a.TypeURL)] += len(a.rejected)
	}
	for name, n := range counts {
		metrics <- prometheus.MustNewConstMetric(rejectedResources, prometheus.GaugeValue, float64(n), name)
	}
}
