package bootstrap

import (
	"fmt"
	"net/netip"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilotfish-mesh/pilotfish/internal/tlspolicy"
)

// Names and name prefixes of the secrets that the agent serves to Envoy.
const (
	workloadSecret = "default"
	rootSecret     = "ROOTCA"
	certFileSecret = "file-cert:"
	rootFileSecret = "file-root:"
	systemRoots    = "system"
)

// secretFetchTimeout limits how long a starting Envoy waits for a secret. Envoy still uses a secret that arrives later.
const secretFetchTimeout = 5 * time.Second

// transportSocket returns the TLS settings of Envoy's connections to a remote, or nil without TLS. It returns an error
// if the settings are invalid.
func transportSocket(c Config, r remote, host string, a *anyBuilder) (*corev3.TransportSocket, error) {
	common, files := &tlsv3.CommonTlsContext{TlsParams: tlsParameters(c.TLSPolicy)}, c.secretFilesCluster()
	sni := r.tls.GetSni()
	switch r.tls.GetMode() {
	case networking.ClientTLSSettings_DISABLE:
		return nil, nil
	case networking.ClientTLSSettings_ISTIO_MUTUAL:
		setWorkloadCertificate(common)
		setValidation(common, sdsSecretConfig(rootSecret, sdsCluster), r.tls)
		common.AlpnProtocols = []string{"istio"}
	case networking.ClientTLSSettings_MUTUAL:
		cert, key := r.tls.GetClientCertificate(), r.tls.GetPrivateKey()
		if cert == "" || key == "" {
			return nil, fmt.Errorf("%s: tlsSettings of mode MUTUAL have no certificate; set the files clientCertificate and privateKey", r.setting)
		}
		common.TlsCertificateSdsSecretConfigs = []*tlsv3.SdsSecretConfig{sdsSecretConfig(certFileSecret+cert+"~"+key, files)}
		fallthrough
	case networking.ClientTLSSettings_SIMPLE:
		if r.tls.GetCredentialName() != "" {
			return nil, fmt.Errorf("%s: tlsSettings name the Kubernetes secret %q, which a proxy cannot read; use files instead",
				r.setting, r.tls.GetCredentialName())
		}
		if !r.tls.GetInsecureSkipVerify().GetValue() {
			setValidation(common, sdsSecretConfig(rootFileSecret+textOrDefault(r.tls.GetCaCertificates(), systemRoots), files), r.tls)
		}
		sni = textOrDefault(sni, sniName(host))
	}
	if r.http2 {
		common.AlpnProtocols = append(common.AlpnProtocols, "h2")
	}
	return tlsSocket(&tlsv3.UpstreamTlsContext{CommonTlsContext: common, Sni: sni}, a), nil
}

// setWorkloadCertificate makes Envoy use the workload's certificate as client or server certificate.
func setWorkloadCertificate(common *tlsv3.CommonTlsContext) {
	common.TlsCertificateSdsSecretConfigs = []*tlsv3.SdsSecretConfig{sdsSecretConfig(workloadSecret, sdsCluster)}
}

// setValidation makes Envoy verify the peer with the root certificates of a secret and with the subject alternative
// names in settings. If settings contains no names, Envoy accepts every name.
func setValidation(common *tlsv3.CommonTlsContext, roots *tlsv3.SdsSecretConfig, settings *networking.ClientTLSSettings) {
	names := &tlsv3.CertificateValidationContext{}
	for _, san := range settings.GetSubjectAltNames() {
		for _, kind := range []tlsv3.SubjectAltNameMatcher_SanType{tlsv3.SubjectAltNameMatcher_DNS, tlsv3.SubjectAltNameMatcher_URI} {
			names.MatchTypedSubjectAltNames = append(names.MatchTypedSubjectAltNames, &tlsv3.SubjectAltNameMatcher{
				SanType: kind,
				Matcher: &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: san}},
			})
		}
	}
	common.ValidationContextType = &tlsv3.CommonTlsContext_CombinedValidationContext{
		CombinedValidationContext: &tlsv3.CommonTlsContext_CombinedCertificateValidationContext{
			DefaultValidationContext:         names,
			ValidationContextSdsSecretConfig: roots,
		},
	}
}

