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

// Names of the HTTP filters to which per-route configurations refer.
const (
	corsFilterName  = "envoy.filters.http.cors"
	faultFilterName = "envoy.filters.http.fault"
)

// hcmOptions are the options that differ between HTTP connection managers.
type hcmOptions struct {
	traffic    traffic
	statPrefix string
	// rds is the name of the route configuration.
	rds string
}

func (v proxyView) hcmFilter(h hcmOptions) *listenerv3.Filter {
	mesh := v.s.Mesh
	m := &hcmv3.HttpConnectionManager{
		// The semicolon marks the end of the prefix, so that the bootstrap's tag extraction can create a label from it
		StatPrefix:        h.statPrefix + ";",
		CodecType:         hcmv3.HttpConnectionManager_AUTO,
		HttpFilters:       v.httpFilters(h.traffic),
		UseRemoteAddress:  boolean(h.traffic.side == edgeSide),
		ServerName:        "istio-envoy",
		AccessLog:         append(v.requestLogs(h.traffic), v.auditLog(h.traffic, "envoy.filters.http.rbac")...),
		StreamIdleTimeout: duration(0),
		UpgradeConfigs:    []*hcmv3.HttpConnectionManager_UpgradeConfig{{UpgradeType: "websocket"}},
		// Clients may write a fully qualified name with a final dot (reviews.shop.svc.cluster.local.). Routes and
		// policies use the name without it.
		StripTrailingHostDot: true,
		RouteSpecifier: &hcmv3.HttpConnectionManager_Rds{
			Rds: &hcmv3.Rds{ConfigSource: ads(), RouteConfigName: h.rds},
		},
		// Without extended CONNECT, upgraded connections such as WebSockets cannot arrive over HTTP/2.
		Http2ProtocolOptions: &corev3.Http2ProtocolOptions{AllowConnect: true},
	}
	if v.p.AcceptsHTTP10 {
		m.HttpProtocolOptions = &corev3.Http1ProtocolOptions{AcceptHttp_10: true}
	}
	// Envoy passes the verified identity of the client to the workload in a header, and removes this header from the
	// requests of clients.
	if h.traffic.side != outboundSide {
		m.ForwardClientCertDetails = hcmv3.HttpConnectionManager_SANITIZE_SET
		m.SetCurrentClientCertDetails = &hcmv3.HttpConnectionManager_SetCurrentClientCertDetails{Uri: true}
	}
	if h.traffic.side == edgeSide {
		v.trustFrontProxies(m)
	}
	if v.p.OnDemand && h.traffic.side == outboundSide && v.p.interceptionMode().hostPlan(v, h.rds) != nil {
		// A request waits for its virtual host until the stream's idle timeout. The routes of virtual hosts then
		// disable this timeout for the rest of the stream.
		m.StreamIdleTimeout = duration(v.p.OnDemandTimeout)
	}
	v.setTracing(m, h.traffic)
	normalizePath(m, mesh.GetPathNormalization().GetNormalization())
	return networkFilter("envoy.filters.network.http_connection_manager", m)
}

// gatewayTopology returns the configuration of the proxies in front of a gateway.
func (v proxyView) gatewayTopology() *meshconfig.Topology {
	if v.p.Topology != nil {
		return v.p.Topology
	}
	return v.s.Mesh.GetDefaultConfig().GetGatewayTopology()
}

// trustFrontProxies makes a gateway trust the proxies in front of it, as its ProxyConfig specifies. It sets the number
// of trusted hops in X-Forwarded-For, and how Envoy forwards the client certificate header.
func (v proxyView) trustFrontProxies(m *hcmv3.HttpConnectionManager) {
	topology := v.gatewayTopology()
	m.XffNumTrustedHops = topology.GetNumTrustedProxies()
	if how := topology.GetForwardClientCertDetails(); how != meshconfig.ForwardClientCertDetails_UNDEFINED {
		m.ForwardClientCertDetails = hcmv3.HttpConnectionManager_ForwardClientCertDetails(
			hcmv3.HttpConnectionManager_ForwardClientCertDetails_value[how.String()])
	}
}

// normalizePath makes Envoy normalize request paths before policies are evaluated.
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

// httpFilters returns all HTTP filters, in processing order.
func (v proxyView) httpFilters(t traffic) []*hcmv3.HttpFilter {
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
		out = append(out, v.p.dynamicForwardFilters()...)
	}
	out = append(out, v.pluginFilters(t, extensions.PluginPhase_UNSPECIFIED_PHASE)...)
	if v.p.OnDemand && t.side == outboundSide {
		out = append(out, v.onDemandFilter())
	}
	if v.mayDisableFilters(t) {
		disableRouteFilters(out)
	}
	return append(out, httpFilter("envoy.filters.http.router", &routerv3.Router{}))
}

// routeFilters are the filters that have an effect only on requests whose route configures them.
var routeFilters = map[string]bool{
	corsFilterName: true, faultFilterName: true, nameFilter: true, targetFilter: true, denyFilterName: true, allowFilterName: true, auditFilterName: true,
}

// disableRouteFilters disables the filters in routeFilters by default. Envoy then creates such a filter only for
// requests whose route configures it.
func disableRouteFilters(filters []*hcmv3.HttpFilter) {
	for _, f := range filters {
		f.Disabled = routeFilters[f.GetName()]
	}
}

// mayDisableFilters reports whether Envoy knows the final route of a request when it creates the filters. Filters of
// plugins and EnvoyFilters, filters that verify tokens, and the on-demand filter may change the route later.
// EnvoyFilters may also configure a filter for all routes.
func (v proxyView) mayDisableFilters(t traffic) bool {
	return !v.patches.ChangesHTTPFilters() && len(v.plugins()) == 0 && !(t.side == edgeSide && len(v.jwtFilters()) > 0) &&
		!(v.p.OnDemand && t.side == outboundSide)
}

// callerFilters returns the outbound filters whose configuration is in the routes.
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
