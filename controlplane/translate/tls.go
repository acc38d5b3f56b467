package translate

import (
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	meshconfig "istio.io/api/mesh/v1alpha1"
)

// The names under which the agent serves the mesh's own certificate and its roots.
const (
	workloadSecret = "default"
	rootSecret     = "ROOTCA"
	// systemRoots stands for a file of roots: those that the system trusts.
	systemRoots = "system"
)

// fileCertificate is the name under which the agent serves a certificate and key from files.
func fileCertificate(certificate, key string) string { return "file-cert:" + certificate + "~" + key }

// fileRoot is the name under which the agent serves roots from a file, or the system's: for servers that are called. No
// server of ours lets in whom the system trusts (see gatewayTLS).
// What crl names, if anything, are lists of certificates of theirs that are revoked.
func fileRoot(file, crl string) string {
	if file == "" {
		file = systemRoots
	}
	if crl != "" {
		crl = "~crl:" + crl
	}
	return "file-root:" + file + crl
}

// sdsSecret asks the agent for a certificate or for roots.
func sdsSecret(name string) *tlsv3.SdsSecretConfig {
	return &tlsv3.SdsSecretConfig{Name: name, SdsConfig: &corev3.ConfigSource{
		ResourceApiVersion: corev3.ApiVersion_V3,
		// No time-out: a connection without the certificate it needs must wait for it, not go on.
		InitialFetchTimeout: duration(0),
		ConfigSourceSpecifier: &corev3.ConfigSource_ApiConfigSource{ApiConfigSource: &corev3.ApiConfigSource{
			ApiType:                   corev3.ApiConfigSource_GRPC,
			TransportApiVersion:       corev3.ApiVersion_V3,
			SetNodeOnFirstMessageOnly: true,
			GrpcServices: []*corev3.GrpcService{{TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{
				EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{ClusterName: sdsCluster},
			}}},
		}},
	}}
}

// tlsVersions lets both sides take TLS 1.3: Envoy's own upstream maximum is 1.2.
func tlsVersions() *tlsv3.TlsParameters {
	return &tlsv3.TlsParameters{
		TlsMinimumProtocolVersion: tlsv3.TlsParameters_TLSv1_2,
		TlsMaximumProtocolVersion: tlsv3.TlsParameters_TLSv1_3,
	}
}

// tlsWithin are they, as the mesh's configuration narrows them: meshMTLS for its own TLS, tlsDefaults for all other.
func tlsWithin(c *meshconfig.MeshConfig_TLSConfig) *tlsv3.TlsParameters {
	out := tlsVersions()
	if c.GetMinProtocolVersion() == meshconfig.MeshConfig_TLSConfig_TLSV1_3 {
		out.TlsMinimumProtocolVersion = tlsv3.TlsParameters_TLSv1_3
	}
	out.CipherSuites, out.EcdhCurves = c.GetCipherSuites(), c.GetEcdhCurves()
	return out
}

// meshCertificates is a TLS context that shows the workload's certificate.
func meshCertificates(mesh *meshconfig.MeshConfig) *tlsv3.CommonTlsContext {
	return &tlsv3.CommonTlsContext{
		TlsParams:                      tlsWithin(mesh.GetMeshMTLS()),
		TlsCertificateSdsSecretConfigs: []*tlsv3.SdsSecretConfig{sdsSecret(workloadSecret)},
	}
}

// meshValidation accepts certificates of the mesh with one of the identities; with any where none are given.
func meshValidation(identities []string) *tlsv3.CommonTlsContext_CombinedValidationContext {
	matchers := make([]*tlsv3.SubjectAltNameMatcher, 0, len(identities))
	for _, id := range identities {
		matchers = append(matchers, &tlsv3.SubjectAltNameMatcher{SanType: tlsv3.SubjectAltNameMatcher_URI, Matcher: exact(id)})
	}
	return validateWith(rootSecret, matchers)
}

func validateWith(root string, names []*tlsv3.SubjectAltNameMatcher) *tlsv3.CommonTlsContext_CombinedValidationContext {
	return &tlsv3.CommonTlsContext_CombinedValidationContext{
		CombinedValidationContext: &tlsv3.CommonTlsContext_CombinedCertificateValidationContext{
			DefaultValidationContext:         &tlsv3.CertificateValidationContext{MatchTypedSubjectAltNames: names},
			ValidationContextSdsSecretConfig: sdsSecret(root),
		},
	}
}

// exactNames accepts certificates for one of the names, whichever sort of name it is.
func exactNames(names []string) []*tlsv3.SubjectAltNameMatcher {
	var out []*tlsv3.SubjectAltNameMatcher
	for _, name := range names {
		for _, sort := range []tlsv3.SubjectAltNameMatcher_SanType{
			tlsv3.SubjectAltNameMatcher_DNS, tlsv3.SubjectAltNameMatcher_URI, tlsv3.SubjectAltNameMatcher_EMAIL, tlsv3.SubjectAltNameMatcher_IP_ADDRESS,
		} {
			out = append(out, &tlsv3.SubjectAltNameMatcher{SanType: sort, Matcher: exact(name)})
		}
	}
	return out
}

func exact(s string) *matcherv3.StringMatcher {
	return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: s}}
}

func prefix(s string) *matcherv3.StringMatcher {
	return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Prefix{Prefix: s}}
}

func suffix(s string) *matcherv3.StringMatcher {
	return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Suffix{Suffix: s}}
}

func regex(s string) *matcherv3.StringMatcher {
	return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_SafeRegex{SafeRegex: regexMatcher(s)}}
}

func regexMatcher(s string) *matcherv3.RegexMatcher { return &matcherv3.RegexMatcher{Regex: s} }
