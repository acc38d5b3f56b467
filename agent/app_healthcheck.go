package agent

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pilotfish-mesh/pilotfish/agent/config"
	"github.com/pilotfish-mesh/pilotfish/internal/probe"
)

// healthCheck probes the application and reports changes of its health to the control plane, which sends no traffic to
// an unhealthy workload.
type healthCheck struct {
	config config.HealthCheck
	probe  func(context.Context, probe.Spec) error
	// proxy reports whether the proxy is ready to receive traffic.
	proxy func() (ok bool, reason string)
	// draining is closed when the proxy starts to drain.
	draining <-chan struct{}
	report   func(healthy bool, message string)
	logger   *slog.Logger
}

// newHealthCheck returns the health check, or nil if none is configured.
func (a *Agent) newHealthCheck(report func(bool, string)) *healthCheck {
	if a.Config.HealthCheck == nil {
		return nil
	}
	c := a.Config.AppProbes
	h := &healthCheck{
		config: *a.Config.HealthCheck,
		probe:  probe.New(probe.Config{HTTP2: c.HTTP2}).Check, // this prober pools no connections, so it needs no Close
		proxy:  a.checkNotDraining,
		logger: a.Logger.With("part", "health check"),

		draining: a.requests.drain.done(),
	}
	h.report = a.withHealthMetric(report)
	if a.envoy != nil {
		h.proxy = a.envoy.Health
	}
	return h
}

// withHealthMetric returns a report function that also sets the metric pilotfish_application_healthy.
func (a *Agent) withHealthMetric(report func(bool, string)) func(bool, string) {
	gauge := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "pilotfish_application_healthy",
		Help: "Health of the application in the last report to the control plane: 1 healthy; 0 unhealthy or not reported yet. Only with ProxyConfig's readinessProbe.",
	})
	a.metrics.MustRegister(gauge)
	return func(healthy bool, message string) {
		value := 0.0
		if healthy {
			value = 1
		}
		gauge.Set(value)
		report(healthy, message)
	}
}

func (h *healthCheck) component() component {
	return component{name: "health check", run: h.run, restart: true}
}

func (h *healthCheck) run(ctx context.Context) error {
	select {
	case <-time.After(h.config.InitialDelay):
	case <-h.draining:
	case <-ctx.Done():
		return nil
	}
	due := time.NewTicker(h.config.Period)
	defer due.Stop()
	v := verdict{success: h.config.SuccessThreshold, failure: h.config.FailureThreshold}
	for {
		select {
		case <-h.draining:
			h.reportDraining(&v)
			<-ctx.Done() // a component that returns before ctx ends counts as failed
			return nil
		default:
		}
		h.probeOnce(ctx, &v)
		select {
		case <-due.C:
		case <-h.draining:
		case <-ctx.Done():
			return nil
		}
	}
}

// reportDraining reports the workload as unhealthy immediately, without waiting for the next probe. It also reports if
// no verdict exists yet: the control plane may have one from before a restart.
func (h *healthCheck) reportDraining(v *verdict) {
	if !v.known || v.healthy {
		h.logger.Info("the proxy is draining; reporting unhealthy to the control plane")
		h.report(false, "the proxy is draining")
	}
}

// probeOnce probes the application and reports a changed verdict. It ignores the results until the proxy has been ready
// once. Until the first report, a control plane treats the workload as unhealthy anyway.
func (h *healthCheck) probeOnce(ctx context.Context, v *verdict) {
	err := h.proxyReady()
	if err != nil && !v.proxyWasReady {
		h.logger.Debug("the application is not probed yet", "reason", err)
		return
	}
	v.proxyWasReady = true
	if err == nil {
		err = h.probe(ctx, h.config.Probe)
	}
	if ctx.Err() != nil || !v.record(err == nil) {
		return
	}
	if err == nil {
		h.logger.Info("the application is healthy", "probe", h.config.Probe)
		h.report(true, "")
		return
	}
	h.logger.Warn("the application is unhealthy; reporting this to the control plane", "reason", err)
	h.report(false, err.Error())
}

func (h *healthCheck) proxyReady() error {
	if ok, reason := h.proxy(); !ok {
		return fmt.Errorf("the proxy is not ready: %s", reason)
	}
	return nil
}

// verdict is the application's health according to the probes so far.
type verdict struct {
	success, failure int // consecutive results needed

	proxyWasReady  bool
	known, healthy bool
	last           bool // last result
	consecutive    int
}

// record adds one probe result and reports whether the verdict changed.
func (v *verdict) record(well bool) (changed bool) {
	if well != v.last {
		v.last, v.consecutive = well, 0
	}
	v.consecutive++
	needed := v.failure
	if well {
		needed = v.success
	}
	if v.consecutive < needed || v.known && v.healthy == well {
		return false
	}
	v.known, v.healthy = true, well
	return true
}
