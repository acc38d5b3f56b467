package translate

import (
	"fmt"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
)

// gatewayTLS returns the transport socket of a TLS server. It returns nil if the server's certificate is not available,
// or if the server requires client certificates and their CA certificate is not available.
func (v proxyView) gatewayTLS(s server) *corev3.TransportSocket {
	if !v.mayServe(s) {
		return nil
	}
	return v.terminateTLS(s.spec.GetTls(), s.isHTTPS())
}

// terminateTLS returns a TLS transport socket with a server's settings. It returns nil if a certificate or CA
// certificate is not available.
func (v proxyView) terminateTLS(settings *networking.ServerTLSSettings, http bool) *corev3.TransportSocket {
	common := &tlsv3.CommonTlsContext{TlsParams: v.serverVersions(settings), AlpnProtocols: inboundHTTPProtocol}
	if !http {
		common.AlpnProtocols = nil
	}
	context := &tlsv3.DownstreamTlsContext{CommonTlsContext: common, RequireClientCertificate: boolean(false)}
	if settings.GetMode() == networking.ServerTLSSettings_ISTIO_MUTUAL {
		common.TlsCertificateSdsSecretConfigs = meshCertificates(v.s.Mesh).TlsCertificateSdsSecretConfigs
		common.ValidationContextType = validateWith(rootSecret, exactNames(settings.GetSubjectAltNames()))
		context.RequireClientCertificate = boolean(true)
		return serverTLS(context)
	}
	common.TlsCertificateSdsSecretConfigs = v.certificates(settings)
	if len(common.TlsCertificateSdsSecretConfigs) == 0 {
		return nil
	}
	switch settings.GetMode() {
	case networking.ServerTLSSettings_MUTUAL, networking.ServerTLSSettings_OPTIONAL_MUTUAL:
		root := v.clientCAs(settings)
		if root == nil {
			return nil
		}
		common.ValidationContextType = clientValidation(root, settings)
		context.RequireClientCertificate = boolean(settings.GetMode() == networking.ServerTLSSettings_MUTUAL)
	}
	return serverTLS(context)
}

// certificates returns references to the available certificates, which are in Kubernetes Secrets or files.
func (v proxyView) certificates(settings *networking.ServerTLSSettings) []*tlsv3.SdsSecretConfig {
	if names := credentialNames(settings); len(names) > 0 {
		var out []*tlsv3.SdsSecretConfig
		for _, name := range names {
			if secret := v.certificateReference(name); secret != nil {
				out = append(out, secret)
			}
		}
		return out
	}
	if settings.GetServerCertificate() != "" && settings.GetPrivateKey() != "" {
		return []*tlsv3.SdsSecretConfig{sdsSecret(fileCertificate(settings.GetServerCertificate(), settings.GetPrivateKey()))}
	}
	var out []*tlsv3.SdsSecretConfig
	for _, c := range settings.GetTlsCertificates() {
		out = append(out, sdsSecret(fileCertificate(c.GetServerCertificate(), c.GetPrivateKey())))
	}
	return out
}

// certificateReference returns the reference to a certificate, or nil if it is not available.
func (v proxyView) certificateReference(credentialName string) *tlsv3.SdsSecretConfig {
	if v.isExternal(credentialName) {
		return v.externalSecret(credentialName, "")
	}
	if name := config.SecretName(credentialName); v.certificateSecret(name) != nil {
		return kubernetesSecret(name)
	}
	return nil
}

// clientCAs returns the SDS reference to the CA certificates that verify client certificates. It returns nil if none
// are configured, or if they are not available.
func (v proxyView) clientCAs(settings *networking.ServerTLSSettings) *tlsv3.SdsSecretConfig {
	if name := authorityName(settings); v.isExternal(name) {
		if settings.GetCaCertCredentialName() != "" {
			return v.externalSecret(name, "") // the name is that of the CA certificates
		}
		return v.externalSecret(name, authoritySuffix)
	}
	if name := v.authoritySecret(settings); name != "" {
		if v.caSecret(name) == nil {
			return nil
		}
		return kubernetesSecret(name + authoritySuffix)
	}
	if ca := settings.GetCaCertificates(); ca != "" && ca != systemRoots {
		return sdsSecret(fileRoot(ca, settings.GetCaCrl()))
	}
	// The system's CA certificates are not used, because the server would then admit any client with a public
	// certificate.
	return nil
}

func clientValidation(root *tlsv3.SdsSecretConfig, settings *networking.ServerTLSSettings) *tlsv3.CommonTlsContext_CombinedValidationContext {
	out := validateWith("", exactNames(settings.GetSubjectAltNames()))
	out.CombinedValidationContext.ValidationContextSdsSecretConfig = root
	defaults := out.CombinedValidationContext.DefaultValidationContext
	defaults.VerifyCertificateSpki = settings.GetVerifyCertificateSpki()
	defaults.VerifyCertificateHash = settings.GetVerifyCertificateHash()
	return out
}

