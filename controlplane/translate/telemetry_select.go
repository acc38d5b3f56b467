package translate

import (
	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
)

// viewCache caches values that a proxyView computes only once, mostly telemetry settings.
type viewCache struct {
	telemetry      snapshot.Telemetry
	telemetryKnown bool
	logs           map[chain][]*accesslogv3.AccessLog
	metrics        map[snapshot.Direction]directionMetrics

	plugins      []snapshot.Plugin
	pluginsKnown bool

	byName, byNameKnown bool
}

// chain describes a filter chain for the selection of its access loggers: its traffic, and whether it processes HTTP
// requests.
type chain struct {
	traffic
	requests bool
}

// directionMetrics contains the changes to metrics in one direction.
type directionMetrics struct {
	changes map[snapshot.Metric]snapshot.MetricChange
	enabled bool
}

func (v proxyView) telemetry() snapshot.Telemetry {
	if !v.cache.telemetryKnown {
		v.cache.telemetry, v.cache.telemetryKnown = v.s.Telemetry(v.p.Namespace, v.p.Labels), true
	}
	return v.cache.telemetry
}

func (t traffic) direction() snapshot.Direction {
	if t.side == inboundSide {
		return snapshot.AsServer
	}
	return snapshot.AsClient
}

// requestLogs returns the access loggers of HTTP requests, including those that record metrics.
func (v proxyView) requestLogs(t traffic) []*accesslogv3.AccessLog { return v.logsOf(chain{t, true}) }

// connectionLogs returns the access loggers of TCP connections, including those that record metrics.
func (v proxyView) connectionLogs(t traffic) []*accesslogv3.AccessLog {
	return v.logsOf(chain{t, false})
}

func (v proxyView) logsOf(c chain) []*accesslogv3.AccessLog {
	if c.side != inboundSide {
		c.port = 0 // outbound logs are the same for all ports
	}
	if logs, ok := v.cache.logs[c]; ok {
		return logs
	}
	logs := append(v.metricLogs(c), v.accessLogs(c)...)
	if v.cache.logs == nil {
		v.cache.logs = map[chain][]*accesslogv3.AccessLog{}
	}
	v.cache.logs[c] = logs
	return logs
}

// metrics returns the metric settings of one direction. Metrics are disabled if the proxy's Envoy does not support
// them.
func (v proxyView) metrics(d snapshot.Direction) directionMetrics {
	if m, ok := v.cache.metrics[d]; ok {
		return m
	}
	m := directionMetrics{}
	if v.p.isEnvoyAtLeast(1, 38) {
		m.changes, m.enabled = v.telemetry().Metrics(d)
	}
	if v.cache.metrics == nil {
		v.cache.metrics = map[snapshot.Direction]directionMetrics{}
	}
	v.cache.metrics[d] = m
	return m
}
