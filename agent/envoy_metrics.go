package agent

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pilotfish-mesh/pilotfish/envoy"
)

// killedByUs is the reason of an end that took SIGKILL; the others are envoy's.
const killedByUs = "killed"

// endReason is the label by which an end is counted.
func endReason(x envoy.Exit) string {
	if x.Forced {
		return killedByUs
	}
	return string(x.Reason)
}

// envoyMetrics tell of Envoy's life.
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
			Name: "istio_agent_envoy_ends_total", Help: "Ends of Envoy processes, by reason.",
		}, []string{"reason"}),
		restarts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "istio_agent_envoy_restarts_total", Help: "Times that Envoy was started again, by the reason of the end before.",
		}, []string{"reason"}),
	}
	// A series that appears with its first event hides that event from an alert on the increase.
	for _, reason := range []string{string(envoy.Exited), string(envoy.Signaled), string(envoy.OOMKilled)} {
		m.ends.WithLabelValues(reason)
		m.restarts.WithLabelValues(reason)
	}
	m.ends.WithLabelValues(string(envoy.Stopped))
	m.ends.WithLabelValues(killedByUs)
	for _, s := range []State{Starting, Running, Draining, Stopping, GivenUp} {
		m.processes.WithLabelValues(string(s))
	}
	if err := errors.Join(r.Register(m.processes), r.Register(m.ends), r.Register(m.restarts)); err != nil {
		return nil, fmt.Errorf("registering Envoy's metrics: %w", err)
	}
	return m, nil
}

// moved counts a process over from one state to the next.
func (m *envoyMetrics) moved(from, to State) {
	if from != "" {
		m.processes.WithLabelValues(string(from)).Dec()
	}
	if to != Ended {
		m.processes.WithLabelValues(string(to)).Inc()
	}
}

// progress is how far a drain has got, for metrics and status.
type progress struct {
	mu       sync.Mutex
	load     load
	deadline time.Time // zero: nothing is being waited for
}

func newProgress(r prometheus.Registerer, draining func() bool) (*progress, error) {
	p := &progress{}
	gauge := func(name, help string, value func() float64) error {
		return r.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, value))
	}
	err := errors.Join(
		gauge("istio_agent_draining", "1 once the proxy was told to drain or to end.", func() float64 {
			if draining() {
				return 1
			}
			return 0
		}),
		gauge("istio_agent_drain_connections", "Connections that the end of the proxy waits for.", func() float64 { return float64(p.seen().load.connections) }),
		gauge("istio_agent_drain_requests", "Requests that the end of the proxy waits for.", func() float64 { return float64(p.seen().load.requests) }),
		gauge("istio_agent_drain_seconds_left", "Time until the proxy ends whatever it still serves; 0 before its end began.", func() float64 {
			return p.seen().left().Seconds()
		}),
	)
	if err != nil {
		return nil, fmt.Errorf("registering the drain's metrics: %w", err)
	}
	return p, nil
}

func (p *progress) show(l load, deadline time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.load, p.deadline = l, deadline
}

// drainSight is a progress at one moment.
type drainSight struct {
	load     load
	deadline time.Time
}

func (p *progress) seen() drainSight {
	p.mu.Lock()
	defer p.mu.Unlock()
	return drainSight{p.load, p.deadline}
}

func (d drainSight) left() time.Duration {
	if d.deadline.IsZero() {
		return 0
	}
	return max(0, time.Until(d.deadline))
}
