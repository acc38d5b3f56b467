package translate

import (
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	proxyprotocolv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/proxy_protocol/v3"
	rawv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/raw_buffer/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
)

// upstreamSecurity specifies whether and how connections to a cluster's endpoints use TLS.
type upstreamSecurity struct {
	// context is the TLS configuration; nil means plaintext.
	context *tlsv3.UpstreamTlsContext
	// auto: connections use TLS only to endpoints with a sidecar.
	auto bool
	// unusable: a required certificate or CA certificate does not exist, or the proxy may not use it. The cluster then
	// has no endpoints.
	unusable bool
	// mesh: TLS uses the mesh's identities.
	mesh bool
	// autoSNI sets the SNI to the host of each request. autoSAN also verifies that the server's certificate is for this
	// host.
	autoSNI, autoSAN bool
}

// meshTLS reports whether connections may use mutual TLS with the mesh's identities.
func (u upstreamSecurity) meshTLS() bool { return u.mesh }

func (u upstreamSecurity) apply(cluster *clusterv3.Cluster) {
	if u.context == nil {
		return
	}
	socket := tlsSocket(u.context)
	if !u.auto {
		cluster.TransportSocket = socket
		return
	}
	cluster.TransportSocketMatches = []*clusterv3.Cluster_TransportSocketMatch{
		{Name: "tlsMode-istio", Match: stringStruct(map[string]string{"tlsMode": "istio"}), TransportSocket: socket},
		{Name: "tlsMode-disabled", Match: stringStruct(nil), TransportSocket: rawSocket()},
	}
}

// sendProxyHeader makes the proxy send a PROXY protocol header at the start of each connection.
func sendProxyHeader(cluster *clusterv3.Cluster, settings *networking.TrafficPolicy_ProxyProtocol) {
	if settings == nil {
		return
	}
	version := corev3.ProxyProtocolConfig_V1
	if settings.GetVersion() == networking.TrafficPolicy_ProxyProtocol_V2 {
		version = corev3.ProxyProtocolConfig_V2
	}
	around := func(socket *corev3.TransportSocket) *corev3.TransportSocket {
		if socket == nil {
			socket = rawSocket()
		}
		return &corev3.TransportSocket{
			Name: "envoy.transport_sockets.upstream_proxy_protocol",
			ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: anyOf(&proxyprotocolv3.ProxyProtocolUpstreamTransport{
				Config: &corev3.ProxyProtocolConfig{Version: version}, TransportSocket: socket,
			})},
		}
	}
	if len(cluster.TransportSocketMatches) == 0 {
		cluster.TransportSocket = around(cluster.TransportSocket)
	}
	for _, m := range cluster.TransportSocketMatches {
		m.TransportSocket = around(m.TransportSocket)
	}
}

func rawSocket() *corev3.TransportSocket {
	return &corev3.TransportSocket{
		Name:       "envoy.transport_sockets.raw_buffer",
		ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: anyOf(&rawv3.RawBuffer{})},
	}
}

func tlsSocket(context *tlsv3.UpstreamTlsContext) *corev3.TransportSocket {
	return &corev3.TransportSocket{
		Name:       "envoy.transport_sockets.tls",
		ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: anyOf(context)},
	}
}

// security returns the TLS settings that the DestinationRule specifies. Without such settings, connections use mutual
// TLS to endpoints with a sidecar, if the mesh enables automatic mutual TLS.
func (c serviceCluster) security(port registry.Port, traffic snapshot.Traffic) upstreamSecurity {
	settings := traffic.TLS
	if settings == nil {
		if !c.mesh.GetEnableAutoMtls().GetValue() || c.svc.External || c.svc.Resolution == registry.Passthrough {
			return upstreamSecurity{}
		}
		if c.originalDst { // endpoint metadata is available only if Envoy selects the endpoint
			if !c.facts.AllMTLS {
				return upstreamSecurity{}
			}
			return upstreamSecurity{context: c.meshContext(port, traffic, nil), mesh: true}
		}
		return upstreamSecurity{context: c.meshContext(port, traffic, nil), auto: true, mesh: true}
	}
	switch settings.GetMode() {
	case networking.ClientTLSSettings_DISABLE:
		return upstreamSecurity{}
	case networking.ClientTLSSettings_ISTIO_MUTUAL:
		return upstreamSecurity{context: c.meshContext(port, traffic, settings), mesh: true}
	}
	return c.originateTLS(port, traffic, settings)
}

// meshContext returns a TLS context with the mesh's identities on both sides.
func (c serviceCluster) meshContext(port registry.Port, traffic snapshot.Traffic, settings *networking.ClientTLSSettings) *tlsv3.UpstreamTlsContext {
	sni := settings.GetSni()
	if sni == "" {
		sni = sniName(c.svc.Hostname, c.subsetName(), c.port)
	}
	common := meshCertificates(c.mesh)
	common.ValidationContextType = meshValidation(c.identities(traffic))
	common.AlpnProtocols = c.meshALPN(port, traffic)
	return &tlsv3.UpstreamTlsContext{CommonTlsContext: common, Sni: sni}
}

// meshALPN returns the ALPN protocols that announce the content of the TLS connection. The upstream sidecar needs them
// because its listener selects a filter chain before it decrypts.
func (c serviceCluster) meshALPN(port registry.Port, traffic snapshot.Traffic) []string {
	if !port.Protocol.MayBeHTTP() {
		return []string{"istio"}
	}
	if traffic.ConnectionPool.GetHttp().GetUseClientProtocol() || port.Protocol == registry.Undeclared {
		// The upstream sidecar does not negotiate these protocols, so its codec detects HTTP/1 or HTTP/2 from the first
		// bytes.
		return []string{"istio-h2", "istio"}
	}
	if c.speaksHTTP2(port, traffic, upstreamSecurity{mesh: true}) {
		return []string{"istio-h2", "istio", "h2"}
	}
	return []string{"istio-http/1.1", "istio", "http/1.1"}
}

// isTLSOrigination reports whether the settings specify TLS to a server outside the mesh.
func isTLSOrigination(settings *networking.ClientTLSSettings) bool {
	mode := settings.GetMode()
	return mode == networking.ClientTLSSettings_SIMPLE || mode == networking.ClientTLSSettings_MUTUAL
}

// originateTLS returns the security for a server outside the mesh.
func (c serviceCluster) originateTLS(port registry.Port, traffic snapshot.Traffic, settings *networking.ClientTLSSettings) upstreamSecurity {
	common := c.originationContext(settings)
	if common == nil {
		return upstreamSecurity{unusable: true}
	}
	if c.speaksHTTP2(port, traffic, upstreamSecurity{}) && port.Protocol.IsHTTP() {
		common.AlpnProtocols = []string{"h2"}
	}
	u := upstreamSecurity{context: &tlsv3.UpstreamTlsContext{CommonTlsContext: common, Sni: settings.GetSni()}}
	if settings.GetSni() != "" {
		return u
	}
	if port.Protocol.IsHTTP() {
		u.autoSNI = true
		u.autoSAN = common.ValidationContextType != nil && len(settings.GetSubjectAltNames()) == 0
	} else if !strings.HasPrefix(c.svc.Hostname, "*") {
		u.context.Sni = c.svc.Hostname
	}
	return u
}
