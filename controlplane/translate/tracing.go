package translate

import (
	"maps"
	"net"
	"slices"
	"strconv"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tracev3 "github.com/envoyproxy/go-control-plane/envoy/config/trace/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	uuidv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/request_id/uuid/v3"
	tracingv3 "github.com/envoyproxy/go-control-plane/envoy/type/tracing/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"
	meshconfig "istio.io/api/mesh/v1alpha1"
	telemetryv1 "istio.io/api/telemetry/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
)

// defaultSampling is the default percentage of traced requests.
const defaultSampling = 1

// setTracing configures tracing as Telemetry documents and the mesh configuration specify.
func (v proxyView) setTracing(m *hcmv3.HttpConnectionManager, t traffic) {
	how := v.telemetry().Tracing(t.direction())
	if how == nil {
		return
	}
	if !how.UseRequestID {
		m.RequestIdExtension = &hcmv3.RequestIDExtension{TypedConfig: anyOf(&uuidv3.UuidRequestIdConfig{UseRequestIdForTraceSampling: boolean(false)})}
	}
	if how.SpansDisabled {
		return
	}
	tracing := &hcmv3.HttpConnectionManager_Tracing{
		ClientSampling:  &typev3.Percent{Value: 100},
		RandomSampling:  &typev3.Percent{Value: v.sampling(how)},
		OverallSampling: &typev3.Percent{Value: 100},
		CustomTags:      v.spanTags(how),
	}
	if how.Provider != nil {
		provider, maxLength := v.tracer(how.Provider)
		if provider == nil {
			return
		}
		tracing.Provider = provider
		if maxLength > 0 {
			tracing.MaxPathTagLength = u32(maxLength)
		}
	}
	if t.side == edgeSide || how.Provider.GetSkywalking() != nil {
		tracing.SpawnUpstreamSpan = boolean(true)
	}
	tracing.NoContextPropagation = how.NoPropagation && v.p.isEnvoyAtLeast(1, 38)
	m.Tracing = tracing
}

func (v proxyView) sampling(how *snapshot.Tracing) float64 {
	if how.Sampling != nil {
		return *how.Sampling
	}
	if s := v.s.Mesh.GetDefaultConfig().GetTracing().GetSampling(); s > 0 {
		return s
	}
	return defaultSampling
}

// spanTags returns the tags that Telemetry documents specify, and the tags that describe the workload.
func (v proxyView) spanTags(how *snapshot.Tracing) []*tracingv3.CustomTag {
	var out []*tracingv3.CustomTag
	for _, name := range slices.Sorted(maps.Keys(how.Tags)) {
		if tag := spanTag(name, how.Tags[name], v.p.isEnvoyAtLeast(1, 38)); tag != nil {
			out = append(out, tag)
		}
	}
	if !how.MeshTags {
		return out
	}
	self := v.p.peer()
	for _, t := range [][2]string{
		{"istio.canonical_revision", self.revision}, {"istio.canonical_service", self.service},
		{"istio.mesh_id", v.s.Mesh.GetTrustDomain()}, {"istio.namespace", self.namespace},
	} {
		if _, taken := how.Tags[t[0]]; !taken && t[1] != "" {
			out = append(out, literalTag(t[0], t[1]))
		}
	}
	return out
}

func literalTag(name, value string) *tracingv3.CustomTag {
	return &tracingv3.CustomTag{Tag: name, Type: &tracingv3.CustomTag_Literal_{Literal: &tracingv3.CustomTag_Literal{Value: value}}}
}

func spanTag(name string, tag *telemetryv1.Tracing_CustomTag, formatterTags bool) *tracingv3.CustomTag {
	switch t := tag.GetType().(type) {
	case *telemetryv1.Tracing_CustomTag_Literal:
		return literalTag(name, t.Literal.GetValue())
	case *telemetryv1.Tracing_CustomTag_Environment:
		return &tracingv3.CustomTag{Tag: name, Type: &tracingv3.CustomTag_Environment_{
			Environment: &tracingv3.CustomTag_Environment{Name: t.Environment.GetName(), DefaultValue: t.Environment.GetDefaultValue()},
		}}
	case *telemetryv1.Tracing_CustomTag_Header:
		return &tracingv3.CustomTag{Tag: name, Type: &tracingv3.CustomTag_RequestHeader{
			RequestHeader: &tracingv3.CustomTag_Header{Name: t.Header.GetName(), DefaultValue: t.Header.GetDefaultValue()},
		}}
	case *telemetryv1.Tracing_CustomTag_Formatter:
		if !formatterTags {
			return nil
		}
		return &tracingv3.CustomTag{Tag: name, Type: &tracingv3.CustomTag_Value{Value: logText(t.Formatter.GetValue())}}
	}
	return nil
}

