package bootstrap

import (
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tracev3 "github.com/envoyproxy/go-control-plane/envoy/config/trace/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshv1 "istio.io/api/mesh/v1alpha1"
)

// Names of the clusters that receive spans, as in Istio's bootstrap.
const (
	zipkinCluster        = "zipkin"
	datadogCluster       = "datadog_agent"
	openTelemetryCluster = "opentelemetry"
	lightstepCluster     = "lightstep"
)

const lightstepTokenHeader = "lightstep-access-token"

// tracerConfig is one tracer and the destination of its spans.
type tracerConfig struct {
	name   string // Envoy's name of the tracer
	config proto.Message
	remote remote
}

// tracer returns the tracer that ProxyConfig configures, or else the mesh's default provider. It returns nil if no
// tracer is configured, or if Envoy does not support the tracer.
func tracer(c Config) *tracerConfig {
	t := c.ProxyConfig.GetTracing()
	var found *tracerConfig
	switch kind := t.GetTracer().(type) {
	case *meshv1.Tracing_Zipkin_:
		found = zipkin(c.expand(kind.Zipkin.GetAddress()))
	case *meshv1.Tracing_Datadog_:
		found = datadog(kind.Datadog.GetAddress(), c)
	case *meshv1.Tracing_Lightstep_:
		found = lightstep(kind.Lightstep.GetAddress(), kind.Lightstep.GetAccessToken(), c)
	case nil:
		//lint:ignore SA1019 some meshes still use this deprecated setting
		if address := c.ProxyConfig.GetZipkinAddress(); address != "" {
			found = zipkin(c.expand(address))
			found.remote.setting = "zipkinAddress"
			break
		}
		return providerTracer(c)
	default:
		return nil
	}
	found.remote.tls = t.GetTlsSettings()
	return found
}

func zipkin(address string) *tracerConfig {
	return &tracerConfig{
		name: "envoy.tracers.zipkin",
		config: &tracev3.ZipkinConfig{
			CollectorCluster:         zipkinCluster,
			CollectorEndpoint:        "/api/v2/spans",
			CollectorEndpointVersion: tracev3.ZipkinConfig_HTTP_JSON,
			CollectorHostname:        address,
			TraceId_128Bit:           true,
			SharedSpanContext:        wrapperspb.Bool(false),
		},
		remote: remote{cluster: zipkinCluster, setting: "tracing.zipkin.address", address: address},
	}
}

func datadog(address string, c Config) *tracerConfig {
	return &tracerConfig{
		name: "envoy.tracers.datadog",
		config: &tracev3.DatadogConfig{
			CollectorCluster: datadogCluster,
			ServiceName:      nodeCluster(c),
		},
		remote: remote{cluster: datadogCluster, setting: "tracing.datadog.address", address: address},
	}
}

// lightstep returns an OpenTelemetry tracer. Envoy no longer has its Lightstep tracer, but Lightstep supports
// OpenTelemetry.
func lightstep(address, token string, c Config) *tracerConfig {
	service := grpcTo(lightstepCluster)
	if token != "" {
		service.InitialMetadata = []*corev3.HeaderValue{{Key: lightstepTokenHeader, Value: token}}
	}
	return &tracerConfig{
		name:   "envoy.tracers.opentelemetry",
		config: &tracev3.OpenTelemetryConfig{GrpcService: service, ServiceName: nodeCluster(c)},
		remote: remote{cluster: lightstepCluster, setting: "tracing.lightstep.address", address: address, http2: true},
	}
}

// providerTracer returns the tracer of the mesh's default provider, or nil if Envoy cannot use it. tracingWarnings reports
// the reason.
func providerTracer(c Config) *tracerConfig {
	found := defaultProvider(c)
	if found == nil || checkProvider(c, found) != nil {
		return nil
	}
	return found
}

