package analysis

import (
	"fmt"

	meshconfig "istio.io/api/mesh/v1alpha1"
	telemetry "istio.io/api/telemetry/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
)

// checkTelemetries reports providers of Telemetry documents that do not exist, have the wrong type, or have no
// reachable service. Proxies serve the requests, but their telemetry is lost.
func (c *snapshotCheck) checkTelemetries() {
	for _, r := range c.s.Resources(config.Telemetry) {
		spec := r.Spec.(*telemetry.Telemetry)
		for i, rule := range spec.GetAccessLogging() {
			c.checkProviders(r, fmt.Sprintf("spec.accessLogging[%d]", i), "access logs", rule.GetProviders(), isLogProvider)
		}
		for i, rule := range spec.GetTracing() {
			c.checkProviders(r, fmt.Sprintf("spec.tracing[%d]", i), "traces", rule.GetProviders(), isTracingProvider)
		}
		for i, rule := range spec.GetMetrics() {
			c.checkProviders(r, fmt.Sprintf("spec.metrics[%d]", i), "metrics", rule.GetProviders(), func(p *snapshot.ExtensionProvider) bool { return p.GetPrometheus() != nil })
		}
	}
}

func (c *snapshotCheck) checkProviders(r *config.Resource, field, what string, refs []*telemetry.ProviderRef, fits func(*snapshot.ExtensionProvider) bool) {
	for i, ref := range refs {
		at := fmt.Sprintf("%s.providers[%d].name", field, i)
		provider := snapshot.FindTelemetryProvider(c.s.Mesh, ref.GetName())
		service, port := snapshot.CollectorService(provider)
		switch {
		case provider == nil:
			c.reportWarning(config.UnknownProvider, r, at, ref.GetName(), "the mesh configuration has no extension provider with this name, so proxies produce no "+what+" for this provider",
				"add the provider to extensionProviders, or correct the name")
		case !fits(provider):
			c.reportWarning(config.UnknownProvider, r, at, ref.GetName(), "the extension provider does not support "+what, "name a provider that supports "+what)
		case service != "" && !c.hasCollector(service, port, r.Namespace):
			c.reportWarning(config.UnknownProvider, r, at, ref.GetName(), fmt.Sprintf("the provider's service %s, port %d, is not visible in this namespace, so proxies produce no %s for this provider", service, port, what),
				"add a Service or ServiceEntry for the provider, with the provider's port")
		}
	}
}

// hasCollector reports whether the service of a provider exists and has the port. from is the namespace of the document
// that names the provider.
func (c *snapshotCheck) hasCollector(service string, port uint32, from string) bool {
	namespace, host := snapshot.SplitProviderService(service)
	if namespace == "" {
		namespace = from
	}
	for _, svc := range c.s.Registry.ByHostname(c.resolveTarget(host, namespace)) {
		if _, ok := svc.Port(port); ok {
			return true
		}
	}
	return false
}

func isLogProvider(p *snapshot.ExtensionProvider) bool {
	switch p.GetProvider().(type) {
	case *meshconfig.MeshConfig_ExtensionProvider_EnvoyFileAccessLog, *meshconfig.MeshConfig_ExtensionProvider_EnvoyHttpAls,
		*meshconfig.MeshConfig_ExtensionProvider_EnvoyTcpAls, *meshconfig.MeshConfig_ExtensionProvider_EnvoyOtelAls:
		return true
	}
	return false
}

func isTracingProvider(p *snapshot.ExtensionProvider) bool {
	switch p.GetProvider().(type) {
	case *meshconfig.MeshConfig_ExtensionProvider_Opentelemetry, *meshconfig.MeshConfig_ExtensionProvider_Zipkin,
		*meshconfig.MeshConfig_ExtensionProvider_Datadog, *meshconfig.MeshConfig_ExtensionProvider_Skywalking:
		return true
	}
	return false
}
