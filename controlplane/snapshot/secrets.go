package snapshot

import (
	"fmt"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// secrets are those Secrets that have a certificate or the certificates of authorities.
type secrets struct {
	byKey map[config.Key]*config.SecretSpec
	// byName has the names that there are in any namespace.
	byName map[string][]*config.SecretSpec
}

func newSecrets(resources []*config.Resource) *secrets {
	s := &secrets{byKey: map[config.Key]*config.SecretSpec{}, byName: map[string][]*config.SecretSpec{}}
	for _, r := range resources {
		spec := r.Spec.(*config.SecretSpec)
		s.byKey[r.Key] = spec
		s.byName[r.Name] = append(s.byName[r.Name], spec)
	}
	return s
}

// Certificate is the Secret with the certificate and key of a name; nil when there is none.
func (s *Snapshot) Certificate(namespace, name string) *config.SecretSpec {
	secret := s.secrets.byKey[config.Key{Kind: config.Secret, Namespace: namespace, Name: name}]
	if secret == nil || len(secret.Certificate) == 0 {
		return nil
	}
	return secret
}

// authoritySuffix is on the name of a Secret that has the certificates of authorities for the one without it.
const authoritySuffix = "-cacert"

// Authorities is the Secret with the certificates of those who sign the clients' certificates for a name: one by itself, or
// the one that has the server's certificate. Nil when there is none.
func (s *Snapshot) Authorities(namespace, name string) *config.SecretSpec {
	for _, candidate := range []string{name + authoritySuffix, name} {
		secret := s.secrets.byKey[config.Key{Kind: config.Secret, Namespace: namespace, Name: candidate}]
		if secret != nil && len(secret.Authorities) > 0 {
			return secret
		}
	}
	return nil
}

// gateways warns of certificates that are nowhere. Which namespace they have to be in, the gateways' workloads decide.
func (c *checker) gateways() {
	for _, g := range c.s.gateways {
		for i, server := range g.Spec.GetServers() {
			c.serverCredentials(g.Resource, fmt.Sprintf("spec.servers[%d].tls", i), server.GetTls())
		}
	}
}

func (c *checker) serverCredentials(r *config.Resource, field string, settings *networking.ServerTLSSettings) {
	if name := settings.GetCredentialName(); name != "" {
		c.serverCredential(r, field+".credentialName", name, "certificate and key")
	}
	for i, name := range settings.GetCredentialNames() {
		c.serverCredential(r, fmt.Sprintf("%s.credentialNames[%d]", field, i), name, "certificate and key")
	}
	if name := settings.GetCaCertCredentialName(); name != "" {
		c.serverCredential(r, field+".caCertCredentialName", name, "authorities")
		return
	}
	mutual := settings.GetMode() == networking.ServerTLSSettings_MUTUAL || settings.GetMode() == networking.ServerTLSSettings_OPTIONAL_MUTUAL
	if name := settings.GetCredentialName(); mutual && name != "" && settings.GetCaCertificates() == "" {
		c.serverCredential(r, field+".credentialName", name, "authorities")
	}
}

func (c *checker) serverCredential(r *config.Resource, field, name, part string) {
	candidates := c.s.secrets.byName[strings.TrimSuffix(name, authoritySuffix)]
	if part == "authorities" {
		candidates = append(candidates[:len(candidates):len(candidates)], c.s.secrets.byName[name+authoritySuffix]...)
	} else {
		candidates = c.s.secrets.byName[name]
	}
	candidates = append(candidates[:len(candidates):len(candidates)], c.s.secrets.byName[name]...)
	for _, secret := range candidates {
		if part == "authorities" && len(secret.Authorities) > 0 || part != "authorities" && len(secret.Certificate) > 0 {
			return
		}
	}
	message, remedy := "there is no Secret of this name with a certificate: the server is not served", "add a Secret with tls.crt and tls.key to the namespace of the gateway's workload"
	if part == "authorities" {
		message, remedy = "no Secret has the certificates of those who sign the clients': the server is not served", "add ca.crt to the Secret, or a Secret "+name+authoritySuffix
	}
	c.find(config.UnknownCredential, r, field, name, message, remedy)
}
