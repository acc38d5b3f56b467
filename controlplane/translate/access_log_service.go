package translate

import (
	"maps"
	"slices"
	"strings"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	grpclogv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/grpc/v3"
	otellogv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/open_telemetry/v3"
	otelcommon "go.opentelemetry.io/proto/otlp/common/v1"
	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
)

// bootstrapLogCluster is the cluster of the log service in ProxyConfig. The agent defines the cluster in the bootstrap.
const bootstrapLogCluster = "envoy_accesslog_service"

// providerCluster returns the cluster of a provider's service. The provider specifies the service as
// "[namespace/]host". ok is false if the service or its port is not visible to the proxy.
func (v proxyView) providerCluster(service string, port uint32) (cluster, host string, ok bool) {
	namespace, host, qualified := strings.Cut(service, "/")
	if !qualified {
		namespace, host = v.p.Namespace, service
	}
	svc := v.scope.Resolve(host, namespace)
	if svc == nil || qualified && !snapshot.IsProviderService(svc, namespace+"/"+v.scope.Hostname(host, namespace)) {
		return "", "", false
	}
	if _, ok := svc.Port(port); !ok {
		return "", "", false
	}
	return OutboundCluster(svc.Hostname, "", port), svc.Hostname, true
}

func grpcService(cluster, authority string) *corev3.GrpcService {
	return &corev3.GrpcService{TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{
		EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{ClusterName: cluster, Authority: authority},
	}}
}

func logService(cluster, host, name string, states []string) *grpclogv3.CommonGrpcAccessLogConfig {
	return &grpclogv3.CommonGrpcAccessLogConfig{
		LogName: name, GrpcService: grpcService(cluster, host), TransportApiVersion: corev3.ApiVersion_V3, FilterStateObjectsToLog: states,
	}
}

func orElse(value, otherwise string) string {
	if value == "" {
		return otherwise
	}
	return value
}

// requestService returns the gRPC access logger for HTTP requests. It returns nil for a chain of TCP connections, and
// if the provider's service is not visible to the proxy.
func (v proxyView) requestService(c chain, p *meshconfig.MeshConfig_ExtensionProvider_EnvoyHttpGrpcV3LogProvider) *accesslogv3.AccessLog {
	cluster, host, ok := v.providerCluster(p.GetService(), p.GetPort())
	if !ok || !c.requests {
		return nil
	}
	return typedLog("envoy.access_loggers.http_grpc", &grpclogv3.HttpGrpcAccessLogConfig{
		CommonConfig:                    logService(cluster, host, orElse(p.GetLogName(), "http_envoy_accesslog"), p.GetFilterStateObjectsToLog()),
		AdditionalRequestHeadersToLog:   p.GetAdditionalRequestHeadersToLog(),
		AdditionalResponseHeadersToLog:  p.GetAdditionalResponseHeadersToLog(),
		AdditionalResponseTrailersToLog: p.GetAdditionalResponseTrailersToLog(),
	})
}

// connectionService returns the gRPC access logger for TCP connections. It returns nil for a chain of HTTP requests,
// and if the provider's service is not visible to the proxy.
func (v proxyView) connectionService(c chain, p *meshconfig.MeshConfig_ExtensionProvider_EnvoyTcpGrpcV3LogProvider) *accesslogv3.AccessLog {
	cluster, host, ok := v.providerCluster(p.GetService(), p.GetPort())
	if !ok || c.requests {
		return nil
	}
	return typedLog("envoy.access_loggers.tcp_grpc", &grpclogv3.TcpGrpcAccessLogConfig{
		CommonConfig: logService(cluster, host, orElse(p.GetLogName(), "tcp_envoy_accesslog"), p.GetFilterStateObjectsToLog()),
	})
}

// bootstrapLogService returns the gRPC access log that sends entries to bootstrapLogCluster.
func (v proxyView) bootstrapLogService(c chain) *accesslogv3.AccessLog {
	if c.requests {
		return typedLog("envoy.access_loggers.http_grpc", &grpclogv3.HttpGrpcAccessLogConfig{
			CommonConfig: logService(bootstrapLogCluster, "", "http_envoy_accesslog", nil),
		})
	}
	return typedLog("envoy.access_loggers.tcp_grpc", &grpclogv3.TcpGrpcAccessLogConfig{
		CommonConfig: logService(bootstrapLogCluster, "", "tcp_envoy_accesslog", nil),
	})
}

// openTelemetryLog returns the access logger for an OpenTelemetry collector, or nil if the collector's service is not
// visible to the proxy. Each record has a text body and attributes.
func (v proxyView) openTelemetryLog(p *meshconfig.MeshConfig_ExtensionProvider_EnvoyOpenTelemetryLogProvider) *accesslogv3.AccessLog {
	cluster, host, ok := v.providerCluster(p.GetService(), p.GetPort())
	if !ok {
		return nil
	}
	body := strings.TrimSuffix(textLogFormat, "\n")
	if text := p.GetLogFormat().GetText(); text != "" {
		body = logText(text)
	}
	config := &otellogv3.OpenTelemetryAccessLogConfig{
		//lint:ignore SA1019 the oldest supported Envoy has only this field
		CommonConfig:         logService(cluster, host, orElse(p.GetLogName(), "otel_envoy_accesslog"), nil),
		DisableBuiltinLabels: true,
		Body:                 otelText(body),
	}
	if labels := p.GetLogFormat().GetLabels().GetFields(); len(labels) > 0 {
		config.Attributes = &otelcommon.KeyValueList{}
		for _, name := range slices.Sorted(maps.Keys(labels)) {
			if text := labels[name].GetStringValue(); text != "" {
				config.Attributes.Values = append(config.Attributes.Values, &otelcommon.KeyValue{Key: name, Value: otelText(logText(text))})
			}
		}
	}
	return typedLog("envoy.access_loggers.open_telemetry", config)
}

func otelText(text string) *otelcommon.AnyValue {
	return &otelcommon.AnyValue{Value: &otelcommon.AnyValue_StringValue{StringValue: text}}
}
