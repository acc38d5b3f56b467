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

// Names of the mesh's standard metrics, without the prefix "istio_". Envoy's stats access logger records these metrics.
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

// maxSeries limits the number of series for the clients of a workload. Clients choose the values of some labels, and
// without a limit they could use up Envoy's memory.
const maxSeries = 4000

// standardMetric is one standard metric.
type standardMetric struct {
	metric telemetryv1.MetricSelector_IstioMetric
	name   string
	// value is the format of the value that is added to the metric. If it is empty, one is added.
	value string
	// unit is the unit of a histogram; zero for counters.
	unit statsv3.Config_Histogram_Unit
}

var (
	requestMetrics = []standardMetric{
		{metric: telemetryv1.MetricSelector_REQUEST_COUNT, name: requestsTotal},
		{telemetryv1.MetricSelector_REQUEST_DURATION, requestDuration, "%DURATION%", statsv3.Config_Histogram_Milliseconds},
		{telemetryv1.MetricSelector_REQUEST_SIZE, requestBytes, "%BYTES_RECEIVED%", statsv3.Config_Histogram_Bytes},
		{telemetryv1.MetricSelector_RESPONSE_SIZE, responseBytes, "%BYTES_SENT%", statsv3.Config_Histogram_Bytes},
	}
	tcpOpenedMetrics = []standardMetric{{metric: telemetryv1.MetricSelector_TCP_OPENED_CONNECTIONS, name: tcpOpened}}
	tcpClosedMetrics = []standardMetric{
		{metric: telemetryv1.MetricSelector_TCP_CLOSED_CONNECTIONS, name: tcpClosed},
		{metric: telemetryv1.MetricSelector_TCP_SENT_BYTES, name: tcpSent, value: "%BYTES_SENT%"},
		{metric: telemetryv1.MetricSelector_TCP_RECEIVED_BYTES, name: tcpReceived, value: "%BYTES_RECEIVED%"},
	}
)

// metricLogs returns the access loggers that record the metrics of a chain's traffic.
func (v proxyView) metricLogs(c chain) []*accesslogv3.AccessLog {
	m := v.metrics(c.direction())
	if !m.enabled {
		return nil
	}
	if c.requests {
		return v.metricLog(c, m, requestMetrics, nil)
	}
	return append(v.metricLog(c, m, tcpOpenedMetrics, logTypes(datav3.AccessLogType_TcpUpstreamConnected)),
		v.metricLog(c, m, tcpClosedMetrics, logTypes(datav3.AccessLogType_TcpConnectionEnd))...)
}

func (v proxyView) metricLog(c chain, m directionMetrics, measures []standardMetric, filter *accesslogv3.AccessLogFilter) []*accesslogv3.AccessLog {
	out := v.metricScope(c)
	all, packs := v.tags(c, measures[0].name == tcpOpened), v.packsLabels(c)
	for _, each := range measures {
		change := m.changes[each.metric]
		if change.Disabled {
			continue
		}
		out.add(each, changedTags(all, change.Tags, each.unit != 0, packs))
	}
	if len(out.GetCounters())+len(out.GetHistograms()) == 0 {
		return nil
	}
	log := typedLog("envoy.access_loggers.stats", out.Config)
	log.Filter = filter
	return []*accesslogv3.AccessLog{log}
}

type metricConfig struct{ *statsv3.Config }

// metricScope returns the stats scope of a chain. If clients can choose label values, the scope limits the number of
// series.
func (v proxyView) metricScope(c chain) metricConfig {
	if !v.p.isEnvoyAtLeast(1, 40) {
		//lint:ignore SA1019 older Envoy versions support only this field
		return metricConfig{&statsv3.Config{StatPrefix: metricsNamespace}}
	}
	scope := &metricscopev3.Scope{Prefix: metricsNamespace, EnableEviction: true}
	if c.side == inboundSide {
		scope.MaxCounters, scope.MaxHistograms = u32(maxSeries), u32(maxSeries)
	}
	return metricConfig{&statsv3.Config{StatsScope: scope}}
}

func (m metricConfig) add(each standardMetric, tags []*statsv3.Config_Tag) {
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
	// histograms: the label also applies to histograms. Each label of a histogram costs time for each request.
	histograms bool
	// foreign: another workload's certificate contains the value, so it may contain any character.
	foreign bool
	// caller: the client has sent the value. The tag is already packed.
	caller bool
}

// changedTags returns a metric's labels after the changes that Telemetry documents specify.
func changedTags(all []tag, changes map[string]string, histogram, packs bool) []*statsv3.Config_Tag {
	unchanged := slices.DeleteFunc(slices.Clone(all), func(t tag) bool {
		_, changed := changes[t.name]
		return changed || histogram && !t.histograms
	})
	if packs {
		unchanged = packTags(unchanged)
	}
	var out []*statsv3.Config_Tag
	for _, t := range unchanged {
		out = append(out, &statsv3.Config_Tag{Name: t.name, ValueFormat: t.format, Rules: t.rules})
	}
	for _, name := range slices.Sorted(maps.Keys(changes)) {
		if format := tagFormat(changes[name]); format != "" {
			out = append(out, &statsv3.Config_Tag{Name: name, ValueFormat: format})
		}
	}
	return out
}

// plainAttributes maps CEL attributes to equivalent format commands, which Envoy evaluates faster than CEL.
var plainAttributes = map[string]string{
	"request.host": "%REQ(:AUTHORITY)%", "request.method": "%REQ(:METHOD)%", "request.path": "%REQ(:PATH)%",
	"request.useragent": "%REQ(USER-AGENT)%", "request.id": "%REQ(X-REQUEST-ID)%", "request.referer": "%REQ(REFERER)%",
	"request.protocol": "%PROTOCOL%", "response.code": "%RESPONSE_CODE%", "connection.requested_server_name": "%REQUESTED_SERVER_NAME%",
	"response.code_details": "%RESPONSE_CODE_DETAILS%", "destination.port": "%DOWNSTREAM_LOCAL_PORT%",
	"connection.uri_san_peer_certificate": "%DOWNSTREAM_PEER_URI_SAN%", "upstream.uri_san_peer_certificate": "%UPSTREAM_PEER_URI_SAN%",
}

// tagFormat converts a tag expression to a format. It returns "" for a removed tag, and for an expression that Envoy
// would reject.
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

// literal returns the text of an expression that consists of one string literal.
func literal(expression string) (string, bool) {
	if len(expression) < 3 {
		return "", false
	}
	quote, inner := expression[0], expression[1:len(expression)-1]
	return inner, (quote == '"' || quote == '\'') && expression[len(expression)-1] == quote && !strings.ContainsAny(inner, `"'\`)
}

// celFormat returns the format command that evaluates expression. It returns "" if the expression contains ")%", at
// which Envoy would end the command, or if Envoy would reject the command.
func celFormat(expression string) string {
	format := "%CEL(" + strings.NewReplacer("\n", " ", "\r", " ").Replace(expression) + ")%"
	if strings.Count(format, ")%") > 1 || config.CheckLogFormat(format) != nil {
		return ""
	}
	return format
}
