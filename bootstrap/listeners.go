package bootstrap

import (
	"fmt"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	proxyprotocolv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/proxy_protocol/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
)

// port describes a listener that forwards requests for some paths to a cluster.
type port struct {
	addresses  []string
	number     uint32
	statPrefix string
	paths      []string
	cluster    string
	rewrite    string // path prefix at the cluster; empty: unchanged
	compress   bool   // compress responses if the client accepts that
	meshOnly   bool   // accept only clients with a certificate of the mesh
	proxied    bool   // a load balancer may send a PROXY protocol header first
}

func staticListeners(c Config, a *anyBuilder) []*listenerv3.Listener {
	open := c.openAddresses()
	metrics := port{
		addresses: c.metricsAddresses(), number: c.PrometheusPort,
		statPrefix: "stats", paths: []string{statsPath}, compress: true,
	}
	metrics.cluster, metrics.rewrite = c.statsTarget()
	ready := port{
		addresses: open, number: c.ReadinessPort,
		statPrefix: "agent", paths: []string{"/healthz/ready"}, cluster: agentCluster,
		proxied: c.ReadinessProxied || c.Type == Router && c.ProxyConfig.GetGatewayTopology().GetProxyProtocol() != nil,
	}
	listeners := []*listenerv3.Listener{forwardingListener(c, a, metrics), forwardingListener(c, a, ready)}
	for _, secure := range []port{
		{number: c.SecureMetricsPort, statPrefix: "secure_stats", paths: []string{statsPath}, cluster: metrics.cluster, rewrite: metrics.rewrite},
		{number: c.SecureMergedMetricsPort, statPrefix: "secure_merged_stats", paths: []string{statsPath, "/metrics"}, cluster: agentCluster},
	} {
		if secure.number != 0 {
			secure.addresses, secure.compress, secure.meshOnly = open, true, true
			listeners = append(listeners, forwardingListener(c, a, secure))
		}
	}
	return listeners
}

// Paths of Envoy's statistics at Envoy, and at the agent, which unpacks their labels.
const (
	statsPath         = "/stats/prometheus"
	unpackedStatsPath = "/stats/envoy"
)

// statsTarget returns the cluster that serves Envoy's statistics, and their path there if it differs from statsPath.
func (c Config) statsTarget() (cluster, path string) {
	if c.unpacksLabels() {
		return agentCluster, unpackedStatsPath
	}
	return statsCluster, ""
}

// metricsAddresses returns the addresses on which Envoy serves statistics without TLS.
func (c Config) metricsAddresses() []string {
	if c.LocalMetrics {
		return []string{c.localAddress()}
	}
	return c.openAddresses()
}

// forwardingListener returns the listener of a port, with the same name as in Istio's bootstrap. The overload manager
// does not affect it, so it responds even when Envoy sheds load.
func forwardingListener(c Config, a *anyBuilder, p port) *listenerv3.Listener {
	chain := &listenerv3.FilterChain{Filters: []*listenerv3.Filter{{
		Name: "envoy.filters.network.http_connection_manager",
		ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: a.add(&hcmv3.HttpConnectionManager{
			CodecType:      hcmv3.HttpConnectionManager_AUTO,
			StatPrefix:     p.statPrefix,
			RouteSpecifier: &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: pathsTo(p)},
			HttpFilters:    httpFilters(c, a, p),
		})},
	}}}
	if p.meshOnly {
		chain.TransportSocket = meshOnly(c, a)
	}
	l := &listenerv3.Listener{
		Name:                  fmt.Sprintf("%s_%d", p.addresses[0], p.number),
		Address:               tcp(p.addresses[0], p.number),
		BypassOverloadManager: true,
		FilterChains:          []*listenerv3.FilterChain{chain},
	}
	for _, address := range p.addresses[1:] {
		l.AdditionalAddresses = append(l.AdditionalAddresses, &listenerv3.AdditionalAddress{Address: tcp(address, p.number)})
	}
	if p.proxied {
		l.ListenerFilters = []*listenerv3.ListenerFilter{proxyProtocol(a)}
	}
	return l
}

func httpFilters(c Config, a *anyBuilder, p port) []*hcmv3.HttpFilter {
	var filters []*hcmv3.HttpFilter
	if p.compress {
		filters = compressors(c, a)
	}
	return append(filters, &hcmv3.HttpFilter{
		Name:       "envoy.filters.http.router",
		ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: a.add(&routerv3.Router{})},
	})
}

// proxyProtocol returns a filter that accepts connections with and without the PROXY protocol: load balancers use it
// for their probes, but the kubelet does not.
func proxyProtocol(a *anyBuilder) *listenerv3.ListenerFilter {
	return &listenerv3.ListenerFilter{
		Name: "envoy.filters.listener.proxy_protocol",
		ConfigType: &listenerv3.ListenerFilter_TypedConfig{TypedConfig: a.add(&proxyprotocolv3.ProxyProtocol{
			AllowRequestsWithoutProxyProtocol: true,
		})},
	}
}

func pathsTo(p port) *routev3.RouteConfiguration {
	all := &routev3.VirtualHost{Name: "backend", Domains: []string{"*"}}
	for _, path := range p.paths {
		all.Routes = append(all.Routes, &routev3.Route{
			Match: &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: path}},
			Action: &routev3.Route_Route{Route: &routev3.RouteAction{
				ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: p.cluster},
				PrefixRewrite:    p.rewrite,
			}},
		})
	}
	return &routev3.RouteConfiguration{VirtualHosts: []*routev3.VirtualHost{all}}
}
