package analysis

import (
	"fmt"
	"slices"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
)

// checkGatewayAccounts reports each Secret of a Gateway's server that no service account may use.
func (c *snapshotCheck) checkGatewayAccounts(g snapshot.Gateway, field string, settings *networking.ServerTLSSettings) {
	if name := settings.GetCredentialName(); name != "" {
		c.checkGatewayAccount(g, field+".credentialName", name)
	}
	for i, name := range settings.GetCredentialNames() {
		c.checkGatewayAccount(g, fmt.Sprintf("%s.credentialNames[%d]", field, i), name)
	}
}

// checkGatewayAccount reports the Secret called name if it exists but no service account of a gateway may use it.
func (c *snapshotCheck) checkGatewayAccount(g snapshot.Gateway, field, name string) {
	name = config.SecretName(name)
	exists := false
	for _, r := range c.s.Resources(config.Secret) {
		if r.Name != name {
			continue
		}
		if r.Spec.(*config.SecretSpec).Accounts != nil || c.s.HasGatewayAccount(g, r.Namespace) {
			return
		}
		exists = true
	}
	if exists {
		c.reportWarning(config.GatewayAccountUnknown, g.Resource, field, name,
			"the Gateway selects no known workload with a service account in the Secret's namespace, so no proxy receives the Secret, and the gateway does not serve this server",
			"list the gateway's service account in the Secret's annotation "+config.AccountsAnnotation+", or add a WorkloadEntry with labels and serviceAccount for the gateway")
	}
}

// checkCallerAccount reports the Secret of a DestinationRule for gateways, if the Secret exists but no service account
// of a gateway may use it.
func (c *snapshotCheck) checkCallerAccount(r *config.Resource, field, name string) {
	if r.Spec.(*networking.DestinationRule).GetWorkloadSelector() != nil {
		return // for sidecars
	}
	exists := false
	for _, secret := range c.s.Resources(config.Secret) {
		if secret.Name != name {
			continue
		}
		hasAccount := func(g snapshot.Gateway) bool { return c.s.HasGatewayAccount(g, secret.Namespace) }
		if secret.Spec.(*config.SecretSpec).Accounts != nil || slices.ContainsFunc(c.s.AllGateways(), hasAccount) {
			return
		}
		exists = true
	}
	if exists {
		c.reportWarning(config.GatewayAccountUnknown, r, field, name,
			"no Gateway selects a known workload with a service account in the Secret's namespace, so no gateway receives the Secret, and requests through gateways fail with status 503",
			"list the gateway's service account in the Secret's annotation "+config.AccountsAnnotation+", or add a WorkloadEntry with labels and serviceAccount for the gateway")
	}
}
