package snapshot

import (
	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// secrets contains the Secrets with a certificate, CA certificates, or registry credentials.
type secrets struct {
	byKey map[config.Key]*config.SecretSpec
	// byName contains the Secrets of all namespaces by name.
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

// Certificate returns the Secret that is called name, or nil if it does not exist or contains no certificate.
func (s *Snapshot) Certificate(namespace, name string) *config.SecretSpec {
	secret := s.secrets.byKey[config.Key{Kind: config.Secret, Namespace: namespace, Name: name}]
	if secret == nil || len(secret.Certificate) == 0 {
		return nil
	}
	return secret
}

// CASuffix is the suffix of the name of a Secret with CA certificates. Without the suffix, the name is the name of the
// Secret with the server's certificate.
const CASuffix = "-cacert"

// CACertificates returns the Secret with the CA certificates that verify the clients of a server, or nil if there is
// none. name is the name of the Secret with the server's certificate. The CA certificates are in the Secret with the
// suffix CASuffix, or else in the Secret that is called name.
func (s *Snapshot) CACertificates(namespace, name string) *config.SecretSpec {
	for _, candidate := range []string{name + CASuffix, name} {
		secret := s.secrets.byKey[config.Key{Kind: config.Secret, Namespace: namespace, Name: candidate}]
		if secret != nil && len(secret.Authorities) > 0 {
			return secret
		}
	}
	return nil
}
