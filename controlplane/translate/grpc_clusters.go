package translate

import (
	"fmt"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/envoyfilter"
	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
)

// grpcClusterKey is the cache key of a cluster for gRPC. source is the cluster for Envoy from which it is derived.
type grpcClusterKey struct {
	source *xds.Resource
	// certificates: the client has a mesh certificate. It then uses mutual TLS even if the server accepts plaintext
	// too.
	certificates bool
}

// noEndpoints is the name of a load assignment without endpoints.
const noEndpoints = "none"

// findGRPCCluster returns the cluster that is called name and belongs to a visible service. It returns false if there
// is none.
func (v proxyView) findGRPCCluster(name string) (serviceCluster, bool) {
	host, subset, port, ok := parseOutbound(name)
	svc := v.scope.Service(host)
	if !ok || svc == nil {
		return serviceCluster{}, false
	}
	rule := v.scope.DestinationRule(svc)
	if p, found := svc.Port(port); !found || p.Protocol == registry.UDP || subset != "" && rule.Subset(subset) == nil {
		return serviceCluster{}, false
	}
	c := newServiceCluster(v.s, v.p, svc, port, rule)
	c.subset = subset
	return c, true
}

func (v proxyView) grpcCluster(name string) (*xds.Resource, error) {
	c, ok := v.findGRPCCluster(name)
	if !ok {
		return xds.NewResource(name, emptyGRPCCluster(name))
	}
	full, err := c.resource(v.s, envoyfilter.ClusterPatches{}) // EnvoyFilter patches apply only to Envoy
	if err != nil {
		return nil, err
	}
	return v.s.Cache.Get(grpcClusterKey{full, v.p.Certificates}, func() (*xds.Resource, error) {
		var cluster clusterv3.Cluster
		if err := full.Body.UnmarshalTo(&cluster); err != nil {
			return nil, fmt.Errorf("decoding the cluster %s: %w", name, err)
		}
		return xds.NewResource(name, c.toGRPC(&cluster, v.p.Certificates))
	})
}

func emptyGRPCCluster(name string) *clusterv3.Cluster {
	return &clusterv3.Cluster{
		Name:                 name,
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS},
		EdsClusterConfig:     &clusterv3.Cluster_EdsClusterConfig{EdsConfig: ads(), ServiceName: noEndpoints},
	}
}

// toGRPC converts a cluster for Envoy to one for gRPC. gRPC supports two load balancing policies, request limits,
// outlier detection and mesh TLS. If gRPC cannot establish the required TLS, the cluster has no endpoints, so that gRPC
// does not use plaintext.
func (c serviceCluster) toGRPC(full *clusterv3.Cluster, certificates bool) *clusterv3.Cluster {
	port, _ := c.svc.Port(c.port)
	traffic := c.rule.Traffic(c.subset, c.port)
	security := c.security(port, traffic)
	if c.refused || security.context != nil && !security.meshTLS() {
		return emptyGRPCCluster(full.GetName())
	}
	out := emptyGRPCCluster(full.GetName())
	out.ConnectTimeout, out.Metadata = full.GetConnectTimeout(), full.GetMetadata()
	out.OutlierDetection, out.CircuitBreakers = full.GetOutlierDetection(), full.GetCircuitBreakers()
	if hash := traffic.LoadBalancer.GetConsistentHash(); hash.GetHashKey() != nil {
		out.LbPolicy = clusterv3.Cluster_RING_HASH
		out.LbConfig = &clusterv3.Cluster_RingHashLbConfig_{RingHashLbConfig: full.GetRingHashLbConfig()}
		if full.GetRingHashLbConfig() == nil {
			out.LbConfig = nil
		}
	}
	c.grpcDiscovery(out)
	// A gRPC client cannot choose between TLS and plaintext for each endpoint. It uses TLS only if all endpoints accept
	// mutual TLS.
	if security.meshTLS() && (!security.auto || certificates && c.facts.AllMTLS) {
		out.TransportSocket = grpcClientTLS(security.context.GetSni(), c.identities(traffic))
	}
	return out
}

