package kube

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// sourceMetrics describes the metrics of a Source.
var sourceMetrics = struct{ objects, bytes, lag, lastEvent, lists, failures *prometheus.Desc }{
	objects:   describeMetric("objects", "Objects of the cluster that the control plane has in memory, by kind."),
	bytes:     describeMetric("bytes", "Approximate memory of these objects in bytes, by kind."),
	lag:       describeMetric("lag_seconds", "Seconds since the API server became unavailable for the kind; 0 while it is available."),
	lastEvent: describeMetric("last_event_timestamp_seconds", "Unix time of the last event or list of the kind; 0 before the first one."),
	lists:     describeMetric("lists_total", "Complete lists that the control plane received, by kind; each one after the first is a relist."),
	failures:  describeMetric("errors_total", "Failed requests to the API server, by kind and operation (list or watch).", "operation"),
}

func describeMetric(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("pilotfish_kube_"+name, help, append([]string{"kind"}, labels...), nil)
}

// Describe implements prometheus.Collector.
func (s *Source) Describe(out chan<- *prometheus.Desc) {
	m := sourceMetrics
	for _, d := range []*prometheus.Desc{m.objects, m.bytes, m.lag, m.lastEvent, m.lists, m.failures} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (s *Source) Collect(out chan<- prometheus.Metric) {
	for _, f := range s.listFeeds() {
		gauge := func(d *prometheus.Desc, value float64) {
			out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, f.kind)
		}
		objects, bytes := f.size()
		status, _ := f.readStatus()
		gauge(sourceMetrics.objects, float64(objects))
		gauge(sourceMetrics.bytes, float64(bytes))
		lag, last := 0.0, 0.0
		if !status.since.IsZero() {
			lag = time.Since(status.since).Seconds()
		}
		if !status.lastEvent.IsZero() {
			last = float64(status.lastEvent.UnixMilli()) / 1000
		}
		gauge(sourceMetrics.lag, lag)
		gauge(sourceMetrics.lastEvent, last)
		out <- prometheus.MustNewConstMetric(sourceMetrics.lists, prometheus.CounterValue, float64(status.lists), f.kind)
		for _, operation := range []string{"list", "watch"} {
			out <- prometheus.MustNewConstMetric(sourceMetrics.failures, prometheus.CounterValue, float64(status.failures[operation]), f.kind, operation)
		}
	}
}
