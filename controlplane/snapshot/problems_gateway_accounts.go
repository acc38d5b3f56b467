package snapshot

import (
	"fmt"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// checkGatewayAccounts reports the Secrets of a server that no account may use.
func (c *checker) checkGatewayAccounts(g Gateway, field string, settings *networking.ServerTLSSettings) {
	if name := settings.GetCredentialName(); name != "" {
		c.checkGatewayAccount(g, field+".credentialName", name)
	}
	for i, name := range settings.GetCredentialNames() {
		c.checkGatewayAccount(g, fmt.Sprintf("%s.credentialNames[%d]", field, i), name)
	}
}

// checkGatewayAccount reports a Secret that no account may use.
func (c *checker) checkGatewayAccount(g Gateway, field, name string) {
	exists := false
	for _, r := range c.s.resources[config.Secret] {
		if r.Name != name {
			continue
		}
		isKnown := func(account string) bool { return account != "" }
		if r.Spec.(*config.SecretSpec).Accounts != nil || c.s.anyGatewayAccount(g, r.Namespace, isKnown) {
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