func defaultProvider(c Config) *tracerConfig {
	var found *tracerConfig
	switch p := c.TracingProvider.GetProvider().(type) {
	case *meshv1.MeshConfig_ExtensionProvider_Zipkin:
		found = zipkinProvider(p.Zipkin)
	case *meshv1.MeshConfig_ExtensionProvider_Datadog:
		found = datadog(serviceAddress(p.Datadog.GetService(), p.Datadog.GetPort()), c)
	case *meshv1.MeshConfig_ExtensionProvider_Opentelemetry:
		found = openTelemetry(p.Opentelemetry, c)
	case *meshv1.MeshConfig_ExtensionProvider_Lightstep:
		//lint:ignore SA1019 some meshes still use this deprecated setting
		l := p.Lightstep
		found = lightstep(serviceAddress(l.GetService(), l.GetPort()), l.GetAccessToken(), c)
	default:
		return nil
	}
	found.remote.setting = fmt.Sprintf("extensionProviders: %s: service and port", c.TracingProvider.GetName())
	return found
}

// checkProvider returns an error for a provider that Envoy cannot use. The proxy then starts without tracing, because
// Istio's agent does not read providers at all.
func checkProvider(c Config, t *tracerConfig) error {
	if _, _, err := c.hostAndPort(t.remote); err != nil {
		return err
	}
	if otel, ok := t.config.(*tracev3.OpenTelemetryConfig); ok {
		return checkSendable(otel.GetGrpcService().GetInitialMetadata(), t.remote.setting)
	}
	return nil
}

func zipkinProvider(p *meshv1.MeshConfig_ExtensionProvider_ZipkinTracingProvider) *tracerConfig {
	t := zipkin(serviceAddress(p.GetService(), p.GetPort()))
	config := t.config.(*tracev3.ZipkinConfig)
	config.CollectorEndpoint = textOrDefault(p.GetPath(), config.CollectorEndpoint)
	config.TraceId_128Bit = !p.GetEnable_64BitTraceId()
	if p.GetTraceContextOption() == meshv1.MeshConfig_ExtensionProvider_ZipkinTracingProvider_USE_B3_WITH_W3C_PROPAGATION {
		config.TraceContextOption = tracev3.ZipkinConfig_USE_B3_WITH_W3C_PROPAGATION
	}
	return t
}

// openTelemetry returns a tracer that sends spans by gRPC, or by HTTP if the provider has HTTP settings.
func openTelemetry(p *meshv1.MeshConfig_ExtensionProvider_OpenTelemetryTracingProvider, c Config) *tracerConfig {
	address := serviceAddress(p.GetService(), p.GetPort())
	config := &tracev3.OpenTelemetryConfig{ServiceName: nodeCluster(c)}
	if h := p.GetHttp(); h != nil {
		config.HttpService = httpTo(openTelemetryCluster, address, h)
	} else {
		config.GrpcService = grpcTo(openTelemetryCluster)
		config.GrpcService.Timeout = p.GetGrpc().GetTimeout()
		config.GrpcService.InitialMetadata = metadataHeaders(p.GetGrpc().GetInitialMetadata())
	}
	return &tracerConfig{
		name:   "envoy.tracers.opentelemetry",
		config: config,
		remote: remote{cluster: openTelemetryCluster, address: address, http2: p.GetHttp() == nil},
	}
}

func httpTo(cluster, address string, h *meshv1.MeshConfig_ExtensionProvider_HttpService) *corev3.HttpService {
	timeout := h.GetTimeout()
	if timeout == nil {
		timeout = durationpb.New(3 * time.Second) // the default is 10 s for OTLP exporters and 3 s in Istio
	}
	service := &corev3.HttpService{HttpUri: &corev3.HttpUri{
		Uri:              "http://" + address + "/" + strings.TrimPrefix(h.GetPath(), "/"),
		HttpUpstreamType: &corev3.HttpUri_Cluster{Cluster: cluster},
		Timeout:          timeout,
	}}
	for _, header := range httpHeaders(h.GetHeaders()) {
		service.RequestHeadersToAdd = append(service.RequestHeadersToAdd, &corev3.HeaderValueOption{
			Header:       header,
			AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
		})
	}
	return service
}