// serverVersions returns the TLS parameters of a server. For values that the server does not set, the mesh
// configuration applies.
func (v proxyView) serverVersions(settings *networking.ServerTLSSettings) *tlsv3.TlsParameters {
	out := tlsParameters(v.s.Mesh.GetTlsDefaults())
	if settings.GetMode() == networking.ServerTLSSettings_ISTIO_MUTUAL {
		out = tlsParameters(v.s.Mesh.GetMeshMTLS())
	}
	if v := settings.GetMinProtocolVersion(); v != networking.ServerTLSSettings_TLS_AUTO {
		out.TlsMinimumProtocolVersion = tlsVersion(v)
	}
	if v := settings.GetMaxProtocolVersion(); v != networking.ServerTLSSettings_TLS_AUTO {
		out.TlsMaximumProtocolVersion = tlsVersion(v)
	}
	if ciphers := settings.GetCipherSuites(); len(ciphers) > 0 {
		out.CipherSuites = ciphers
	}
	// The maximum that the server specifies takes precedence over the minimum of the mesh.
	out.TlsMinimumProtocolVersion = min(out.TlsMinimumProtocolVersion, out.TlsMaximumProtocolVersion)
	return out
}

func tlsVersion(v networking.ServerTLSSettings_TLSProtocol) tlsv3.TlsParameters_TlsProtocol {
	return map[networking.ServerTLSSettings_TLSProtocol]tlsv3.TlsParameters_TlsProtocol{
		networking.ServerTLSSettings_TLSV1_0: tlsv3.TlsParameters_TLSv1_0,
		networking.ServerTLSSettings_TLSV1_1: tlsv3.TlsParameters_TLSv1_1,
		networking.ServerTLSSettings_TLSV1_2: tlsv3.TlsParameters_TLSv1_2,
		networking.ServerTLSSettings_TLSV1_3: tlsv3.TlsParameters_TLSv1_3,
	}[v]
}

// connectionChains returns the filter chains of a server that forwards connections instead of HTTP requests. With TLS
// passthrough, the SNI selects the destination. Otherwise all connections have the same destination.
func (v proxyView) connectionChains(s server) []*listenerv3.FilterChain {
	if s.isAutoPassthrough() {
		return v.autoPassthroughChains(s)
	}
	r := v.routing(s.gw.FullName(), s.spec.GetPort().GetNumber())
	var out []*listenerv3.FilterChain
	for _, vs := range v.s.VirtualServicesForGateway(s.gw.FullName(), v.p.Namespace) {
		if len(s.boundHosts(vs)) == 0 {
			continue
		}
		if s.protocol() == "TCP" || s.terminatesTLS() {
			out = append(out, v.tcpChains(s, r, vs)...)
		} else {
			out = append(out, v.passthroughChains(s, r, vs)...)
		}
	}
	return append(out, v.defaultChains(s)...)
}

func (v proxyView) tcpChains(s server, r routing, vs *snapshot.VirtualService) []*listenerv3.FilterChain {
	chain := &listenerv3.FilterChain{Name: fmt.Sprintf("tcp.%d.%s.%s", s.port, vs.Name, vs.Namespace)}
	if s.terminatesTLS() {
		if chain.TransportSocket = v.gatewayTLS(s); chain.TransportSocket == nil {
			return nil
		}
		chain.FilterChainMatch = sniMatch(s.hosts())
	}
	for _, route := range vs.Spec.GetTcp() {
		if r.matchesTCP(vs, route.GetMatch()) {
			chain.Filters = v.tcpFilters(s.traffic(), chain.Name, r.clusterWeights(vs, route.GetRoute()))
			return []*listenerv3.FilterChain{chain}
		}
	}
	return nil
}

func (v proxyView) passthroughChains(s server, r routing, vs *snapshot.VirtualService) []*listenerv3.FilterChain {
	var out []*listenerv3.FilterChain
	for i, route := range vs.Spec.GetTls() {
		for j, m := range route.GetMatch() {
			if !r.appliesTo(vs, m.GetGateways(), m.GetSourceLabels(), m.GetSourceNamespace(), m.GetPort()) || len(m.GetDestinationSubnets()) > 0 {
				continue
			}
			name := fmt.Sprintf("tls.%d.%s.%s.%d.%d", s.port, vs.Name, vs.Namespace, i, j)
			out = append(out, &listenerv3.FilterChain{
				Name:             name,
				FilterChainMatch: sniMatch(m.GetSniHosts()),
				Filters:          v.tcpFiltersForHosts(s.traffic(), name, m.GetSniHosts(), r.clusterWeights(vs, route.GetRoute())),
			})
		}
	}
	return out
}
