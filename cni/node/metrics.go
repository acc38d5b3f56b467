package node

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/pilotfish-mesh/pilotfish/cni/agentapi"
	"github.com/pilotfish-mesh/pilotfish/internal/health"
)

// Metrics are the node agent's metrics. A metric that also exists in Istio's node agent has the same name as there.
type Metrics struct {
	registry *prometheus.Registry

	Installs  *prometheus.CounterVec // by result
	Conflicts *prometheus.CounterVec // by file
	Repairs   *prometheus.CounterVec // by type and result
	Checks    *prometheus.CounterVec // checks of live pods, by result
	Events    *prometheus.CounterVec // events about pods, by result
	Drifted   prometheus.Gauge
	Watched   prometheus.Gauge

	commands *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	queries  *prometheus.CounterVec
}

// latencies are the histogram buckets in seconds. A command usually needs less than 10 ms, but may wait for the API
// server.
var latencies = []float64{.0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}

// NewMetrics returns the metrics. With a cache, they include the number of cached pods and the watch's lag. With ready,
// they include the agent's readiness. Both arguments may be nil.
func NewMetrics(cache *Cache, ready health.Check) *Metrics {
	m := &Metrics{
		registry:  prometheus.NewRegistry(),
		Installs:  counters("istio_cni_installs_total", "Installations of the CNI plugin, by result.", "result"),
		Conflicts: counters("pilotfish_cni_configuration_rewritten_total", "Changes and removals of the CNI plugin's installed files by other programs, by file.", "file"),
		Repairs:   counters("istio_cni_repair_pods_repaired_total", "Repairs of pods without redirection, by type of action (repair, delete, label) and result.", "type", "result"),
		Checks:    counters("pilotfish_cni_checks_total", "Checks of the redirection rules of running pods, by result.", "result"),
		Events:    counters("pilotfish_cni_pod_events_total", "Kubernetes events that the node agent created or tried to create about pods, by result.", "result"),
		Drifted:   gauge("pilotfish_cni_drifted_pods", "Running pods whose redirection rules are missing or incorrect."),
		Watched:   gauge("pilotfish_cni_captured_pods", "Running pods that must be redirected and whose rules are checked."),
		commands:  counters("pilotfish_cni_plugin_commands_total", "CNI commands that the plugin ran, by command and result.", "command", "result"),
		queries:   counters("pilotfish_cni_pod_requests_total", "Requests of the CNI plugin for a pod, by result.", "result"),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "pilotfish_cni_plugin_command_duration_seconds",
			Help:    "Duration of the CNI commands that the plugin ran, by command and result.",
			Buckets: latencies,
		}, []string{"command", "result"}),
	}
	m.registry.MustRegister(m.Installs, m.Conflicts, m.Repairs, m.Checks, m.Events, m.Drifted, m.Watched, m.commands, m.queries, m.seconds,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	if ready != nil {
		m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "istio_cni_install_ready", Help: "1 if the CNI plugin is installed and the node agent serves it, else 0.",
		}, func() float64 {
			if ready().OK {
				return 1
			}
			return 0
		}))
	}
	if cache != nil {
		m.registry.MustRegister(
			prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "pilotfish_cni_pods_known", Help: "Pods of this node in the agent's cache."},
				func() float64 { return float64(len(cache.Pods())) }),
			prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "pilotfish_cni_pods_lag_seconds", Help: "Duration of the current interruption of the pod watch; 0 if there is none."},
				func() float64 { return cache.Lag().Seconds() }))
	}
	return m
}

func gauge(name, help string) prometheus.Gauge {
	return prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
}

func counters(name, help string, labels ...string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
}

// Gatherer returns the metrics registry.
func (m *Metrics) Gatherer() prometheus.Gatherer { return m.registry }

// known returns word if it is one of words, and otherwise "other". It limits the number of time series, because clients
// send the label values.
func known(word string, words ...string) string {
	for _, w := range words {
		if w == word {
			return word
		}
	}
	return "other"
}

// count counts one command of the plugin.
func (m *Metrics) count(r *agentapi.Result) {
	command := known(r.Command, "ADD", "CHECK", "DEL", "GC", "STATUS")
	outcome := known(string(r.Outcome), string(agentapi.Captured), string(agentapi.Skipped), string(agentapi.Failed), string(agentapi.Removed))
	m.commands.WithLabelValues(command, outcome).Inc()
	if r.Seconds >= 0 && r.Seconds < time.Hour.Seconds() {
		m.seconds.WithLabelValues(command, outcome).Observe(r.Seconds)
	}
}

// MetricNames returns the names of all metrics except those of the Go runtime and the process.
func MetricNames() []string {
	return []string{
		"istio_cni_install_ready", "istio_cni_installs_total", "istio_cni_repair_pods_repaired_total",
		"pilotfish_cni_captured_pods", "pilotfish_cni_checks_total", "pilotfish_cni_configuration_rewritten_total",
		"pilotfish_cni_drifted_pods", "pilotfish_cni_plugin_command_duration_seconds", "pilotfish_cni_plugin_commands_total",
		"pilotfish_cni_pod_events_total", "pilotfish_cni_pod_requests_total", "pilotfish_cni_pods_known", "pilotfish_cni_pods_lag_seconds",
	}
}
