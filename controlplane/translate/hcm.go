package translate

import (
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	corsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/cors/v3"
	faultv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/fault/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	tlsinspectorv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/tls_inspector/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/proto"
	extensions "istio.io/api/extensions/v1alpha1"
	meshconfig "istio.io/api/mesh/v1alpha1"
)

// The names of the HTTP filters, which per-route settings refer to.
const (
	corsFilterName  = "envoy.filters.http.cors"
	faultFilterName = "envoy.filters.http.fault"
)

// hcm is what differs between the HTTP connection managers.
type hcm struct {
	traffic    traffic
	statPrefix string
	// rds is the name under which the routes are asked for.
	rds string
}

func (v view) hcmFilter(h hcm) *listenerv3.Filter {
	mesh := v.s.Mesh
	m := &hcmv3.HttpConnectionManager{
		StatPrefix:        h.statPrefix + ";", // its end, by which the bootstrap makes a label of it
		CodecType:         hcmv3.HttpConnectionManager_AUTO,
		HttpFilters:       v.httpFilters(h.traffic),
		UseRemoteAddress:  boolean(h.traffic.side == edgeSide),
		ServerName:        "istio-envoy",
		AccessLog:         append(v.requestLogs(h.traffic), v.auditLog(h.traffic, "envoy.filters.http.rbac")...),
		StreamIdleTimeout: duration(0),
		UpgradeConfigs:    []*hcmv3.HttpConnectionManager_UpgradeConfig{{UpgradeType: "websocket"}},
		// A full name may end with a dot (reviews.shop.svc.cluster.local.). Routes and policies are by the name without.
		StripTrailingHostDot: true,
		RouteSpecifier: &hcmv3.HttpConnectionManager_Rds{
			Rds: &hcmv3.Rds{ConfigSource: ads(), RouteConfigName: h.rds},
		},
		// Without CONNECT an upgraded connection cannot come in over HTTP/2.
		Http2ProtocolOptions: &corev3.Http2ProtocolOptions{AllowConnect: true},
	}
	// The caller's identity, as its certificate proved it, is told in a header, and nobody else's word taken for it.
	if h.traffic.side != outboundSide {
		m.ForwardClientCertDetails = hcmv3.HttpConnectionManager_SANITIZE_SET
		m.SetCurrentClientCertDetails = &hcmv3.HttpConnectionManager_SetCurrentClientCertDetails{Uri: true}
	}
	if h.traffic.side == edgeSide {
		v.behind(m)
	}
	if v.p.OnDemand && h.traffic.side == outboundSide && v.p.capture().hostPlan(v, h.rds) != nil {
		// All that bounds the wait for a virtual host. The routes that these have say that it is not for them.
		m.StreamIdleTimeout = duration(v.p.OnDemandTimeout)
	}
	v.trace(m, h.traffic)
	normalizePath(m, mesh.GetPathNormalization().GetNormalization())
	return networkFilter("envoy.filters.network.http_connection_manager", m)
}

// topology is what is known of the proxies before a gateway.
func (v view) topology() *meshconfig.Topology {
	if v.p.Topology != nil {
		return v.p.Topology
	}
	return v.s.Mesh.GetDefaultConfig().GetGatewayTopology()
}

// behind has a gateway believe what the proxies before it, which its ProxyConfig tells of, say of callers: whose address is
// looked for so many places from the end of X-Forwarded-For, and what becomes of their certificates' header.
func (v view) behind(m *hcmv3.HttpConnectionManager) {
	topology := v.topology()
	m.XffNumTrustedHops = topology.GetNumTrustedProxies()
	if how := topology.GetForwardClientCertDetails(); how != meshconfig.ForwardClientCertDetails_UNDEFINED {
		m.ForwardClientCertDetails = hcmv3.HttpConnectionManager_ForwardClientCertDetails(
			hcmv3.HttpConnectionManager_ForwardClientCertDetails_value[how.String()])
	}
}

// normalizePath makes one path of the many spellings of it, before policies look at it.
func normalizePath(m *hcmv3.HttpConnectionManager, how meshconfig.MeshConfig_ProxyPathNormalization_NormalizationType) {
	if how == meshconfig.MeshConfig_ProxyPathNormalization_NONE {
		return
	}
	m.NormalizePath = boolean(true)
	switch how {
	case meshconfig.MeshConfig_ProxyPathNormalization_MERGE_SLASHES:
		m.MergeSlashes = true
	case meshconfig.MeshConfig_ProxyPathNormalization_DECODE_AND_MERGE_SLASHES:
		m.MergeSlashes = true
		m.PathWithEscapedSlashesAction = hcmv3.HttpConnectionManager_UNESCAPE_AND_FORWARD
	}
}

// httpFilters are all filters of requests, in the order in which these pass them.
func (v view) httpFilters(t traffic) []*hcmv3.HttpFilter {
	out := v.peerFilters(t)
	out = append(out, v.pluginFilters(t, extensions.PluginPhase_AUTHN)...)
	if t.side != outboundSide {
		out = append(out, v.customFilters()...)
		out = append(out, v.jwtFilters()...)
	}
	out = append(out, v.pluginFilters(t, extensions.PluginPhase_AUTHZ)...)
	if t.side != outboundSide {
		out = append(out, v.rbacFilters()...)
	}
	out = append(out, v.pluginFilters(t, extensions.PluginPhase_STATS)...)
	if t.side != inboundSide {
		out = append(out, callerFilters()...)
	}
	if t.byName {
		out = append(out, v.p.forwardByNameFilters()...)
	}
	out = append(out, v.pluginFilters(t, extensions.PluginPhase_UNSPECIFIED_PHASE)...)
	if v.p.OnDemand && t.side == outboundSide {
		out = append(out, v.onDemandFilter())
	}
	return append(out, httpFilter("envoy.filters.http.router", &routerv3.Router{}))
}

// callerFilters are the filters on the caller's side, which routes give their settings to.
func callerFilters() []*hcmv3.HttpFilter {
	return []*hcmv3.HttpFilter{
		httpFilter(corsFilterName, &corsv3.Cors{}),
		httpFilter(faultFilterName, &faultv3.HTTPFault{}),
	}
}

func httpFilter(name string, config proto.Message) *hcmv3.HttpFilter {
	return &hcmv3.HttpFilter{Name: name, ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: anyOf(config)}}
}

func networkFilter(name string, config proto.Message) *listenerv3.Filter {
	return &listenerv3.Filter{Name: name, ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: anyOf(config)}}
}

func listenerFilter(name string, config proto.Message) *listenerv3.ListenerFilter {
	return &listenerv3.ListenerFilter{Name: name, ConfigType: &listenerv3.ListenerFilter_TypedConfig{TypedConfig: anyOf(config)}}
}

func tlsInspector() *listenerv3.ListenerFilter {
	return listenerFilter("envoy.filters.listener.tls_inspector", &tlsinspectorv3.TlsInspector{})
}

func serverTLS(context *tlsv3.DownstreamTlsContext) *corev3.TransportSocket {
	return &corev3.TransportSocket{
		Name:       "envoy.transport_sockets.tls",
		ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: anyOf(context)},
	}
}
