package snapshot

import (
	"maps"
	"slices"

	meshconfig "istio.io/api/mesh/v1alpha1"
	telemetry "istio.io/api/telemetry/v1alpha1"
)

// ExtensionProvider is an entry of MeshConfig's extensionProviders.
type ExtensionProvider = meshconfig.MeshConfig_ExtensionProvider

// Built-in providers.
const (
	prometheusProvider = "prometheus"
	envoyProvider      = "envoy"
)

// MeshLog is the provider name of the access log that MeshConfig's accessLogFile describes.
const MeshLog = ""

// Direction is the direction of a workload's traffic.
type Direction = telemetry.WorkloadMode

// The directions of traffic. Traffic at a gateway has the direction of a client.
const (
	AsClient = telemetry.WorkloadMode_CLIENT
	AsServer = telemetry.WorkloadMode_SERVER
)

// Telemetry contains the telemetry settings of a workload: the Telemetry documents that apply to it, in the order mesh,
// namespace, workload.
type Telemetry struct {
	mesh  *meshconfig.MeshConfig
	specs []*telemetry.Telemetry
}

// Telemetry returns the telemetry settings of a workload.
func (s *Snapshot) Telemetry(namespace string, labels map[string]string) Telemetry {
	t := Telemetry{mesh: s.Mesh}
	for _, d := range s.telemetry.forWorkload(namespace, labels) {
		t.specs = append(t.specs, d.spec)
	}
	return t
}

// Provider returns the provider that is called name, or nil if there is none. Two providers are built in: "prometheus",
// and "envoy", which writes access logs to standard output. The mesh configuration may define other providers with
// these names.
func (t Telemetry) Provider(name string) *ExtensionProvider {
	return FindTelemetryProvider(t.mesh, name)
}

// FindTelemetryProvider returns the extension provider or built-in provider that is called name, or nil.
func FindTelemetryProvider(mesh *meshconfig.MeshConfig, name string) *ExtensionProvider {
	if p := FindProvider(mesh, name); p != nil {
		return p
	}
	switch name {
	case prometheusProvider:
		return &ExtensionProvider{Name: name, Provider: &meshconfig.MeshConfig_ExtensionProvider_Prometheus{
			Prometheus: &meshconfig.MeshConfig_ExtensionProvider_PrometheusMetricsProvider{},
		}}
	case envoyProvider:
		return &ExtensionProvider{Name: name, Provider: &meshconfig.MeshConfig_ExtensionProvider_EnvoyFileAccessLog{
			EnvoyFileAccessLog: &meshconfig.MeshConfig_ExtensionProvider_EnvoyFileAccessLogProvider{Path: "/dev/stdout"},
		}}
	}
	return nil
}

func appliesTo(mode, direction Direction) bool {
	return mode == telemetry.WorkloadMode_CLIENT_AND_SERVER || mode == direction
}

func providerNames(refs []*telemetry.ProviderRef) []string {
	var out []string
	for _, r := range refs {
		out = append(out, r.GetName())
	}
	return out
}

// AccessLog is one access log.
type AccessLog struct {
	// Provider is the provider's name. It is MeshLog for the access log that MeshConfig itself specifies.
	Provider string
	// Filter is a CEL expression that selects requests. If it is empty, all requests are logged.
	Filter string
}

// AccessLogs returns the access logs for one direction, sorted by provider. If the documents of a level specify
// providers, these replace the providers of the previous levels.
func (t Telemetry) AccessLogs(direction Direction) []AccessLog {
	parent := t.mesh.GetDefaultProviders().GetAccessLogging()
	if len(parent) == 0 && t.mesh.GetAccessLogFile() != "" {
		parent = []string{MeshLog}
	}
	on := map[string]AccessLog{}
	set := func(names []string, filter string) {
		for _, name := range names {
			on[name] = AccessLog{Provider: name, Filter: filter}
		}
	}
	set(parent, "")
	for _, spec := range t.specs {
		named := false
		for _, rule := range spec.GetAccessLogging() {
			if !appliesTo(rule.GetMatch().GetMode(), direction) {
				continue
			}
			names := providerNames(rule.GetProviders())
			switch {
			case len(names) == 0:
				names = parent
			case !named:
				named, parent = true, names
				clear(on)
			default:
				parent = slices.Concat(parent, names)
			}
			if rule.GetDisabled().GetValue() {
				for _, name := range names {
					delete(on, name)
				}
				continue
			}
			set(names, rule.GetFilter().GetExpression())
		}
	}
	var out []AccessLog
	for _, name := range slices.Sorted(maps.Keys(on)) {
		out = append(out, on[name])
	}
	return out
}

// Tracing contains the tracing settings of one direction.
type Tracing struct {
	// Provider receives the spans. nil means the tracer in the proxy's bootstrap.
	Provider *ExtensionProvider
	// Sampling is the percentage of sampled traces. It is nil if it is not set.
	Sampling *float64
	// SpansDisabled: proxies report no spans.
	SpansDisabled bool
	Tags          map[string]*telemetry.Tracing_CustomTag
	// UseRequestID: the request ID contains the sampling decision.
	UseRequestID bool
	// MeshTags: spans have tags with the workload's mesh metadata.
	MeshTags bool
	// NoPropagation: proxies do not propagate the trace context.
	NoPropagation bool
}