// tracer returns Envoy's tracer for a provider, and the maximum length of the path in a span; 0 selects the default. If
// the provider is not a tracer or its service is unknown, the tracer is nil, and Envoy does not trace requests.
func (v proxyView) tracer(p *snapshot.ExtensionProvider) (tracer *tracev3.Tracing_Http, maxLength uint32) {
	switch kind := p.GetProvider().(type) {
	case *meshconfig.MeshConfig_ExtensionProvider_Opentelemetry:
		return v.openTelemetryTracer(kind.Opentelemetry), kind.Opentelemetry.GetMaxTagLength()
	case *meshconfig.MeshConfig_ExtensionProvider_Zipkin:
		return v.zipkinTracer(kind.Zipkin), kind.Zipkin.GetMaxTagLength()
	case *meshconfig.MeshConfig_ExtensionProvider_Datadog:
		cluster, _, ok := v.providerCluster(kind.Datadog.GetService(), kind.Datadog.GetPort())
		if !ok {
			return nil, 0
		}
		return typedTracer("envoy.tracers.datadog", &tracev3.DatadogConfig{CollectorCluster: cluster, ServiceName: v.tracedName()}),
			kind.Datadog.GetMaxTagLength()
	case *meshconfig.MeshConfig_ExtensionProvider_Skywalking:
		return v.skywalkingTracer(kind.Skywalking), 0
	}
	return nil, 0
}

func typedTracer(name string, config proto.Message) *tracev3.Tracing_Http {
	return &tracev3.Tracing_Http{Name: name, ConfigType: &tracev3.Tracing_Http_TypedConfig{TypedConfig: anyOf(config)}}
}

// tracedName returns the workload's service name in spans.
func (v proxyView) tracedName() string {
	self := v.p.peer()
	return self.service + "." + self.namespace
}

func (v proxyView) openTelemetryTracer(p *meshconfig.MeshConfig_ExtensionProvider_OpenTelemetryTracingProvider) *tracev3.Tracing_Http {
	cluster, host, ok := v.providerCluster(p.GetService(), p.GetPort())
	if !ok {
		return nil
	}
	config := &tracev3.OpenTelemetryConfig{ServiceName: v.tracedName()}
	if h := p.GetHttp(); h != nil {
		config.HttpService = &corev3.HttpService{
			HttpUri: &corev3.HttpUri{
				Uri:              "http://" + net.JoinHostPort(host, strconv.FormatUint(uint64(p.GetPort()), 10)) + h.GetPath(),
				HttpUpstreamType: &corev3.HttpUri_Cluster{Cluster: cluster},
				Timeout:          h.GetTimeout(),
			},
			RequestHeadersToAdd: providerHeaders(h.GetHeaders()),
		}
		if config.HttpService.HttpUri.Timeout == nil {
			config.HttpService.HttpUri.Timeout = duration(3 * time.Second)
		}
	} else {
		config.GrpcService = grpcService(cluster, host)
		config.GrpcService.Timeout = p.GetGrpc().GetTimeout()
		for _, h := range p.GetGrpc().GetInitialMetadata() {
			if h.GetValue() != "" {
				config.GrpcService.InitialMetadata = append(config.GrpcService.InitialMetadata, &corev3.HeaderValue{Key: h.GetName(), Value: h.GetValue()})
			}
		}
	}
	return typedTracer("envoy.tracers.opentelemetry", config)
}

// providerHeaders returns the headers that specify a value. It omits headers that read their value from an environment
// variable, because the control plane's environment must not be sent to proxies.
func providerHeaders(headers []*meshconfig.MeshConfig_ExtensionProvider_HttpHeader) []*corev3.HeaderValueOption {
	var out []*corev3.HeaderValueOption
	for _, h := range headers {
		if h.GetValue() != "" {
			out = append(out, &corev3.HeaderValueOption{
				Header:       &corev3.HeaderValue{Key: h.GetName(), Value: headerFormat(h.GetValue())},
				AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
			})
		}
	}
	return out
}

func (v proxyView) zipkinTracer(p *meshconfig.MeshConfig_ExtensionProvider_ZipkinTracingProvider) *tracev3.Tracing_Http {
	cluster, host, ok := v.providerCluster(p.GetService(), p.GetPort())
	if !ok {
		return nil
	}
	config := &tracev3.ZipkinConfig{
		CollectorCluster: cluster, CollectorHostname: host, CollectorEndpoint: orElse(p.GetPath(), "/api/v2/spans"),
		CollectorEndpointVersion: tracev3.ZipkinConfig_HTTP_JSON,
		TraceId_128Bit:           !p.GetEnable_64BitTraceId(),
		SharedSpanContext:        boolean(false),
	}
	if p.GetTraceContextOption() == meshconfig.MeshConfig_ExtensionProvider_ZipkinTracingProvider_USE_B3_WITH_W3C_PROPAGATION {
		config.TraceContextOption = tracev3.ZipkinConfig_USE_B3_WITH_W3C_PROPAGATION
	}
	return typedTracer("envoy.tracers.zipkin", config)
}

func (v proxyView) skywalkingTracer(p *meshconfig.MeshConfig_ExtensionProvider_SkyWalkingTracingProvider) *tracev3.Tracing_Http {
	cluster, host, ok := v.providerCluster(p.GetService(), p.GetPort())
	if !ok {
		return nil
	}
	config := &tracev3.SkyWalkingConfig{
		GrpcService:  grpcService(cluster, host),
		ClientConfig: &tracev3.ClientConfig{ServiceName: v.tracedName(), InstanceName: v.p.Name},
	}
	if token := p.GetAccessToken(); token != "" {
		config.ClientConfig.BackendTokenSpecifier = &tracev3.ClientConfig_BackendToken{BackendToken: token}
	}
	return typedTracer("envoy.tracers.skywalking", config)
}
