package translate

import (
	"fmt"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// A server's defaultEndpoint is an address in the gateway's network namespace. Traffic that matches no VirtualService
// is forwarded there.

// defaultCluster returns the name of the defaultEndpoint's cluster, or "" if the server has none.
func (s server) defaultCluster() string {
	endpoint := s.spec.GetDefaultEndpoint()
	if endpoint == "" || s.defaultRefused || config.RedirectsToHTTPS(s.spec) || s.isAutoPassthrough() {
		return ""
	}
	return "default|" + endpoint
}

func (s server) defaultRoute() *routev3.Route {
	return &routev3.Route{
		Name: "default", Match: matchAllPaths(), RequestHeadersToRemove: []string{peerHeader},
		Action: &routev3.Route_Route{Route: &routev3.RouteAction{
			ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: s.defaultCluster()}, Timeout: duration(0),
		}},
	}
}

// defaultChains returns the filter chains that forward TCP connections to the defaultEndpoint. It returns nil if the
// server has no defaultEndpoint, or if its certificate is not available.
func (v proxyView) defaultChains(s server) []*listenerv3.FilterChain {
	cluster := s.defaultCluster()
	if cluster == "" {
		return nil
	}
	chain := &listenerv3.FilterChain{
		Name:    fmt.Sprintf("default.%d.%s.%s.%s", s.port, dotless.Replace(s.name()), s.gw.Name, s.gw.Namespace),
		Filters: v.tcpFilters(s.traffic(), cluster, toCluster(cluster)),
	}
	if s.protocol() != "TCP" {
		chain.FilterChainMatch = sniMatch(s.hosts())
	}
	if s.terminatesTLS() {
		if chain.TransportSocket = v.gatewayTLS(s); chain.TransportSocket == nil {
			return nil
		}
	}
	return []*listenerv3.FilterChain{chain}
}

// defaultClusters returns one cluster for each distinct defaultEndpoint.
func (v proxyView) defaultClusters() []*clusterv3.Cluster {
	var out []*clusterv3.Cluster
	seen := map[string]bool{"": true}
	for _, s := range v.servers() {
		name := s.defaultCluster()
		if seen[name] {
			continue
		}
		seen[name] = true
		to, _ := v.workloadAddress(s.spec.GetDefaultEndpoint())
		c := &clusterv3.Cluster{
			Name: name, ConnectTimeout: v.s.Mesh.GetConnectTimeout(), CircuitBreakers: circuitBreakers(nil, nil),
			ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC},
			LoadAssignment: &endpointv3.ClusterLoadAssignment{ClusterName: name, Endpoints: []*endpointv3.LocalityLbEndpoints{{
				LbEndpoints: []*endpointv3.LbEndpoint{{HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: to}}}},
			}}},
		}
		setHTTPOptions(c, downstreamProtocolOptions())
		out = append(out, c)
	}
	return out
}