// Tracing returns the tracing settings for one direction, or nil if tracing is disabled. Unset fields are inherited
// from the previous level.
func (t Telemetry) Tracing(direction Direction) *Tracing {
	out := &Tracing{UseRequestID: true, MeshTags: true}
	names := t.mesh.GetDefaultProviders().GetTracing()
	found := len(names) > 0 || t.mesh.GetEnableTracing()
	for _, spec := range t.specs {
		for _, rule := range spec.GetTracing() {
			if !appliesTo(rule.GetMatch().GetMode(), direction) {
				continue
			}
			found = true
			if n := providerNames(rule.GetProviders()); len(n) > 0 {
				names = n
			}
			out.merge(rule)
		}
	}
	if !found {
		return nil
	}
	if len(names) > 0 {
		if out.Provider = t.Provider(names[0]); out.Provider == nil {
			return nil
		}
	}
	return out
}

func (t *Tracing) merge(rule *telemetry.Tracing) {
	if p := rule.GetRandomSamplingPercentage(); p != nil {
		t.Sampling = new(float64)
		*t.Sampling = p.GetValue()
	}
	if b := rule.GetDisableSpanReporting(); b != nil {
		t.SpansDisabled = b.GetValue()
	}
	if len(rule.GetCustomTags()) > 0 {
		t.Tags = rule.GetCustomTags()
	}
	if b := rule.GetUseRequestIdForTraceSampling(); b != nil {
		t.UseRequestID = b.GetValue()
	}
	if b := rule.GetEnableIstioTags(); b != nil {
		t.MeshTags = b.GetValue()
	}
	if b := rule.GetDisableContextPropagation(); b != nil {
		t.NoPropagation = b.GetValue()
	}
}

// Metric is a standard metric of the mesh.
type Metric = telemetry.MetricSelector_IstioMetric

// MetricChange contains the changes to one metric.
type MetricChange struct {
	Disabled bool
	// Tags contains the changed tags by name. The value is a CEL expression, or "" for a removed tag.
	Tags map[string]string
}

// Metrics returns the changes to the standard metrics for one direction. measured is false if metrics are disabled.
func (t Telemetry) Metrics(direction Direction) (changes map[Metric]MetricChange, measured bool) {
	parent := t.mesh.GetDefaultProviders().GetMetrics()
	if len(parent) == 0 {
		parent = []string{prometheusProvider}
	}
	inForce := parent
	changes = map[Metric]MetricChange{}
	for _, spec := range t.specs {
		var named []string
		for _, rule := range spec.GetMetrics() {
			names := providerNames(rule.GetProviders())
			if len(names) == 0 {
				names = parent
			}
			named = append(named, names...)
			parent = names
			if !t.prometheus(names) {
				continue
			}
			for _, o := range rule.GetOverrides() {
				if appliesTo(o.GetMatch().GetMode(), direction) {
					applyOverride(changes, o)
				}
			}
		}
		if len(named) > 0 {
			inForce = named
		}
	}
	return changes, t.prometheus(inForce)
}

func (t Telemetry) prometheus(names []string) bool {
	return slices.ContainsFunc(names, func(name string) bool { return t.Provider(name).GetPrometheus() != nil })
}

func applyOverride(changes map[Metric]MetricChange, o *telemetry.MetricsOverrides) {
	if o.GetMatch().GetCustomMetric() != "" {
		return
	}
	chosen := o.GetMatch().GetMetric()
	for number := range telemetry.MetricSelector_IstioMetric_name {
		metric := Metric(number)
		if metric == telemetry.MetricSelector_ALL_METRICS || chosen != telemetry.MetricSelector_ALL_METRICS && metric != chosen {
			continue
		}
		c := changes[metric]
		if d := o.GetDisabled(); d != nil {
			c.Disabled = d.GetValue()
		}
		if len(o.GetTagOverrides()) > 0 {
			c.Tags = maps.Clone(c.Tags)
			if c.Tags == nil {
				c.Tags = map[string]string{}
			}
		}
		for tag, t := range o.GetTagOverrides() {
			c.Tags[tag] = ""
			if t.GetOperation() == telemetry.MetricsOverrides_TagOverride_UPSERT {
				c.Tags[tag] = t.GetValue()
			}
		}
		changes[metric] = c
	}
}

// CollectorService returns the service and port of a provider that receives logs or spans. It returns "" for other
// providers. The service has the form "host" or "namespace/host".
func CollectorService(p *ExtensionProvider) (service string, port uint32) {
	switch p := p.GetProvider().(type) {
	case *meshconfig.MeshConfig_ExtensionProvider_Zipkin:
		return p.Zipkin.GetService(), p.Zipkin.GetPort()
	case *meshconfig.MeshConfig_ExtensionProvider_Datadog:
		return p.Datadog.GetService(), p.Datadog.GetPort()
	case *meshconfig.MeshConfig_ExtensionProvider_Skywalking:
		return p.Skywalking.GetService(), p.Skywalking.GetPort()
	case *meshconfig.MeshConfig_ExtensionProvider_Opentelemetry:
		return p.Opentelemetry.GetService(), p.Opentelemetry.GetPort()
	case *meshconfig.MeshConfig_ExtensionProvider_EnvoyHttpAls:
		return p.EnvoyHttpAls.GetService(), p.EnvoyHttpAls.GetPort()
	case *meshconfig.MeshConfig_ExtensionProvider_EnvoyTcpAls:
		return p.EnvoyTcpAls.GetService(), p.EnvoyTcpAls.GetPort()
	case *meshconfig.MeshConfig_ExtensionProvider_EnvoyOtelAls:
		return p.EnvoyOtelAls.GetService(), p.EnvoyOtelAls.GetPort()
	}
	return "", 0
}
