package xds

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics contains the server's metrics. A metric has istiod's name if istiod has an equivalent one, so that dashboards
// for istiod work.
type metrics struct {
	clients                                                      prometheus.Gauge
	sendTimeouts, refusedStreams                                 prometheus.Counter
	queueTime, convergence                                       prometheus.Histogram
	pushes, rejects, expiredNonces, generateErrors, namesRefused *prometheus.CounterVec
	generateTime, size                                           *prometheus.HistogramVec
}

func newMetrics(registerer prometheus.Registerer, held func() float64) (*metrics, error) {
	seconds := []float64{.001, .003, .01, .03, .1, .3, 1, 3, 10, 30}
	m := &metrics{
		clients: prometheus.NewGauge(prometheus.GaugeOpts{Name: "pilot_xds", Help: "Connected xDS clients."}),
		sendTimeouts: prometheus.NewCounter(prometheus.CounterOpts{Name: "pilot_xds_write_timeout",
			Help: "Streams ended because their client did not read a response within the send timeout."}),
		refusedStreams: prometheus.NewCounter(prometheus.CounterOpts{Name: "pilotfish_xds_streams_turned_away_total",
			Help: "Streams refused because of the limits on new or concurrent streams."}),
		queueTime: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "pilot_proxy_queue_time",
			Help: "Seconds that a change waited until the server processed it for a client.", Buckets: seconds}),
		convergence: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "pilot_proxy_convergence_time",
			Help: "Seconds from a change until all its effects were sent to a client.", Buckets: seconds}),
		pushes:         counters("pilot_xds_pushes", "Responses sent, by type."),
		rejects:        counters("pilot_total_xds_rejects", "Responses that clients rejected, by type."),
		expiredNonces:  counters("pilot_xds_expired_nonce", "ACKs and NACKs of unknown responses, by type."),
		namesRefused:   counters("pilotfish_xds_names_refused_total", "Requested resource names that the server ignored because they are too long or too many, by type."),
		generateErrors: counters("pilot_total_xds_internal_errors", "Resources that could not be generated, by type."),
		generateTime: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "pilot_xds_push_time",
			Help: "Seconds to generate the resources of one type for one client.", Buckets: seconds}, []string{"type"}),
		size: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "pilot_xds_config_size_bytes",
			Help: "Bytes of resources in a response, by type.", Buckets: []float64{1, 1e3, 1e4, 1e5, 1e6, 4e6, 1e7}}, []string{"type"}),
	}
	if registerer == nil {
		return m, nil
	}
	subscriptions := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "pilotfish_xds_subscriptions_bytes",
		Help: "Bytes of memory for subscriptions that count against the clients' limits."}, held)
	for _, c := range []prometheus.Collector{subscriptions, m.clients, m.sendTimeouts, m.refusedStreams, m.queueTime, m.convergence, m.pushes, m.rejects,
		m.expiredNonces, m.generateErrors, m.namesRefused, m.generateTime, m.size} {
		if err := registerer.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func counters(name, help string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{"type"})
}

var shortTypes = map[string]string{
	ClusterType: "cds", EndpointType: "eds", ListenerType: "lds", RouteType: "rds", VirtualHostType: "vhds",
	SecretType: "sds", ExtensionType: "ecds", NameTableType: "nds", ProxyConfigType: "pcds", RevocationType: "revocations",
}

// shortType returns the name of a type for metrics and logs. It returns "other" for all types that the server does not
// serve, because clients can request any type, and each name is a time series.
func shortType(typeURL string) string {
	if short, ok := shortTypes[typeURL]; ok {
		return short
	}
	if isDocumentType(typeURL) {
		return "documents"
	}
	return "other"
}

// ShortType returns the usual abbreviation of the type (cds, eds, lds, rds, nds). If there is none, it returns the last
// word of typeURL.
func ShortType(typeURL string) string {
	if short, ok := shortTypes[typeURL]; ok {
		return short
	}
	return typeURL[strings.LastIndexAny(typeURL, "./")+1:]
}
