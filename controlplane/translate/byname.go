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

// dnsCache is shared by the filter that resolves names and the clusters that connect to them: Envoy matches them by
// name, and refuses caches of one name that differ, also from those that it had before.
func dnsCache(family clusterv3.Cluster_DnsLookupFamily) *dfpcommonv3.DnsCacheConfig {
	name := "outside"
	if family != clusterv3.Cluster_V4_PREFERRED {
		name += "_" + strings.ToLower(family.String())
	}
	return &dfpcommonv3.DnsCacheConfig{Name: name, DnsLookupFamily: family}
}

// forwardByName makes a cluster connect to whatever host the request names.
func forwardByName(cluster *clusterv3.Cluster, family clusterv3.Cluster_DnsLookupFamily) {
	cluster.LbPolicy = clusterv3.Cluster_CLUSTER_PROVIDED
	cluster.ClusterDiscoveryType = &clusterv3.Cluster_ClusterType{ClusterType: &clusterv3.Cluster_CustomClusterType{
		Name: "envoy.clusters.dynamic_forward_proxy",
		TypedConfig: anyOf(&dfpclusterv3.ClusterConfig{
			ClusterImplementationSpecifier: &dfpclusterv3.ClusterConfig_DnsCacheConfig{DnsCacheConfig: dnsCache(family)},
		}),
	}}
	options := plainHTTPOptions(false)
	allowByName(options)
	setHTTPOptions(cluster, options)
}

// allowByName sets what Envoy insists on for such a cluster, whether or not it has TLS: that the name which is asked for
// is the one that is verified.
func allowByName(options *httpv3.HttpProtocolOptions) {
	options.UpstreamHttpProtocolOptions = &corev3.UpstreamHttpProtocolOptions{AutoSni: true, AutoSanValidation: true}
}

// The filters that say which host and port a request to such a cluster goes to, as routes have it.
const (
	nameFilter  = "pilotfish.name"
	placeFilter = "pilotfish.place"
	// nameMetadata is where a request's host is kept, without a port.
	nameMetadata = "pilotfish.name"
)

// forwardByNameFilters look up the host that a route has a request go to. Where no route says, as for what the mesh does
// not know, it is the one that the request names.
func (p *Proxy) forwardByNameFilters() []*hcmv3.HttpFilter {
	return []*hcmv3.HttpFilter{
		httpFilter(nameFilter, &headertometadatav3.Config{}),
		httpFilter(placeFilter, &setfilterstatev3.Config{}),
		httpFilter("envoy.filters.http.dynamic_forward_proxy", &dfpv3.FilterConfig{
			ImplementationSpecifier:         &dfpv3.FilterConfig_DnsCacheConfig{DnsCacheConfig: dnsCache(p.dnsFamily(registry.Passthrough))},
			AllowDynamicHostFromFilterState: true,
		}),
	}
}

// anyByName says whether requests of a captured workload may go to the host that they name.
func (v view) anyByName() bool {
	if !v.told.byNameKnown {
		v.told.byName = slices.ContainsFunc(v.scope.Services, func(svc *registry.Service) bool { return svc.ByName })
		v.told.byNameKnown = true
	}
	return v.told.byName
}
