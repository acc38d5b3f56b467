package translate

import (
	"maps"
	"slices"
	"strings"

	xdsmatcherv3 "github.com/cncf/xds/go/xds/type/matcher/v3"
	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	datav3 "github.com/envoyproxy/go-control-plane/envoy/data/accesslog/v3"
	statsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/stats/v3"
	metricscopev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
	telemetryv1 "istio.io/api/telemetry/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// The mesh's standard metrics are made by Envoy's access logger for statistics. Their names are those after "istio_".
const (
	requestsTotal    = "requests_total"
	requestDuration  = "request_duration_milliseconds"
	requestBytes     = "request_bytes"
	responseBytes    = "response_bytes"
	tcpOpened        = "tcp_connections_opened_total"
	tcpClosed        = "tcp_connections_closed_total"
	tcpSent          = "tcp_sent_bytes_total"
	tcpReceived      = "tcp_received_bytes_total"
	metricsNamespace = "istio"
)

// mostSeries bounds the series of a workload's callers, whose names are their own claim.
const mostSeries = 4000

// measure is one standard metric.
type measure struct {
	metric telemetryv1.MetricSelector_IstioMetric
	name   string
	// value is what is added; empty for one.
	value string
	// unit makes it a histogram.
	unit statsv3.Config_Histogram_Unit
}

var (
	requestMeasures = []measure{
		{metric: telemetryv1.MetricSelector_REQUEST_COUNT, name: requestsTotal},
		{telemetryv1.MetricSelector_REQUEST_DURATION, requestDuration, "%DURATION%", statsv3.Config_Histogram_Milliseconds},
		{telemetryv1.MetricSelector_REQUEST_SIZE, requestBytes, "%BYTES_RECEIVED%", statsv3.Config_Histogram_Bytes},
		{telemetryv1.MetricSelector_RESPONSE_SIZE, responseBytes, "%BYTES_SENT%", statsv3.Config_Histogram_Bytes},
	}
	openedMeasures = []measure{{metric: telemetryv1.MetricSelector_TCP_OPENED_CONNECTIONS, name: tcpOpened}}
	closedMeasures = []measure{
		{metric: telemetryv1.MetricSelector_TCP_CLOSED_CONNECTIONS, name: tcpClosed},
		{metric: telemetryv1.MetricSelector_TCP_SENT_BYTES, name: tcpSent, value: "%BYTES_SENT%"},
		{metric: telemetryv1.MetricSelector_TCP_RECEIVED_BYTES, name: tcpReceived, value: "%BYTES_RECEIVED%"},
	}
)

// metricLogs measure a chain's traffic.
func (v view) metricLogs(c chain) []*accesslogv3.AccessLog {
	m := v.metrics(c.direction())
	if !m.measured {
		return nil
	}
	if c.requests {
		return v.metricLog(c, m, requestMeasures, nil)
	}
	return append(v.metricLog(c, m, openedMeasures, logTypes(datav3.AccessLogType_TcpUpstreamConnected)),
		v.metricLog(c, m, closedMeasures, logTypes(datav3.AccessLogType_TcpConnectionEnd))...)
}

func (v view) metricLog(c chain, m metricsOf, measures []measure, filter *accesslogv3.AccessLogFilter) []*accesslogv3.AccessLog {
	out := v.metricScope(c)
	all := v.tags(c, measures[0].name == tcpOpened)
	for _, each := range measures {
		change := m.changes[each.metric]
		if change.Disabled {
			continue
		}
		out.add(each, changedTags(all, change.Tags, each.unit != 0))
	}
	if len(out.GetCounters())+len(out.GetHistograms()) == 0 {
		return nil
	}
	log := typedLog("envoy.access_loggers.stats", out.Config)
	log.Filter = filter
	return []*accesslogv3.AccessLog{log}
}

type metricConfig struct{ *statsv3.Config }

// metricScope is where series are kept: bounded where callers have a part in what they are called.
func (v view) metricScope(c chain) metricConfig {
	if !v.p.atLeast(1, 40) {
		//lint:ignore SA1019 older Envoys have nothing else
		return metricConfig{&statsv3.Config{StatPrefix: metricsNamespace}}
	}
	scope := &metricscopev3.Scope{Prefix: metricsNamespace, EnableEviction: true}
	if c.side == inboundSide {
		scope.MaxCounters, scope.MaxHistograms = u32(mostSeries), u32(mostSeries)
	}
	return metricConfig{&statsv3.Config{StatsScope: scope}}
}

func (m metricConfig) add(each measure, tags []*statsv3.Config_Tag) {
	stat := &statsv3.Config_Stat{Name: each.name, Tags: tags}
	switch {
	case each.unit != 0:
		m.Histograms = append(m.Histograms, &statsv3.Config_Histogram{Stat: stat, Unit: each.unit, ValueFormat: each.value})
	case each.value != "":
		m.Counters = append(m.Counters, &statsv3.Config_Counter{Stat: stat, ValueFormat: each.value})
	default:
		m.Counters = append(m.Counters, &statsv3.Config_Counter{Stat: stat, ValueFixed: wrapperspb.UInt64(1)})
	}
}

// tag is one label of a metric.
type tag struct {
	name, format string
	rules        *xdsmatcherv3.Matcher
	// histograms have it too: each label of theirs costs time with every request.
	histograms bool
}

// changedTags are a metric's tags as documents have them.
func changedTags(all []tag, changes map[string]string, histogram bool) []*statsv3.Config_Tag {
	var out []*statsv3.Config_Tag
	for _, t := range all {
		if _, changed := changes[t.name]; changed || histogram && !t.histograms {
			continue
		}
		out = append(out, &statsv3.Config_Tag{Name: t.name, ValueFormat: t.format, Rules: t.rules})
	}
	for _, name := range slices.Sorted(maps.Keys(changes)) {
		if format := tagFormat(changes[name]); format != "" {
			out = append(out, &statsv3.Config_Tag{Name: name, ValueFormat: format})
		}
	}
	return out
}

// plainAttributes are those that have a command of their own, which is cheaper than an expression.
var plainAttributes = map[string]string{
	"request.host": "%REQ(:AUTHORITY)%", "request.method": "%REQ(:METHOD)%", "request.path": "%REQ(:PATH)%",
	"request.useragent": "%REQ(USER-AGENT)%", "request.id": "%REQ(X-REQUEST-ID)%", "request.referer": "%REQ(REFERER)%",
	"request.protocol": "%PROTOCOL%", "response.code": "%RESPONSE_CODE%", "connection.requested_server_name": "%REQUESTED_SERVER_NAME%",
	"response.code_details": "%RESPONSE_CODE_DETAILS%", "destination.port": "%DOWNSTREAM_LOCAL_PORT%",
	"connection.uri_san_peer_certificate": "%DOWNSTREAM_PEER_URI_SAN%", "upstream.uri_san_peer_certificate": "%UPSTREAM_PEER_URI_SAN%",
}

// tagFormat makes the format of a tag of an expression; empty for one that is taken away, or that proxies do not take.
func tagFormat(expression string) string {
	expression = config.TagExpression(expression)
	if expression == "" || config.CheckCEL(expression) != nil {
		return ""
	}
	if format, ok := plainAttributes[expression]; ok {
		return format
	}
	if text, ok := literal(expression); ok {
		return strings.ReplaceAll(text, "%", "%%")
	}
	if name, ok := strings.CutPrefix(expression, "request.headers["); ok {
		if text, ok := literal(strings.TrimSuffix(name, "]")); ok && config.CheckLogFormat("%REQ("+text+")%") == nil {
			return "%REQ(" + text + ")%"
		}
	}
	return celFormat(expression)
}

// literal is the text of an expression that is nothing else.
func literal(expression string) (string, bool) {
	if len(expression) < 3 {
		return "", false
	}
	quote, inner := expression[0], expression[1:len(expression)-1]
	return inner, (quote == '"' || quote == '\'') && expression[len(expression)-1] == quote && !strings.ContainsAny(inner, `"'\`)
}

// celFormat is the command that evaluates an expression. It ends at the first ")%".
func celFormat(expression string) string {
	format := "%CEL(" + strings.NewReplacer("\n", " ", "\r", " ").Replace(expression) + ")%"
	if strings.Count(format, ")%") > 1 || config.CheckLogFormat(format) != nil {
		return ""
	}
	return format
}
