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

// A server of mode AUTO_PASSTHROUGH passes the mesh's own TLS on as it is, to the service that the caller's sidecar names in
// the handshake: no rule is needed for it.

func (s server) autoPassthrough() bool {
	return s.spec.GetTls().GetMode() == networking.ServerTLSSettings_AUTO_PASSTHROUGH && s.protocol() == "TLS"
}

// named is a cluster of a service's port, as callers name it in the handshake.
type named struct {
	svc    *registry.Service
	subset string
	port   uint32
}

func (n named) sni() string { return sniName(n.svc.Hostname, n.subset, n.port) }

// passedOn are what servers of that mode lead to: what of the mesh they see.
func (v view) passedOn(covered func(host string) bool) []named {
	var out []named
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
				out = append(out, named{svc, subset, port.Number})
			}
		}
	}
	return out
}

func (v view) autoChains(s server) []*listenerv3.FilterChain {
	var out []*listenerv3.FilterChain
	covered := func(host string) bool {
		return slices.ContainsFunc(s.hosts(), func(pattern string) bool { return snapshot.MatchHost(pattern, host) })
	}
	for _, n := range v.passedOn(covered) {
		name := n.sni()
		out = append(out, &listenerv3.FilterChain{
			Name:             name,
			FilterChainMatch: &listenerv3.FilterChainMatch{ServerNames: []string{name}, ApplicationProtocols: meshProtocols},
			Filters:          v.tcpFilters(s.traffic(), name, toCluster(name)),
		})
	}
	return out
}

// passesOn says whether any server is of that mode.
func (v view) passesOn() bool {
	return v.p.Type == Router && slices.ContainsFunc(v.servers(), server.autoPassthrough)
}

// autoClusters are those that the TLS of others passes through: the endpoints are those of the service's own clusters.
func (v view) autoClusters() []*clusterv3.Cluster {
	if !v.passesOn() {
		return nil
	}
	var out []*clusterv3.Cluster
	for _, n := range v.passedOn(func(string) bool { return true }) {
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
