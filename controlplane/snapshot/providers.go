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

// ProviderService returns the service and port of an external authorizer; "" for other providers. The service is "host"
// or "namespace/host".
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

// IsDryRun reports whether a policy is in dry-run mode: its results are only counted and logged.
func IsDryRun(r *config.Resource) bool {
	return strings.EqualFold(r.Annotations[config.DryRunAnnotation], "true")
}

// checkExternalAuthorizer reports an unusable external authorizer. Requests that match its rules are then denied.
func (c *checker) checkExternalAuthorizer(p Policy) {
	name := p.Spec.GetProvider().GetName()
	report := func(message, remedy string) {
		c.reportWarning(config.UnknownProvider, p.Resource, "spec.provider.name", name, message+": what the rules match is denied", remedy)
	}
	provider := FindProvider(c.w.mesh, name)
	service, port := ProviderService(provider)
	switch {
	case provider == nil:
		report("the mesh configuration has no such extension provider", "add it to extensionProviders, or correct the name")
		return
	case service == "":
		report("the extension provider is no external authorizer", "use one with envoyExtAuthzGrpc or envoyExtAuthzHttp")
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
	report("the external authorizer "+service+" is not a service that is visible here, or does not have that port", "add a Service or ServiceEntry for it, with the provider's port")
}

// isKnownAs reports whether a service is visible in a namespace by this host.
func isKnownAs(svc *registry.Service, host, namespace string) bool {
	for known := range svc.WithAliases() {
		if known.Hostname == host && known.VisibleTo(namespace) && svc.VisibleTo(namespace) {
			return true
		}
	}
	return false
}

// checkPolicyAction reports actions that are not enforced as the author may expect.
func (c *checker) checkPolicyAction(p Policy) {
	if p.Spec.GetAction() == security.AuthorizationPolicy_CUSTOM {
		c.checkExternalAuthorizer(p)
	}
	if enforced := p.Spec.GetAction() == security.AuthorizationPolicy_CUSTOM || p.Spec.GetAction() == security.AuthorizationPolicy_AUDIT; enforced && IsDryRun(p.Resource) {
		c.reportNoEffect(p.Resource, "metadata.annotations", config.DryRunAnnotation, "only policies that allow or deny can be tried: this one is in force", "remove the annotation, or the policy")
	}
}
