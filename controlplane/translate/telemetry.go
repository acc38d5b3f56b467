package translate

import (
	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
)

// telling is what is told of a proxy's traffic, worked out once for a view.
type telling struct {
	telemetry snapshot.Telemetry
	known     bool
	logs      map[chain][]*accesslogv3.AccessLog
	metrics   map[snapshot.Direction]metricsOf

	plugins      []snapshot.Plugin
	pluginsKnown bool

	byName, byNameKnown bool
}

// chain is what logs of a filter chain depend on: its traffic, and whether that is requests or connections.
type chain struct {
	traffic
	requests bool
}

// metricsOf are the changes to the metrics of one direction.
type metricsOf struct {
	changes  map[snapshot.Metric]snapshot.MetricChange
	measured bool
}

func (v view) telemetry() snapshot.Telemetry {
	if !v.told.known {
		v.told.telemetry, v.told.known = v.s.Telemetry(v.p.Namespace, v.p.Labels), true
	}
	return v.told.telemetry
}

func (t traffic) direction() snapshot.Direction {
	if t.side == inboundSide {
		return snapshot.AsServer
	}
	return snapshot.AsClient
}

// requestLogs are the access logs of requests, metrics among them.
func (v view) requestLogs(t traffic) []*accesslogv3.AccessLog { return v.logsOf(chain{t, true}) }

// connectionLogs are those of connections.
func (v view) connectionLogs(t traffic) []*accesslogv3.AccessLog { return v.logsOf(chain{t, false}) }

func (v view) logsOf(c chain) []*accesslogv3.AccessLog {
	if c.side != inboundSide {
		c.port = 0 // what is told of calls names their destination by itself
	}
	if logs, ok := v.told.logs[c]; ok {
		return logs
	}
	logs := append(v.metricLogs(c), v.accessLogs(c)...)
	if v.told.logs == nil {
		v.told.logs = map[chain][]*accesslogv3.AccessLog{}
	}
	v.told.logs[c] = logs
	return logs
}

// metrics are what is measured of one direction; nothing for an Envoy that cannot.
func (v view) metrics(d snapshot.Direction) metricsOf {
	if m, ok := v.told.metrics[d]; ok {
		return m
	}
	m := metricsOf{}
	if v.p.atLeast(1, 38) {
		m.changes, m.measured = v.telemetry().Metrics(d)
	}
	if v.told.metrics == nil {
		v.told.metrics = map[snapshot.Direction]metricsOf{}
	}
	v.told.metrics[d] = m
	return m
}
