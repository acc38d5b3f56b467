package agent

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pilotfish-mesh/pilotfish/envoy"
)

// reasonKilled is the reason of an exit after SIGKILL from the agent. Package envoy defines the other reasons.
const reasonKilled = "killed"

// endReason returns the value of the label "reason" for an exit.
func endReason(x envoy.Exit) string {
	if x.Forced {
		return reasonKilled
	}
	return string(x.Reason)
}

// envoyMetrics are the metrics of Envoy's life cycle.
type envoyMetrics struct {
	processes *prometheus.GaugeVec
	ends      *prometheus.CounterVec
	restarts  *prometheus.CounterVec
}

func newEnvoyMetrics(r prometheus.Registerer) (*envoyMetrics, error) {
	m := &envoyMetrics{
		processes: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "istio_agent_envoy_processes", Help: "Envoy processes of this agent, by state.",
		}, []string{"state"}),
		ends: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "istio_agent_envoy_ends_total", Help: "Envoy processes that have ended, by reason.",
		}, []string{"reason"}),
		restarts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "istio_agent_envoy_restarts_total", Help: "Restarts of Envoy, by the reason of the preceding exit.",
		}, []string{"reason"}),
	}
	// Create all series now. Otherwise PromQL's increase() would miss the first event of a reason, because that event
	// would create the series.
	for _, reason := range []string{string(envoy.Exited), string(envoy.Signaled), string(envoy.OOMKilled)} {
		m.ends.WithLabelValues(reason)
		m.restarts.WithLabelValues(reason)
	}
	m.ends.WithLabelValues(string(envoy.Stopped))
	m.ends.WithLabelValues(reasonKilled)
	for _, s := range []envoyState{stateStarting, stateRunning, stateDraining, stateStopping, stateGivenUp} {
		m.processes.WithLabelValues(string(s))
	}
	if err := errors.Join(r.Register(m.processes), r.Register(m.ends), r.Register(m.restarts)); err != nil {
		return nil, fmt.Errorf("registering Envoy's metrics: %w", err)
	}
	return m, nil
}

// moveState counts one Envoy less in the state previous, and one more in the state next. "" and stateEnded have no
// gauge.
func (m *envoyMetrics) moveState(previous, next envoyState) {
	if previous != "" {
		m.processes.WithLabelValues(string(previous)).Dec()
	}
	if next != stateEnded {
		m.processes.WithLabelValues(string(next)).Inc()
	}
}

// drainTracker holds the progress of a drain, for metrics and status.
type drainTracker struct {
	mu       sync.Mutex
	traffic  activeTraffic
	deadline time.Time // zero: no drain
}

func newDrainTracker(r prometheus.Registerer, draining func() bool) (*drainTracker, error) {
	p := &drainTracker{}
	gauge := func(name, help string, value func() float64) error {
		return r.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, value))
	}
	err := errors.Join(
		gauge("istio_agent_draining", "1 after a request to drain or to stop the proxy, else 0.", func() float64 {
			if draining() {
				return 1
			}
			return 0
		}),
		gauge("istio_agent_drain_connections", "Connections that the shutdown of the proxy waits for.", func() float64 { return float64(p.snapshot().traffic.connections) }),
		gauge("istio_agent_drain_requests", "Requests that the shutdown of the proxy waits for.", func() float64 { return float64(p.snapshot().traffic.requests) }),
		gauge("istio_agent_drain_seconds_left", "Time until the shutdown deadline of the proxy; 0 before the shutdown.", func() float64 {
			return p.snapshot().timeLeft().Seconds()
		}),
	)
	if err != nil {
		return nil, fmt.Errorf("registering the drain's metrics: %w", err)
	}
	return p, nil
}

func (p *drainTracker) update(l activeTraffic, deadline time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.traffic, p.deadline = l, deadline
}

// drainSnapshot is the progress of a drain at one moment.
type drainSnapshot struct {
	traffic  activeTraffic
	deadline time.Time
}

func (p *drainTracker) snapshot() drainSnapshot {
	p.mu.Lock()
	defer p.mu.Unlock()
	return drainSnapshot{p.traffic, p.deadline}
}

func (d drainSnapshot) timeLeft() time.Duration {
	if d.deadline.IsZero() {
		return 0
	}
	return max(0, time.Until(d.deadline))
}
