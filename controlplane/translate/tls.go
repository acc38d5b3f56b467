package translate

import (
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	meshconfig "istio.io/api/mesh/v1alpha1"
)

// The names under which the agent serves the workload's certificate and the root certificates of the mesh.
const (
	workloadSecret = "default"
	rootSecret     = "ROOTCA"
	// systemRoots is the value of a roots file that selects the system's root certificates.
	systemRoots = "system"
)

// fileCertificate returns the name under which the agent serves a certificate and its key from files.
func fileCertificate(certificate, key string) string { return "file-cert:" + certificate + "~" + key }

// fileRoot returns the name under which the agent serves CA certificates from a file. If file is empty, the name is for
// the CA certificates of the system, which verify upstream servers but never clients (see gatewayTLS). crl is an
// optional file with revocation lists.
func fileRoot(file, crl string) string {
	if file == "" {
		file = systemRoots
	}
	if crl != "" {
		crl = "~crl:" + crl
	}
	return "file-root:" + file + crl
}

// sdsSecret returns a reference to a certificate or CA certificates that the agent delivers by SDS.
func sdsSecret(name string) *tlsv3.SdsSecretConfig {
	return &tlsv3.SdsSecretConfig{Name: name, SdsConfig: &corev3.ConfigSource{
		ResourceApiVersion: corev3.ApiVersion_V3,
		// With a timeout, Envoy would proceed without the certificate.
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

// tlsVersions returns parameters that enable TLS 1.3 for upstream and downstream connections. Envoy's default maximum
// for upstream connections is 1.2.
func tlsVersions() *tlsv3.TlsParameters {
	return &tlsv3.TlsParameters{
		TlsMinimumProtocolVersion: tlsv3.TlsParameters_TLSv1_2,
		TlsMaximumProtocolVersion: tlsv3.TlsParameters_TLSv1_3,
	}
}

// tlsParameters returns the TLS parameters of the mesh configuration: meshMTLS for mesh TLS, tlsDefaults for other TLS.
func tlsParameters(c *meshconfig.MeshConfig_TLSConfig) *tlsv3.TlsParameters {
	out := tlsVersions()
	if c.GetMinProtocolVersion() == meshconfig.MeshConfig_TLSConfig_TLSV1_3 {
		out.TlsMinimumProtocolVersion = tlsv3.TlsParameters_TLSv1_3
	}
	out.CipherSuites, out.EcdhCurves = c.GetCipherSuites(), c.GetEcdhCurves()
	return out
}

// meshCertificates returns a TLS context with the workload's certificate.
func meshCertificates(mesh *meshconfig.MeshConfig) *tlsv3.CommonTlsContext {
	return &tlsv3.CommonTlsContext{
		TlsParams:                      tlsParameters(mesh.GetMeshMTLS()),
		TlsCertificateSdsSecretConfigs: []*tlsv3.SdsSecretConfig{sdsSecret(workloadSecret)},
	}
}

// meshValidation returns a validation context that accepts mesh certificates with one of the identities. Without
// identities, it accepts any certificate of the mesh.
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

// exactNames returns matchers that accept certificates with one of the names, of any SAN type.
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