// grpcDiscovery sets how a gRPC client finds the cluster's endpoints: by EDS for a static service, otherwise by DNS.
// gRPC supports one DNS name per cluster: the hostname of a passthrough service, or the first endpoint that is not a
// Unix socket. Without such a name, the cluster has no endpoints.
func (c serviceCluster) grpcDiscovery(out *clusterv3.Cluster) {
	switch c.svc.Resolution {
	case registry.Static:
		out.EdsClusterConfig.ServiceName = ""
	case registry.Passthrough:
		if !strings.HasPrefix(c.svc.Hostname, "*") {
			setGRPCLogicalDNS(out, namedEndpoint(c.svc.Hostname, c.port))
		}
	default:
		for _, e := range c.endpoints(c.instances) {
			if !strings.HasPrefix(e.Address, "unix://") {
				setGRPCLogicalDNS(out, e)
				return
			}
		}
	}
}

// identities returns the SPIFFE IDs that the endpoints may have: the subjectAltNames of the DestinationRule, or else
// the IDs of the service's endpoints. The latter include the IDs in the trust domain's aliases, which endpoints have
// while the mesh changes its trust domain. An empty list means that any identity of the mesh is accepted.
func (c serviceCluster) identities(traffic snapshot.Traffic) []string {
	if names := traffic.TLS.GetSubjectAltNames(); len(names) > 0 {
		return names
	}
	own := "spiffe://" + c.mesh.GetTrustDomain() + "/"
	out := c.facts.Identities[:len(c.facts.Identities):len(c.facts.Identities)]
	for _, id := range c.facts.Identities {
		name, ok := strings.CutPrefix(id, own)
		if !ok {
			continue
		}
		for _, alias := range c.mesh.GetTrustDomainAliases() {
			out = append(out, "spiffe://"+alias+"/"+name)
		}
	}
	return out
}

func namedEndpoint(host string, port uint32) snapshot.Endpoint {
	return snapshot.Endpoint{Endpoint: &registry.Endpoint{Address: host, Port: port}}
}

func setGRPCLogicalDNS(out *clusterv3.Cluster, e snapshot.Endpoint) {
	out.EdsClusterConfig = nil
	out.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_LOGICAL_DNS}
	out.LoadAssignment = &endpointv3.ClusterLoadAssignment{
		ClusterName: out.GetName(),
		Endpoints:   []*endpointv3.LocalityLbEndpoints{{LbEndpoints: []*endpointv3.LbEndpoint{lbEndpoint(e)}}},
	}
}

// grpcAssignmentKey is the cache key of a load assignment for gRPC. source is the load assignment for Envoy from which
// it is derived.
type grpcAssignmentKey struct{ source *xds.Resource }

func (v proxyView) grpcAssignment(name string) (*xds.Resource, error) {
	c, ok := v.findGRPCCluster(name)
	if !ok || c.svc.Resolution != registry.Static {
		return xds.NewResource(name, &endpointv3.ClusterLoadAssignment{ClusterName: name})
	}
	full, err := c.endpointsResource(v)
	if err != nil {
		return nil, err
	}
	return v.s.Cache.Get(grpcAssignmentKey{full}, func() (*xds.Resource, error) {
		var assignment endpointv3.ClusterLoadAssignment
		if err := full.Body.UnmarshalTo(&assignment); err != nil {
			return nil, fmt.Errorf("decoding the load assignment %s: %w", name, err)
		}
		grpcEndpoints(&assignment)
		return xds.NewResource(name, &assignment)
	})
}

// grpcEndpoints removes those parts of a load assignment that gRPC would reject: Unix sockets, duplicate addresses,
// localities without a name, and gaps in the priorities.
func grpcEndpoints(a *endpointv3.ClusterLoadAssignment) {
	a.Policy = nil
	seen := map[string]bool{}
	rank := map[uint32]uint32{}
	kept := a.Endpoints[:0]
	for _, group := range a.Endpoints {
		endpoints := group.LbEndpoints[:0]
		for _, e := range group.LbEndpoints {
			at := e.GetEndpoint().GetAddress().GetSocketAddress()
			key := fmt.Sprint(at.GetAddress(), " ", at.GetPortValue())
			if at == nil || seen[key] {
				continue
			}
			seen[key] = true
			e.GetEndpoint().AdditionalAddresses = nil
			endpoints = append(endpoints, e)
		}
		if len(endpoints) == 0 {
			continue
		}
		group.LbEndpoints = endpoints
		if group.Locality == nil {
			group.Locality = &corev3.Locality{}
		}
		rank[group.GetPriority()] = 0
		kept = append(kept, group)
	}
	a.Endpoints = kept
	renumberPriorities(rank)
	for _, group := range a.Endpoints {
		group.Priority = rank[group.GetPriority()]
	}
}