// sdsSecretConfig returns the configuration of a secret that the agent serves and rotates.
func sdsSecretConfig(name, cluster string) *tlsv3.SdsSecretConfig {
	return &tlsv3.SdsSecretConfig{
		Name: name,
		SdsConfig: &corev3.ConfigSource{
			ConfigSourceSpecifier: &corev3.ConfigSource_ApiConfigSource{ApiConfigSource: &corev3.ApiConfigSource{
				ApiType:                   corev3.ApiConfigSource_GRPC,
				TransportApiVersion:       corev3.ApiVersion_V3,
				SetNodeOnFirstMessageOnly: true,
				GrpcServices:              []*corev3.GrpcService{grpcTo(cluster)},
			}},
			InitialFetchTimeout: durationpb.New(secretFetchTimeout),
			ResourceApiVersion:  corev3.ApiVersion_V3,
		},
	}
}

// meshOnly returns the TLS settings of a listener that accepts only clients with a certificate of the mesh.
func meshOnly(c Config, a *anyBuilder) *corev3.TransportSocket {
	common := &tlsv3.CommonTlsContext{TlsParams: tlsParameters(c.TLSPolicy), AlpnProtocols: []string{"h2", "http/1.1"}}
	setWorkloadCertificate(common)
	setValidation(common, sdsSecretConfig(rootSecret, sdsCluster), nil)
	return tlsSocket(&tlsv3.DownstreamTlsContext{
		CommonTlsContext:         common,
		RequireClientCertificate: wrapperspb.Bool(true),
	}, a)
}

func tlsSocket(context proto.Message, a *anyBuilder) *corev3.TransportSocket {
	return &corev3.TransportSocket{
		Name:       "envoy.transport_sockets.tls",
		ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: a.add(context)},
	}
}

// tlsParameters returns parameters that permit TLS 1.2 and 1.3 for clients and servers, unless the policy restricts
// them. Envoy's default maximum for clients is TLS 1.2. For a FIPS policy, it sets all parameters, because a standard
// Envoy build is not restricted to FIPS.
func tlsParameters(policy tlspolicy.Policy) *tlsv3.TlsParameters {
	p := &tlsv3.TlsParameters{
		TlsMinimumProtocolVersion: tlsv3.TlsParameters_TLSv1_2,
		TlsMaximumProtocolVersion: tlsv3.TlsParameters_TLSv1_3,
	}
	switch policy {
	case tlspolicy.FIPS1402:
		p.TlsMaximumProtocolVersion = tlsv3.TlsParameters_TLSv1_2
		p.CipherSuites = []string{"ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-RSA-AES128-GCM-SHA256", "ECDHE-ECDSA-AES256-GCM-SHA384", "ECDHE-RSA-AES256-GCM-SHA384"}
		p.EcdhCurves = []string{"P-256"}
	case tlspolicy.FIPS1403:
		p.CompliancePolicies = []tlsv3.TlsParameters_CompliancePolicy{tlsv3.TlsParameters_FIPS_202205}
	case tlspolicy.PostQuantum:
		p.TlsMinimumProtocolVersion = tlsv3.TlsParameters_TLSv1_3
		p.EcdhCurves = []string{"X25519MLKEM768"}
	}
	return p
}

// sniName returns the host for SNI. It returns "" if the host is an IP address, which SNI does not permit.
func sniName(host string) string {
	if _, err := netip.ParseAddr(host); err == nil {
		return ""
	}
	return host
}

func textOrDefault(text, otherwise string) string {
	if text == "" {
		return otherwise
	}
	return text
}
