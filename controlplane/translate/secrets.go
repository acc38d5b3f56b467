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

// Scheme and suffix of the names of SDS resources whose content is from Kubernetes Secrets.
const (
	secretScheme    = "kubernetes://"
	authoritySuffix = "-cacert"
)

// kubernetesSecret returns a reference to a certificate, or to CA certificates, that the control plane delivers by SDS.
func kubernetesSecret(name string) *tlsv3.SdsSecretConfig {
	return &tlsv3.SdsSecretConfig{Name: secretScheme + name, SdsConfig: ads()}
}

// certificateSecret returns the Secret that is called name. It returns nil if the Secret does not exist or the proxy
// may not use it. The proxy must have proved that it belongs to the Secret's namespace.
func (v proxyView) certificateSecret(name string) *config.SecretSpec {
	if !v.mayHaveSecrets() {
		return nil
	}
	return v.allowedSecret(v.s.Certificate(v.p.Namespace, name))
}

// caSecret is like certificateSecret, but for a Secret with CA certificates.
func (v proxyView) caSecret(name string) *config.SecretSpec {
	if !v.mayHaveSecrets() {
		return nil
	}
	return v.allowedSecret(v.s.CACertificates(v.p.Namespace, name))
}

// allowedSecret returns s if the proxy's service account may use it. Otherwise it returns nil.
func (v proxyView) allowedSecret(s *config.SecretSpec) *config.SecretSpec {
	if s == nil || !s.IsAllowedFor(v.p.ServiceAccount) {
		return nil
	}
	return s
}

func (v proxyView) mayHaveSecrets() bool { return v.p.Authenticated && !v.p.Proxyless }

// credentialNames returns the values of credentialName for the certificates of a server.
func credentialNames(settings *networking.ServerTLSSettings) []string {
	if names := settings.GetCredentialNames(); len(names) > 0 {
		return names
	}
	if name := settings.GetCredentialName(); name != "" {
		return []string{name}
	}
	return nil
}

// authorityName returns the credentialName of the CA certificates that verify a server's clients. It returns "" if the
// server does not verify clients, or reads the CA certificates from a file.
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

// serverSecrets returns the names of the Secrets with a server's certificates. It omits certificates that an SDS server
// of the user provides.
func (v proxyView) serverSecrets(settings *networking.ServerTLSSettings) []string {
	var out []string
	for _, name := range credentialNames(settings) {
		if !v.isExternal(name) {
			out = append(out, config.SecretName(name))
		}
	}
	return out
}

// authoritySecret returns the name of the Secret with the CA certificates that verify a server's clients. It returns ""
// if the server does not verify clients, or receives the CA certificates from a file or from an SDS server of the user.
func (v proxyView) authoritySecret(settings *networking.ServerTLSSettings) string {
	name := authorityName(settings)
	if v.isExternal(name) {
		return ""
	}
	return config.SecretName(name)
}

// secretNames returns the names of the SDS resources to which the proxy's servers and the DestinationRules of its
// upstreams refer.
func (v proxyView) secretNames() []string {
	if !v.mayHaveSecrets() {
		return nil
	}
	var out []string
	add := func(name string) {
		if !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	for _, settings := range v.terminatedTLS() {
		for _, name := range v.serverSecrets(settings) {
			add(secretScheme + name)
		}
		if name := v.authoritySecret(settings); name != "" {
			add(secretScheme + name + authoritySuffix)
		}
	}
	if v.s.HasCredentials() {
		for _, c := range listServiceClusters(v.s, v.p) {
			if c.credential.external {
				continue
			}
			if c.credential.certificate {
				add(secretScheme + c.credential.name)
			}
			if c.credential.authorities {
				add(secretScheme + c.credential.name + authoritySuffix)
			}
		}
	}
	return out
}

// terminatedTLS returns the TLS settings of all ports on which the proxy terminates TLS, except mesh TLS.
func (v proxyView) terminatedTLS() []*networking.ServerTLSSettings {
	var out []*networking.ServerTLSSettings
	if v.p.Type == Router {
		for _, s := range v.servers() {
			if v.mayServe(s) {
				out = append(out, s.spec.GetTls())
			}
		}
		return out
	}
	for _, listener := range v.scope.Spec().GetIngress() {
		out = append(out, listener.GetTls())
	}
	return out
}

// Secrets returns the certificates that are called names, if documents refer to them for this proxy. It skips unknown
// names. If names is empty, it returns all certificates. The resources are built for each proxy and never cached,
// because they contain private keys.
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

func (v proxyView) secret(name string) *tlsv3.Secret {
	bare := strings.TrimPrefix(name, secretScheme)
	if ca, ok := strings.CutSuffix(bare, authoritySuffix); ok {
		if found := v.caSecret(ca); found != nil {
			return &tlsv3.Secret{Name: name, Type: &tlsv3.Secret_ValidationContext{ValidationContext: validationContext(found)}}
		}
	}
	found := v.certificateSecret(bare)
	if found == nil {
		return nil
	}
	return &tlsv3.Secret{Name: name, Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{
		CertificateChain: inlineBytes(found.Certificate), PrivateKey: inlineBytes(found.Key),
	}}}
}

// validationContext returns a validation context with CA certificates and their revocation lists. Envoy checks only the
// client's own certificate for revocation. It would otherwise require a revocation list for each CA in the chain.
func validationContext(s *config.SecretSpec) *tlsv3.CertificateValidationContext {
	out := &tlsv3.CertificateValidationContext{TrustedCa: inlineBytes(s.Authorities)}
	if len(s.Revoked) > 0 {
		out.Crl, out.OnlyVerifyLeafCertCrl = inlineBytes(s.Revoked), true
	}
	return out
}

func inlineBytes(b []byte) *corev3.DataSource {
	return &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: b}}
}
