package translate

import (
	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	datav3 "github.com/envoyproxy/go-control-plane/envoy/data/accesslog/v3"
	filev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/file/v3"
	celv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/filters/cel/v3"
	"google.golang.org/protobuf/proto"
	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
)

// fileLogName is the name of Envoy's access logger that writes files.
const fileLogName = "envoy.access_loggers.file"

// accessLogs returns the access loggers that write log entries for a filter chain. The access loggers that record
// metrics are returned by metricLogs.
func (v proxyView) accessLogs(c chain) []*accesslogv3.AccessLog {
	var out []*accesslogv3.AccessLog
	for _, l := range v.telemetry().AccessLogs(c.direction()) {
		log := v.accessLog(c, l.Provider)
		if log == nil {
			continue
		}
		var filters []*accesslogv3.AccessLogFilter
		if !c.requests && v.metrics(c.direction()).enabled {
			// If metrics are enabled, Envoy calls access loggers also when a connection is established, because the
			// metrics need that event. This filter limits log entries to one per connection, at its end.
			filters = append(filters, logTypes(datav3.AccessLogType_TcpConnectionEnd))
		}
		if l.Filter != "" && config.CheckCEL(l.Filter) == nil {
			filters = append(filters, expressionFilter(l.Filter))
		}
		log.Filter = allOf(filters)
		out = append(out, log)
	}
	if v.s.Mesh.GetEnableEnvoyAccessLogService() {
		out = append(out, v.bootstrapLogService(c))
	}
	return out
}

// accessLog returns the access logger of the provider that is called name. It returns nil if the provider does not log
// this kind of traffic, or if the provider's service is unknown.
func (v proxyView) accessLog(c chain, name string) *accesslogv3.AccessLog {
	if name == snapshot.MeshLog {
		return typedLog(fileLogName, &filev3.FileAccessLog{
			Path:            v.s.Mesh.GetAccessLogFile(),
			AccessLogFormat: &filev3.FileAccessLog_LogFormat{LogFormat: meshLogFormat(v.s.Mesh)},
		})
	}
	switch p := v.telemetry().Provider(name).GetProvider().(type) {
	case *meshconfig.MeshConfig_ExtensionProvider_EnvoyFileAccessLog:
		return typedLog(fileLogName, fileLog(p.EnvoyFileAccessLog))
	case *meshconfig.MeshConfig_ExtensionProvider_EnvoyHttpAls:
		return v.requestService(c, p.EnvoyHttpAls)
	case *meshconfig.MeshConfig_ExtensionProvider_EnvoyTcpAls:
		return v.connectionService(c, p.EnvoyTcpAls)
	case *meshconfig.MeshConfig_ExtensionProvider_EnvoyOtelAls:
		return v.openTelemetryLog(p.EnvoyOtelAls)
	}
	return nil
}

func typedLog(name string, config proto.Message) *accesslogv3.AccessLog {
	return &accesslogv3.AccessLog{Name: name, ConfigType: &accesslogv3.AccessLog_TypedConfig{TypedConfig: anyOf(config)}}
}

func logTypes(types ...datav3.AccessLogType) *accesslogv3.AccessLogFilter {
	return &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_LogTypeFilter{
		LogTypeFilter: &accesslogv3.LogTypeFilter{Types: types},
	}}
}

func expressionFilter(expression string) *accesslogv3.AccessLogFilter {
	return &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_ExtensionFilter{
		ExtensionFilter: &accesslogv3.ExtensionFilter{
			Name:       "envoy.access_loggers.extension_filters.cel",
			ConfigType: &accesslogv3.ExtensionFilter_TypedConfig{TypedConfig: anyOf(&celv3.ExpressionFilter{Expression: expression})},
		},
	}}
}

// allOf returns the conjunction of the filters, or nil if there are none.
func allOf(filters []*accesslogv3.AccessLogFilter) *accesslogv3.AccessLogFilter {
	switch len(filters) {
	case 0:
		return nil
	case 1:
		return filters[0]
	}
	return &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_AndFilter{
		AndFilter: &accesslogv3.AndFilter{Filters: filters},
	}}
}
