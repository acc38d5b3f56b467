package snapshot

import (
	"strings"

	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
)

// FindProvider returns the extension provider that is called name, or nil if there is none.
func FindProvider(mesh *meshconfig.MeshConfig, name string) *meshconfig.MeshConfig_ExtensionProvider {
	for _, p := range mesh.GetExtensionProviders() {
		if p.GetName() == name {
			return p
		}
	}
	return nil
}

// ProviderService returns the service and port of an external authorizer. It returns "" for other providers. The
// service has the form "host" or "namespace/host".
func ProviderService(p *meshconfig.MeshConfig_ExtensionProvider) (service string, port uint32) {
	if g := p.GetEnvoyExtAuthzGrpc(); g != nil {
		return g.GetService(), g.GetPort()
	}
	h := p.GetEnvoyExtAuthzHttp()
	return h.GetService(), h.GetPort()
}

// SDSService returns the service and port of the first extension provider that is an SDS server, as in Istio. Names
// that begin with sds:// in credentialName refer to this server. SDSService returns "" if there is no such provider.
func SDSService(mesh *meshconfig.MeshConfig) (service string, port uint32) {
	for _, p := range mesh.GetExtensionProviders() {
		if s := p.GetSds(); s != nil {
			return s.GetService(), s.GetPort()
		}
	}
	return "", 0
}

// SplitProviderService parses "namespace/host" or "host".
func SplitProviderService(service string) (namespace, host string) {
	if namespace, host, ok := strings.Cut(service, "/"); ok {
		return namespace, host
	}
	return "", service
}

// IsProviderService reports whether service, as written in an extension provider, refers to svc or one of its aliases.
func IsProviderService(svc *registry.Service, service string) bool {
	namespace, host := SplitProviderService(service)
	for known := range svc.WithAliases() {
		if known.Hostname == host && (namespace == "" || known.Namespace == namespace) {
			return true
		}
	}
	return false
}

// addProviders adds the services of authorizers, collectors and SDS servers to a scope that a Sidecar limits.
func (w *meshIndex) addProviders(sc *Scope) {
	for _, p := range w.mesh.GetExtensionProviders() {
		authorizer, _ := ProviderService(p)
		collector, _ := CollectorService(p)
		for _, service := range []string{authorizer, collector, p.GetSds().GetService()} {
			if _, host := SplitProviderService(service); host != "" {
				sc.targets[host] = struct{}{}
			}
		}
	}
}

// IsDryRun reports whether a policy is in dry-run mode. Envoy only counts and logs the results of such a policy.
func IsDryRun(r *config.Resource) bool {
	return strings.EqualFold(r.Annotations[config.DryRunAnnotation], "true")
}
