package analysis

import (
	security "istio.io/api/security/v1beta1"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
)

// checkExternalAuthorizer reports an external authorizer that proxies cannot use. Proxies then deny the requests that
// match the policy's rules.
func (c *snapshotCheck) checkExternalAuthorizer(p snapshot.Policy) {
	name := p.Spec.GetProvider().GetName()
	report := func(message, remedy string) {
		c.reportWarning(config.UnknownProvider, p.Resource, "spec.provider.name", name, message+", so proxies deny the requests that match the policy's rules", remedy)
	}
	provider := snapshot.FindProvider(c.s.Mesh, name)
	service, port := snapshot.ProviderService(provider)
	switch {
	case provider == nil:
		report("the mesh configuration has no extension provider with this name", "add the provider to extensionProviders, or correct the name")
		return
	case service == "":
		report("the extension provider is not an external authorizer", "use a provider with envoyExtAuthzGrpc or envoyExtAuthzHttp")
		return
	}
	_, host := snapshot.SplitProviderService(service)
	for _, svc := range c.s.Registry.ByHostname(c.s.Registry.Target(host)) {
		if !snapshot.IsProviderService(svc, service) || !svc.IsKnownAs(host, p.Namespace) {
			continue
		}
		if _, ok := svc.Port(port); ok {
			return
		}
	}
	report("the external authorizer "+service+" is not a service that the policy's namespace can see, or does not have the provider's port", "add a Service or ServiceEntry for the authorizer, with the provider's port")
}

// checkPolicyAction reports actions that proxies do not enforce as the author may expect.
func (c *snapshotCheck) checkPolicyAction(p snapshot.Policy) {
	if p.Spec.GetAction() == security.AuthorizationPolicy_CUSTOM {
		c.checkExternalAuthorizer(p)
	}
	if enforced := p.Spec.GetAction() == security.AuthorizationPolicy_CUSTOM || p.Spec.GetAction() == security.AuthorizationPolicy_AUDIT; enforced && snapshot.IsDryRun(p.Resource) {
		c.reportNoEffect(p.Resource, "metadata.annotations", config.DryRunAnnotation, "only ALLOW and DENY policies support dry-run mode, so proxies enforce this policy", "remove the annotation, or the policy")
	}
}
