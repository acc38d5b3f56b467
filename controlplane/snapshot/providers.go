package snapshot

import (
	"strings"

	meshconfig "istio.io/api/mesh/v1alpha1"
	security "istio.io/api/security/v1beta1"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
)

// FindProvider returns the extension provider with a name, or nil.
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

// SplitProviderService parses "namespace/host" or "host".
func SplitProviderService(service string) (namespace, host string) {
	if namespace, host, ok := strings.Cut(service, "/"); ok {
		return namespace, host
	}
	return "", service
}

// IsProviderService reports whether a service or one of its aliases is the service of a provider.
func IsProviderService(svc *registry.Service, service string) bool {
	namespace, host := SplitProviderService(service)
	for known := range svc.WithAliases() {
		if known.Hostname == host && (namespace == "" || known.Namespace == namespace) {
			return true
		}
	}
	return false
}

// addProviders adds the services of authorizers and collectors to a scope that a Sidecar limits.
func (w *meshIndex) addProviders(sc *Scope) {
	for _, p := range w.mesh.GetExtensionProviders() {
		authorizer, _ := ProviderService(p)
		collector, _ := CollectorService(p)
		for _, service := range []string{authorizer, collector} {
			if _, host := SplitProviderService(service); host != "" {
				sc.targets[host] = struct{}{}
			}
		}
	}
}

// IsDryRun reports whether a policy is in dry-run mode. Envoy then only counts and logs its results.
func IsDryRun(r *config.Resource) bool {
	return strings.EqualFold(r.Annotations[config.DryRunAnnotation], "true")
}

// checkExternalAuthorizer reports an external authorizer that proxies cannot use. Proxies then deny the requests that
// match the policy's rules.
func (c *checker) checkExternalAuthorizer(p Policy) {
	name := p.Spec.GetProvider().GetName()
	report := func(message, remedy string) {
		c.reportWarning(config.UnknownProvider, p.Resource, "spec.provider.name", name, message+", so proxies deny the requests that match the policy's rules", remedy)
	}
	provider := FindProvider(c.w.mesh, name)
	service, port := ProviderService(provider)
	switch {
	case provider == nil:
		report("the mesh configuration has no extension provider with this name", "add it to extensionProviders, or correct the name")
		return
	case service == "":
		report("the extension provider is not an external authorizer", "use a provider with envoyExtAuthzGrpc or envoyExtAuthzHttp")
		return
	}
	_, host := SplitProviderService(service)
	for _, svc := range c.w.byHost[c.s.Registry.Target(host)] {
		if !IsProviderService(svc, service) || !isKnownAs(svc, host, p.Namespace) {
			continue
		}
		if _, ok := svc.Port(port); ok {
			return
		}
	}
	report("the external authorizer "+service+" is not a service that the policy's namespace can see, or does not have the provider's port", "add a Service or ServiceEntry for the authorizer, with the provider's port")
}

// isKnownAs reports whether a namespace can see the service under this host name.
func isKnownAs(svc *registry.Service, host, namespace string) bool {
	for known := range svc.WithAliases() {
		if known.Hostname == host && known.VisibleTo(namespace) && svc.VisibleTo(namespace) {
			return true
		}
	}
	return false
}

// checkPolicyAction reports actions that proxies do not enforce as the author may expect.
func (c *checker) checkPolicyAction(p Policy) {
	if p.Spec.GetAction() == security.AuthorizationPolicy_CUSTOM {
		c.checkExternalAuthorizer(p)
	}
	if enforced := p.Spec.GetAction() == security.AuthorizationPolicy_CUSTOM || p.Spec.GetAction() == security.AuthorizationPolicy_AUDIT; enforced && IsDryRun(p.Resource) {
		c.reportNoEffect(p.Resource, "metadata.annotations", config.DryRunAnnotation, "only ALLOW and DENY policies support dry-run mode, so proxies enforce this policy", "remove the annotation, or the policy")
	}
}
