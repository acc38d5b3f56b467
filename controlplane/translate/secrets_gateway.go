package translate

import (
	"slices"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
)

// mayServe reports whether the proxy may receive Secrets of a Gateway's server: the Gateway selects a known workload
// with the proxy's account, or each existing Secret of the server lists its accounts. The caller must also check the
// list of each Secret (IsAllowedFor). The labels that the node reports have no effect, because any proxy of the
// namespace can report the labels that the Gateway selects.
func (v proxyView) mayServe(s server) bool {
	return v.isGatewayAccount(s.gw) || !slices.ContainsFunc(v.allSecrets(s), v.isUnlisted)
}

// isGatewayAccount reports whether the Gateway selects a known workload with the proxy's account. An auto-registered
// workload also qualifies, because it cannot choose its labels: they are the labels of its WorkloadGroup.
func (v proxyView) isGatewayAccount(gw snapshot.Gateway) bool {
	return v.p.RegisteredAddress.IsValid() || v.s.IsGatewayAccount(gw, v.p.Namespace, v.p.ServiceAccount)
}

// isUnlisted reports whether the Secret exists but does not specify which service accounts may use it.
func (v proxyView) isUnlisted(name string) bool {
	isUnlisted := func(s *config.SecretSpec) bool { return s != nil && s.Accounts == nil }
	return isUnlisted(v.s.Certificate(v.p.Namespace, name)) || isUnlisted(v.s.CACertificates(v.p.Namespace, name))
}

// allSecrets returns the names of the Secrets of a server.
func (v proxyView) allSecrets(s server) []string {
	names := v.serverSecrets(s.spec.GetTls())
	if name := v.authoritySecret(s.spec.GetTls()); name != "" {
		names = append(names, name)
	}
	return names
}

// WithheldSecrets returns the names of Secrets that a gateway does not receive because of its service account. A
// DestinationRule, or a Gateway that selects the labels in the node metadata, refers to these Secrets.
func WithheldSecrets(s *snapshot.Snapshot, p *Proxy) []string {
	v := newView(s, p)
	if p.Type != Router || !v.mayHaveSecrets() {
		return nil
	}
	var withheld []string
	for _, server := range v.servers() {
		for _, name := range v.serverSecrets(server.spec.GetTls()) {
			secret := s.Certificate(p.Namespace, name)
			if secret != nil && (!secret.IsAllowedFor(p.ServiceAccount) || !v.mayServe(server)) && !slices.Contains(withheld, name) {
				withheld = append(withheld, name)
			}
		}
	}
	return v.appendWithheldFromRules(withheld)
}

// appendWithheldFromRules appends the Secrets of DestinationRules that the gateway does not receive.
func (v proxyView) appendWithheldFromRules(withheld []string) []string {
	if !v.s.HasCredentials() || v.s.IsAnyGatewayAccount(v.p.Namespace, v.p.ServiceAccount) {
		return withheld
	}
	for _, c := range listServiceClusters(v.s, v.p) {
		if name := c.credential.name; name != "" && !c.credential.external && v.isUnlisted(name) && !slices.Contains(withheld, name) {
			withheld = append(withheld, name)
		}
	}
	return withheld
}
