package agent

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pilotfish-mesh/pilotfish/internal/probe"
)

// HealthCheckConfig says how the agent watches an application that no kubelet watches. It is ProxyConfig's readinessProbe.
type HealthCheckConfig struct {
	Probe        probe.Spec
	InitialDelay time.Duration
	Period       time.Duration
	// So many probes in a row have to agree before the application counts as well, or as unwell.
	SuccessThreshold, FailureThreshold int
}

// healthCheck watches the application and reports changes of its health to the control plane, which sends no traffic to a
// workload that is unwell.
type healthCheck struct {
	config HealthCheckConfig
	probe  func(context.Context, probe.Spec) error
	// proxy says whether traffic can come in at all.
	proxy func() (ok bool, reason string)
	// draining is closed when the workload is to leave.
	draining <-chan struct{}
	report   func(healthy bool, message string)
	logger   *slog.Logger
}

// newHealthCheck is nil when nothing is to be watched.
func (a *Agent) newHealthCheck(report func(bool, string)) *healthCheck {
	if a.Config.HealthCheck == nil {
		return nil
	}
	c := a.Config.AppProbes
	h := &healthCheck{
		config: *a.Config.HealthCheck,
		probe:  probe.New(probe.Config{HTTP2: c.HTTP2}).Check, // which keeps no connections, so that there is nothing to close
		proxy:  a.undrained,
		logger: a.Logger.With("part", "health check"),

		draining: a.orders.drain.done(),
	}
	h.report = a.measuredHealth(report)
	if a.envoy != nil {
		h.proxy = a.envoy.Health
	}
	return h
}

// measuredHealth makes what is reported a metric, too.
func (a *Agent) measuredHealth(report func(bool, string)) func(bool, string) {
	gauge := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "pilotfish_application_healthy",
		Help: "What the control plane was told of the application's health: 1 is well, 0 unwell, or nothing yet. Only where ProxyConfig has a readinessProbe.",
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

func (h *healthCheck) part() part { return part{name: "health check", run: h.run, restart: true} }

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
			h.leave(&v)
			<-ctx.Done() // a part that ended before would count as one that failed
			return nil
		default:
		}
		h.once(ctx, &v)
		select {
		case <-due.C:
		case <-h.draining:
		case <-ctx.Done():
			return nil
		}
	}
}

// leave has the control plane send no more here, before the next probe would find out; also where there is no verdict
// yet, since the control plane may have one from before a restart.
func (h *healthCheck) leave(v *verdict) {
	if !v.known || v.healthy {
		h.logger.Info("the proxy drains; the control plane is told to send nothing here")
		h.report(false, "the proxy is draining")
	}
}

// once probes, and reports if that changes the verdict. What happens before the proxy was ready for the first time says
// nothing of the application, and a control plane takes a workload that it has not heard of for unwell anyway.
func (h *healthCheck) once(ctx context.Context, v *verdict) {
	err := h.proxyReady()
	if err != nil && !v.proxyWasReady {
		h.logger.Debug("the application is not probed yet", "why", err)
		return
	}
	v.proxyWasReady = true
	if err == nil {
		err = h.probe(ctx, h.config.Probe)
	}
	if ctx.Err() != nil || !v.add(err == nil) {
		return
	}
	if err == nil {
		h.logger.Info("the application is well", "probe", h.config.Probe)
		h.report(true, "")
		return
	}
	h.logger.Warn("the application is unwell; the control plane is told to send nothing here", "why", err)
	h.report(false, err.Error())
}

func (h *healthCheck) proxyReady() error {
	if ok, reason := h.proxy(); !ok {
		return fmt.Errorf("the proxy is not ready: %s", reason)
	}
	return nil
}

// verdict is what the probes so far say.
type verdict struct {
	success, failure int // how many in a row decide

	proxyWasReady   bool
	known, healthy  bool
	last            bool // result
	sameInARowSoFar int
}

// add counts one probe, and says whether it changed the verdict.
func (v *verdict) add(well bool) (changed bool) {
	if well != v.last {
		v.last, v.sameInARowSoFar = well, 0
	}
	v.sameInARowSoFar++
	needed := v.failure
	if well {
		needed = v.success
	}
	if v.sameInARowSoFar < needed || v.known && v.healthy == well {
		return false
	}
	v.known, v.healthy = true, well
	return true
}