// httpHeaders returns a provider's headers for HTTP. A value from an environment variable is a reference that Envoy
// resolves, so that the bootstrap file contains no secret.
func httpHeaders(list []*meshv1.MeshConfig_ExtensionProvider_HttpHeader) []*corev3.HeaderValue {
	var values []*corev3.HeaderValue
	for _, h := range list {
		value := escapePercent(h.GetValue())
		if h.GetEnvName() != "" {
			value = "%ENVIRONMENT(" + h.GetEnvName() + ")%"
		}
		values = append(values, &corev3.HeaderValue{Key: h.GetName(), Value: value})
	}
	return values
}

// metadataHeaders returns a provider's headers for gRPC. Envoy sends them verbatim, so the caller must have replaced
// values from environment variables. It omits headers that still refer to a variable.
func metadataHeaders(list []*meshv1.MeshConfig_ExtensionProvider_HttpHeader) []*corev3.HeaderValue {
	var values []*corev3.HeaderValue
	for _, h := range list {
		if h.GetEnvName() == "" {
			values = append(values, &corev3.HeaderValue{Key: h.GetName(), Value: h.GetValue()})
		}
	}
	return values
}

// checkSendable returns an error if a value contains %. Envoy cannot send such a value as gRPC metadata: it parses the
// text after % as a command, and does not replace %% by %.
func checkSendable(metadata []*corev3.HeaderValue, setting string) error {
	for _, h := range metadata {
		if strings.Contains(h.GetValue(), "%") {
			return fmt.Errorf("%s: the value of %s contains a %%, which Envoy cannot send over gRPC; use another value, or http",
				setting, h.GetKey())
		}
	}
	return nil
}

// escapePercent escapes %, because Envoy parses the text after % as a command.
func escapePercent(text string) string { return strings.ReplaceAll(text, "%", "%%") }

// serviceAddress returns the host:port of a provider's service, which may be written as namespace/host.
func serviceAddress(service string, port uint32) string {
	if _, host, ok := strings.Cut(service, "/"); ok {
		service = host
	}
	return net.JoinHostPort(service, strconv.FormatUint(uint64(port), 10))
}

func httpTracing(c Config, a *anyBuilder) *tracev3.Tracing {
	t := tracer(c)
	if t == nil {
		return nil
	}
	if otel, ok := t.config.(*tracev3.OpenTelemetryConfig); ok {
		a.fail(checkSendable(otel.GetGrpcService().GetInitialMetadata(), t.remote.setting))
	}
	return &tracev3.Tracing{Http: &tracev3.Tracing_Http{
		Name:       t.name,
		ConfigType: &tracev3.Tracing_Http_TypedConfig{TypedConfig: a.add(t.config)},
	}}
}

// tracingWarnings returns warnings about configured tracers that Envoy no longer supports.
func tracingWarnings(c Config) []string {
	const remedy = "Envoy no longer has this tracer and sends no spans; use zipkin, datadog or an opentelemetry provider"
	switch c.ProxyConfig.GetTracing().GetTracer().(type) {
	case *meshv1.Tracing_Stackdriver_:
		return []string{"tracing.stackdriver: " + remedy}
	case *meshv1.Tracing_OpenCensusAgent_:
		return []string{"tracing.openCensusAgent: " + remedy}
	case nil:
	default:
		return nil
	}
	for _, h := range c.TracingProvider.GetOpentelemetry().GetGrpc().GetInitialMetadata() {
		if h.GetEnvName() != "" {
			return []string{fmt.Sprintf("extensionProviders: %s: the header %s is not sent: the environment has no %s",
				c.TracingProvider.GetName(), h.GetName(), h.GetEnvName())}
		}
	}
	if p := defaultProvider(c); p != nil {
		if err := checkProvider(c, p); err != nil {
			return []string{err.Error() + "; Envoy sends no spans"}
		}
		return nil
	}
	if c.TracingProvider != nil && tracer(c) == nil {
		return []string{fmt.Sprintf("extensionProviders: %s is a tracing provider that the bootstrap does not support; use "+
			"zipkin, datadog, opentelemetry or lightstep", c.TracingProvider.GetName())}
	}
	return nil
}
