package snapshot

import (
	"strings"

	meshconfig "istio.io/api/mesh/v1alpha1"
	security "istio.io/api/security/v1beta1"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
)

// FindProvider finds an extension provider of a mesh configuration by its name; nil when there is none.
func FindProvider(mesh *meshconfig.MeshConfig, name string) *meshconfig.MeshConfig_ExtensionProvider {
	for _, p := range mesh.GetExtensionProviders() {
		if p.GetName() == name {
			return p
		}
	}
	return nil
}

// ProviderService is the service and port that an external authorizer is asked at; "" when the provider is of another
// sort. The service is a host, or namespace/host.
func ProviderService(p *meshconfig.MeshConfig_ExtensionProvider) (service string, port uint32) {
	if g := p.GetEnvoyExtAuthzGrpc(); g != nil {
		return g.GetService(), g.GetPort()
	}
	h := p.GetEnvoyExtAuthzHttp()
	return h.GetService(), h.GetPort()
}

// SplitProviderService reads "namespace/host" or "host".
func SplitProviderService(service string) (namespace, host string) {
	if namespace, host, ok := strings.Cut(service, "/"); ok {
		return namespace, host
	}
	return "", service
}

// IsProviderService says whether a service, or an alias of it, is the one that a provider names.
func IsProviderService(svc *registry.Service, service string) bool {
	namespace, host := SplitProviderService(service)
	for known := range svc.WithAliases() {
		if known.Hostname == host && (namespace == "" || known.Namespace == namespace) {
			return true
		}
	}
	return false
}

// addProviders lets a narrowed scope see who is to be asked, and told.
func (w *world) addProviders(sc *Scope) {
	for _, p := range w.mesh.GetExtensionProviders() {
		asked, _ := ProviderService(p)
		told, _ := CollectorService(p)
		for _, service := range []string{asked, told} {
			if _, host := SplitProviderService(service); host != "" {
				sc.targets[host] = struct{}{}
			}
		}
	}
}

// DryRun says whether a policy is only tried: what it would do is counted and logged.
func DryRun(r *config.Resource) bool {
	return strings.EqualFold(r.Annotations[dryRunAnnotation], "true")
}

const dryRunAnnotation = "istio.io/dry-run"

// custom warns of an external authorizer that cannot be asked, so that what would be asked about is denied.
func (c *checker) custom(p Policy) {
	name := p.Spec.GetProvider().GetName()
	say := func(message, remedy string) {
		c.find(config.UnknownProvider, p.Resource, "spec.provider.name", name, message+": what the rules match is denied", remedy)
	}
	provider := FindProvider(c.w.mesh, name)
	service, port := ProviderService(provider)
	switch {
	case provider == nil:
		say("the mesh configuration has no such extension provider", "add it to extensionProviders, or correct the name")
		return
	case service == "":
		say("the extension provider is no external authorizer", "use one with envoyExtAuthzGrpc or envoyExtAuthzHttp")
		return
	}
	_, host := SplitProviderService(service)
	for _, svc := range c.w.byHost[c.s.Registry.Target(host)] {
		if !IsProviderService(svc, service) || !knownAs(svc, host, p.Namespace) {
			continue
		}
		if _, ok := svc.Port(port); ok {
			return
		}
	}
	say("the external authorizer "+service+" is no service that is seen here, or has not that port", "add a Service or ServiceEntry for it, with the provider's port")
}

// knownAs says whether a service, and that it is called so, is seen from a namespace.
func knownAs(svc *registry.Service, host, namespace string) bool {
	for known := range svc.WithAliases() {
		if known.Hostname == host && known.VisibleTo(namespace) && svc.VisibleTo(namespace) {
			return true
		}
	}
	return false
}

// policyAction warns of what is not done as the policy's author expects.
func (c *checker) policyAction(p Policy) {
	if p.Spec.GetAction() == security.AuthorizationPolicy_CUSTOM {
		c.custom(p)
	}
	if enforced := p.Spec.GetAction() == security.AuthorizationPolicy_CUSTOM || p.Spec.GetAction() == security.AuthorizationPolicy_AUDIT; enforced && DryRun(p.Resource) {
		c.warn(p.Resource, "metadata.annotations", dryRunAnnotation, "only policies that allow or deny can be tried: this one is in force", "remove the annotation, or the policy")
	}
}
