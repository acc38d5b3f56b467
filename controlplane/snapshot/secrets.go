package snapshot

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"slices"
	"strings"
	"time"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// secrets are those Secrets that have a certificate, the certificates of authorities, or what registries ask for.
type secrets struct {
	byKey map[config.Key]*config.SecretSpec
	// byName has the names that there are in any namespace.
	byName map[string][]*config.SecretSpec
	all    []*config.Resource
}

func newSecrets(resources []*config.Resource) *secrets {
	s := &secrets{all: resources, byKey: map[config.Key]*config.SecretSpec{}, byName: map[string][]*config.SecretSpec{}}
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

// certificates warns of those that nobody takes at this time. Of what is in them nothing is told but when they are good.
func (c *checker) certificates(now time.Time) {
	for _, r := range c.s.secrets.all {
		block, _ := pem.Decode(r.Spec.(*config.SecretSpec).Certificate)
		if block == nil {
			continue
		}
		own, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			continue
		}
		message := ""
		switch {
		case now.After(own.NotAfter):
			message = "the certificate ended at " + own.NotAfter.UTC().Format(time.RFC3339)
		case now.Before(own.NotBefore):
			message = "the certificate is not good before " + own.NotBefore.UTC().Format(time.RFC3339)
		default:
			continue
		}
		c.find(config.CertificateOut, r, config.CertificateField(r), "", message, "put in a certificate that is good now")
	}
}

// gateways warns of certificates that are nowhere, or where no workload of the Gateway is: which namespace they have to be
// in, those decide.
func (c *checker) gateways() {
	for _, g := range c.s.gateways {
		c.at = c.workloadNamespaces(g.Spec.GetSelector())
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

// workloadNamespaces are those where workloads are known that have the labels; nil when there are none.
func (c *checker) workloadNamespaces(labels map[string]string) []string {
	var found []string
	for _, namespace := range c.namespacesOf("", true) {
		if some, _ := c.s.Registry.Workloads(namespace, labels); len(some) > 0 {
			found = append(found, namespace)
		}
	}
	return found
}

// clientCredentials warns of those that a rule names for what its callers show or believe.
func (c *checker) clientCredentials(r *config.Resource, field string, policy *networking.TrafficPolicy) {
	c.clientCredential(r, field+".tls", policy.GetTls())
	for i, ps := range policy.GetPortLevelSettings() {
		c.clientCredential(r, fmt.Sprintf("%s.portLevelSettings[%d].tls", field, i), ps.GetTls())
	}
}

func (c *checker) clientCredential(r *config.Resource, field string, settings *networking.ClientTLSSettings) {
	name, message := settings.GetCredentialName(), ""
	switch {
	case name == "":
		return
	case settings.GetMode() == networking.ClientTLSSettings_MUTUAL && !c.anySecret(name, false):
		message = "there is no Secret of this name with a certificate and key"
	case !settings.GetInsecureSkipVerify().GetValue() && !c.anySecret(name, true):
		message = "no Secret of this name has the certificates of those who sign the server's"
	default:
		return
	}
	c.find(config.UnknownCredential, r, field+".credentialName", name, message+": calls are answered with 503",
		"add a Secret with tls.crt, tls.key and ca.crt, as far as the mode needs them, to the namespace of the callers")
}

// anySecret says whether any namespace has a Secret with a certificate, or with authorities, for a name.
func (c *checker) anySecret(name string, authorities bool) bool {
	candidates := c.s.secrets.byName[name]
	if authorities {
		candidates = slices.Concat(candidates, c.s.secrets.byName[strings.TrimSuffix(name, authoritySuffix)], c.s.secrets.byName[name+authoritySuffix])
	}
	return slices.ContainsFunc(candidates, func(s *config.SecretSpec) bool {
		return authorities && len(s.Authorities) > 0 || !authorities && len(s.Certificate) > 0
	})
}

func (c *checker) serverCredential(r *config.Resource, field, name, part string) {
	authorities := part == "authorities"
	if c.anySecret(name, authorities) {
		c.credentialElsewhere(r, field, name, authorities)
		return
	}
	message, remedy := "there is no Secret of this name with a certificate: the server is not served", "add a Secret with tls.crt and tls.key to the namespace of the workload that serves it"
	if authorities {
		message, remedy = "no Secret has the certificates of those who sign the clients': the server is not served", "add ca.crt to the Secret, or a Secret "+name+authoritySuffix
	}
	c.find(config.UnknownCredential, r, field, name, message, remedy)
}

// credentialElsewhere warns where the Secret is in none of the namespaces of the workloads that are known to serve it.
func (c *checker) credentialElsewhere(r *config.Resource, field, name string, authorities bool) {
	has := func(namespace string) bool {
		if authorities {
			return c.s.Authorities(namespace, strings.TrimSuffix(name, authoritySuffix)) != nil || c.s.Authorities(namespace, name) != nil
		}
		return c.s.Certificate(namespace, name) != nil
	}
	if len(c.at) == 0 || slices.ContainsFunc(c.at, has) {
		return
	}
	where := strings.Join(c.at, ", ")
	c.find(config.UnknownCredential, r, field, name, "the Secret is not in the namespace of the workload that serves it, which is "+where+": the server is not served",
		"put the Secret into the namespace "+where)
}
