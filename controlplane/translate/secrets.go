package translate

import (
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
)

// The names under which gateways get what is in Kubernetes Secrets.
const (
	secretScheme    = "kubernetes://"
	authoritySuffix = "-cacert"
)

// kubernetesSecret asks the control plane for a certificate, or for the certificates of authorities.
func kubernetesSecret(name string) *tlsv3.SdsSecretConfig {
	return &tlsv3.SdsSecretConfig{Name: secretScheme + name, SdsConfig: ads()}
}

// certificate is the Secret of a name, as far as the proxy may have it: it has to have proved to be of the Secret's
// namespace.
func (v view) certificate(name string) *config.SecretSpec {
	if !v.mayHaveSecrets() {
		return nil
	}
	return v.own(v.s.Certificate(v.p.Namespace, name))
}

// authorities are the certificates of those who sign the clients', as certificate is.
func (v view) authorities(name string) *config.SecretSpec {
	if !v.mayHaveSecrets() {
		return nil
	}
	return v.own(v.s.Authorities(v.p.Namespace, name))
}

// own is the Secret if the proxy's service account may have it.
func (v view) own(s *config.SecretSpec) *config.SecretSpec {
	if s == nil || !s.For(v.p.ServiceAccount) {
		return nil
	}
	return s
}

func (v view) mayHaveSecrets() bool { return v.p.Proven && !v.p.Proxyless }

// credentialNames are the Secrets with the certificates of a server.
func credentialNames(settings *networking.ServerTLSSettings) []string {
	if names := settings.GetCredentialNames(); len(names) > 0 {
		return names
	}
	if name := settings.GetCredentialName(); name != "" {
		return []string{name}
	}
	return nil
}

// authorityName is the Secret with the authorities of a server's clients; empty when it has none, or has them in a file.
func authorityName(settings *networking.ServerTLSSettings) string {
	switch settings.GetMode() {
	case networking.ServerTLSSettings_MUTUAL, networking.ServerTLSSettings_OPTIONAL_MUTUAL:
	default:
		return ""
	}
	if name := settings.GetCaCertCredentialName(); name != "" {
		return name
	}
	if names := credentialNames(settings); len(names) > 0 && settings.GetCaCertificates() == "" {
		return names[0]
	}
	return ""
}

// secretNames are the names of all secrets that the proxy's servers refer to, and the rules for what it calls.
func (v view) secretNames() []string {
	if !v.mayHaveSecrets() {
		return nil
	}
	var out []string
	add := func(name string) {
		if !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	for _, settings := range v.ending() {
		for _, name := range credentialNames(settings) {
			add(secretScheme + name)
		}
		if name := authorityName(settings); name != "" {
			add(secretScheme + name + authoritySuffix)
		}
	}
	if v.s.AnyCredentialed() {
		for _, c := range outboundClusters(v.s, v.p) {
			if c.credential.name != "" {
				add(secretScheme + c.credential.name)
				add(secretScheme + c.credential.name + authoritySuffix)
			}
		}
	}
	return out
}

// ending are the settings of all TLS that ends at the proxy, but for the mesh's own.
func (v view) ending() []*networking.ServerTLSSettings {
	var out []*networking.ServerTLSSettings
	if v.p.Type == Router {
		for _, s := range v.servers() {
			out = append(out, s.spec.GetTls())
		}
		return out
	}
	for _, listener := range v.scope.Spec().GetIngress() {
		out = append(out, listener.GetTls())
	}
	return out
}

// Secrets are the named certificates that documents refer to for the proxy; names that lead nowhere are left out. No names at
// all: all that there are. They are made for each proxy anew: nothing of them is kept.
func Secrets(s *snapshot.Snapshot, p *Proxy, names []string) ([]*xds.Resource, error) {
	v := newView(s, p)
	referred := v.secretNames()
	if len(names) == 0 {
		names = referred
	}
	var out []*xds.Resource
	for _, name := range names {
		if !slices.Contains(referred, name) {
			continue
		}
		secret := v.secret(name)
		if secret == nil {
			continue
		}
		r, err := xds.NewResource(name, secret)
		if err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	return out, nil
}

func (v view) secret(name string) *tlsv3.Secret {
	bare := strings.TrimPrefix(name, secretScheme)
	if ca, ok := strings.CutSuffix(bare, authoritySuffix); ok {
		if found := v.authorities(ca); found != nil {
			return &tlsv3.Secret{Name: name, Type: &tlsv3.Secret_ValidationContext{ValidationContext: trust(found)}}
		}
	}
	found := v.certificate(bare)
	if found == nil {
		return nil
	}
	return &tlsv3.Secret{Name: name, Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{
		CertificateChain: inlineBytes(found.Certificate), PrivateKey: inlineBytes(found.Key),
	}}}
}

// trust is in the certificates of authorities, but for what they have revoked. Of a chain only the client's own certificate
// is looked up: who gives a list need not have one for every authority above.
func trust(s *config.SecretSpec) *tlsv3.CertificateValidationContext {
	out := &tlsv3.CertificateValidationContext{TrustedCa: inlineBytes(s.Authorities)}
	if len(s.Revoked) > 0 {
		out.Crl, out.OnlyVerifyLeafCertCrl = inlineBytes(s.Revoked), true
	}
	return out
}

func inlineBytes(b []byte) *corev3.DataSource {
	return &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: b}}
}
