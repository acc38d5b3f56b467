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

// Certificate returns the Secret with a certificate and key, or nil.
func (s *Snapshot) Certificate(namespace, name string) *config.SecretSpec {
	secret := s.secrets.byKey[config.Key{Kind: config.Secret, Namespace: namespace, Name: name}]
	if secret == nil || len(secret.Certificate) == 0 {
		return nil
	}
	return secret
}

// CASuffix is the suffix of the name of a Secret with CA certificates. The name without the suffix is that of the
// Secret with the server's certificate.
const CASuffix = "-cacert"

// CACertificates returns the Secret with the CA certificates for clients, or nil. It is the Secret with CASuffix, or
// else the Secret with the server's certificate.
func (s *Snapshot) CACertificates(namespace, name string) *config.SecretSpec {
	for _, candidate := range []string{name + CASuffix, name} {
		secret := s.secrets.byKey[config.Key{Kind: config.Secret, Namespace: namespace, Name: candidate}]
		if secret != nil && len(secret.Authorities) > 0 {
			return secret
		}
	}
	return nil
}
