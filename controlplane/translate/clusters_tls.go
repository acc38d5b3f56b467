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

// upstreamSecurity is how connections to a cluster's endpoints are secured.
type upstreamSecurity struct {
	// context is the TLS to use; nil is plaintext.
	context *tlsv3.UpstreamTlsContext
	// auto: only where the endpoint has a sidecar.
	auto bool
	// unusable: they would need a certificate, or authorities to believe, that the caller may not have, or that is not there.
	unusable bool
	// mesh: with the mesh's identities.
	mesh bool
	// autoSNI names the host of each request in the handshake; autoSAN verifies it too.
	autoSNI, autoSAN bool
}

// meshTLS says whether connections may have the mesh's mutual TLS.
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

// sendProxyHeader has connections begin with who called, in the way of the PROXY protocol.
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

// security is what the rule says, and without a rule mutual TLS wherever the other side has a sidecar.
func (c outbound) security(port registry.Port, traffic snapshot.Traffic) upstreamSecurity {
	settings := traffic.TLS
	if settings == nil {
		if !c.mesh.GetEnableAutoMtls().GetValue() || c.svc.External || c.svc.Resolution == registry.Passthrough {
			return upstreamSecurity{}
		}
		if c.byAddress { // what is known of an endpoint shows only where the endpoint was chosen here
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
	return c.originate(port, traffic, settings)
}

// meshContext is TLS with the mesh's identities on both sides.
func (c outbound) meshContext(port registry.Port, traffic snapshot.Traffic, settings *networking.ClientTLSSettings) *tlsv3.UpstreamTlsContext {
	sni := settings.GetSni()
	if sni == "" {
		sni = sniName(c.svc.Hostname, c.subsetName(), c.port)
	}
	common := meshCertificates(c.mesh)
	common.ValidationContextType = meshValidation(c.identities(traffic))
	common.AlpnProtocols = c.meshALPN(port, traffic)
	return &tlsv3.UpstreamTlsContext{CommonTlsContext: common, Sni: sni}
}

// meshALPN tells the callee's sidecar what is inside the TLS: no listener can look into it beforehand.
func (c outbound) meshALPN(port registry.Port, traffic snapshot.Traffic) []string {
	if !port.Protocol.MayBeHTTP() {
		return []string{"istio"}
	}
	if traffic.ConnectionPool.GetHttp().GetUseClientProtocol() || port.Protocol == registry.Undeclared {
		// Nothing that the callee negotiates: its codec then goes by the first bytes.
		return []string{"istio-h2", "istio"}
	}
	if c.speaksHTTP2(port, traffic, upstreamSecurity{mesh: true}) {
		return []string{"istio-h2", "istio", "h2"}
	}
	return []string{"istio-http/1.1", "istio", "http/1.1"}
}

// originates says whether settings ask for TLS to a server that is not of the mesh.
func originates(settings *networking.ClientTLSSettings) bool {
	mode := settings.GetMode()
	return mode == networking.ClientTLSSettings_SIMPLE || mode == networking.ClientTLSSettings_MUTUAL
}

// originate is TLS to a server that is not of the mesh.
func (c outbound) originate(port registry.Port, traffic snapshot.Traffic, settings *networking.ClientTLSSettings) upstreamSecurity {
	common := c.originating(settings)
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
