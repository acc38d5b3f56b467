package translate

import (
	"slices"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	dfpclusterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/clusters/dynamic_forward_proxy/v3"
	dfpcommonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/dynamic_forward_proxy/v3"
	dfpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/dynamic_forward_proxy/v3"
	headertometadatav3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/header_to_metadata/v3"
	setfilterstatev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/set_filter_state/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
)

// dnsCache returns the DNS cache that the dynamic forward proxy filter shares with its clusters. Envoy identifies
// caches by name, and rejects two caches with the same name and different settings, even if one belongs to an earlier
// configuration. The name therefore depends on family.
func dnsCache(family clusterv3.Cluster_DnsLookupFamily) *dfpcommonv3.DnsCacheConfig {
	name := "outside"
	if family != clusterv3.Cluster_V4_PREFERRED {
		name += "_" + strings.ToLower(family.String())
	}
	return &dfpcommonv3.DnsCacheConfig{Name: name, DnsLookupFamily: family}
}

// setDynamicForward makes a cluster connect to the host in the request.
func setDynamicForward(cluster *clusterv3.Cluster, family clusterv3.Cluster_DnsLookupFamily) {
	cluster.LbPolicy = clusterv3.Cluster_CLUSTER_PROVIDED
	cluster.ClusterDiscoveryType = &clusterv3.Cluster_ClusterType{ClusterType: &clusterv3.Cluster_CustomClusterType{
		Name: "envoy.clusters.dynamic_forward_proxy",
		TypedConfig: anyOf(&dfpclusterv3.ClusterConfig{
			ClusterImplementationSpecifier: &dfpclusterv3.ClusterConfig_DnsCacheConfig{DnsCacheConfig: dnsCache(family)},
		}),
	}}
	options := plainHTTPOptions(false)
	setAutoSNI(options)
	setHTTPOptions(cluster, options)
}

// setAutoSNI sets the SNI of TLS connections to the host in the request, and makes Envoy verify that the server's
// certificate is for this host. Envoy requires these options for clusters that connect to the host in the request, even
// without TLS.
func setAutoSNI(options *httpv3.HttpProtocolOptions) {
	options.UpstreamHttpProtocolOptions = &corev3.UpstreamHttpProtocolOptions{AutoSni: true, AutoSanValidation: true}
}

// Names of the filters that set the host and port of requests to clusters that resolve names. Routes configure these
// filters.
const (
	nameFilter   = "pilotfish.name"
	targetFilter = "pilotfish.place"
	// nameMetadata is the metadata namespace that contains a request's host without its port.
	nameMetadata = "pilotfish.name"
)

// dynamicForwardFilters returns the filters that resolve the host that the route specifies. If the route specifies
// none, as for hosts outside the mesh, they resolve the host in the request.
func (p *Proxy) dynamicForwardFilters() []*hcmv3.HttpFilter {
	return []*hcmv3.HttpFilter{
		httpFilter(nameFilter, &headertometadatav3.Config{}),
		httpFilter(targetFilter, &setfilterstatev3.Config{}),
		httpFilter("envoy.filters.http.dynamic_forward_proxy", &dfpv3.FilterConfig{
			ImplementationSpecifier:         &dfpv3.FilterConfig_DnsCacheConfig{DnsCacheConfig: dnsCache(p.dnsFamily(registry.Passthrough))},
			AllowDynamicHostFromFilterState: true,
		}),
	}
}

// hasDynamicForward reports whether the proxy forwards captured requests to the host in the request, for at least one
// visible service.
func (v proxyView) hasDynamicForward() bool {
	if !v.cache.byNameKnown {
		v.cache.byName = slices.ContainsFunc(v.scope.Services, func(svc *registry.Service) bool { return svc.ByName })
		v.cache.byNameKnown = true
	}
	return v.cache.byName
}
