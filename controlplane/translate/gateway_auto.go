package translate

import (
	"slices"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
)

// isAutoPassthrough reports whether the server has mode AUTO_PASSTHROUGH. In this mode, the gateway forwards mesh TLS
// to the service that the SNI identifies, and does not terminate it. This mode requires no VirtualService.
func (s server) isAutoPassthrough() bool {
	return s.spec.GetTls().GetMode() == networking.ServerTLSSettings_AUTO_PASSTHROUGH && s.protocol() == "TLS"
}

// autoPassthroughTarget identifies a cluster that clients select by SNI: a port of a service, and a subset or "".
type autoPassthroughTarget struct {
	svc    *registry.Service
	subset string
	port   uint32
}

func (n autoPassthroughTarget) sni() string { return sniName(n.svc.Hostname, n.subset, n.port) }

// autoPassthroughTargets returns the targets of AUTO_PASSTHROUGH servers: the clusters of the visible services for
// whose host covered returns true.
func (v proxyView) autoPassthroughTargets(covered func(host string) bool) []autoPassthroughTarget {
	var out []autoPassthroughTarget
	for _, svc := range v.scope.Services {
		if svc.External || svc.Resolution != registry.Static || !covered(svc.Hostname) {
			continue
		}
		subsets := []string{""}
		if rule := v.scope.DestinationRule(svc); rule != nil {
			for _, s := range rule.Subsets {
				subsets = append(subsets, s.GetName())
			}
		}
		for _, port := range svc.Ports {
			if port.Protocol == registry.UDP {
				continue
			}
			for _, subset := range subsets {
				out = append(out, autoPassthroughTarget{svc, subset, port.Number})
			}
		}
	}
	return out
}

func (v proxyView) autoPassthroughChains(s server) []*listenerv3.FilterChain {
	var out []*listenerv3.FilterChain
	covered := func(host string) bool {
		return slices.ContainsFunc(s.hosts(), func(pattern string) bool { return snapshot.MatchHost(pattern, host) })
	}
	for _, n := range v.autoPassthroughTargets(covered) {
		name := n.sni()
		out = append(out, &listenerv3.FilterChain{
			Name:             name,
			FilterChainMatch: &listenerv3.FilterChainMatch{ServerNames: []string{name}, ApplicationProtocols: meshProtocols},
			Filters:          v.tcpFilters(s.traffic(), name, toCluster(name)),
		})
	}
	return out
}

// hasAutoPassthrough reports whether the router has a server of mode AUTO_PASSTHROUGH.
func (v proxyView) hasAutoPassthrough() bool {
	return v.p.Type == Router && slices.ContainsFunc(v.servers(), server.isAutoPassthrough)
}

// autoPassthroughClusters returns clusters that forward TLS without terminating it. They use the load assignments of
// the services' regular clusters.
func (v proxyView) autoPassthroughClusters() []*clusterv3.Cluster {
	if !v.hasAutoPassthrough() {
		return nil
	}
	var out []*clusterv3.Cluster
	for _, n := range v.autoPassthroughTargets(func(string) bool { return true }) {
		out = append(out, &clusterv3.Cluster{
			Name: n.sni(), AltStatName: statName(n.sni()), ConnectTimeout: v.s.Mesh.GetConnectTimeout(), CircuitBreakers: circuitBreakers(nil, nil),
			ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS},
			EdsClusterConfig: &clusterv3.Cluster_EdsClusterConfig{
				EdsConfig: ads(), ServiceName: OutboundCluster(n.svc.Hostname, n.subset, n.port),
			},
			CommonLbConfig: &clusterv3.Cluster_CommonLbConfig{HealthyPanicThreshold: &typev3.Percent{}},
			LbPolicy:       clusterv3.Cluster_LEAST_REQUEST,
		})
	}
	return out
}
