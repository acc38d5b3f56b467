package sts

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	requests  *prometheus.CounterVec
	exchanges *prometheus.CounterVec
	seconds   prometheus.Counter
}

func newMetrics() *metrics {
	return &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pilotfish_sts_requests_total",
			Help: "Token requests, by result: granted, or the code of the error response.",
		}, []string{"result"}),
		exchanges: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pilotfish_sts_exchanges_total",
			Help: "Token exchanges with the exchange server, by result: done, refused or failed.",
		}, []string{"result"}),
		seconds: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "pilotfish_sts_exchange_seconds_total",
			Help: "Seconds spent waiting for the exchange server.",
		}),
	}
}

func (m *metrics) register(registerer prometheus.Registerer, s *Server) error {
	if registerer == nil {
		return nil
	}
	held := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "pilotfish_sts_cached_tokens",
		Help: "Cached tokens that have not expired.",
	}, func() float64 { return float64(len(s.cache.leases())) })
	for _, c := range []prometheus.Collector{m.requests, m.exchanges, m.seconds, held} {
		if err := registerer.Register(c); err != nil {
			return err
		}
	}
	return nil
}

func (m *metrics) answered(result string) { m.requests.WithLabelValues(result).Inc() }

func (m *metrics) exchanged(err error, took time.Duration) {
	var refusal *Error
	result := "done"
	switch {
	case errors.As(err, &refusal):
		result = "refused"
	case err != nil:
		result = "failed"
	}
	m.exchanges.WithLabelValues(result).Inc()
	m.seconds.Add(took.Seconds())
}
