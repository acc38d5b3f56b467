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

// grpcClusterKey is a cluster as gRPC takes it: of the same as that for Envoy, which has in it all that it depends on.
type grpcClusterKey struct {
	of *xds.Resource
	// certificates: the client has some of the mesh, and shows them where that is not demanded of it.
	certificates bool
}

// noEndpoints is the assignment of clusters that lead nowhere.
const noEndpoints = "none"

// outboundByName finds the cluster of a name; false when the mesh has none.
func (v view) outboundByName(name string) (outbound, bool) {
	host, subset, port, ok := parseOutbound(name)
	svc := v.scope.Service(host)
	if !ok || svc == nil {
		return outbound{}, false
	}
	rule := v.scope.DestinationRule(svc)
	if p, found := svc.Port(port); !found || p.Protocol == registry.UDP || subset != "" && rule.Subset(subset) == nil {
		return outbound{}, false
	}
	c := newOutbound(v.s, v.p, svc, port, rule)
	c.subset = subset
	return c, true
}

func (v view) grpcCluster(name string) (*xds.Resource, error) {
	c, ok := v.outboundByName(name)
	if !ok {
		return xds.NewResource(name, grpcNowhere(name))
	}
	full, err := c.resource(v.s, envoyfilter.ClusterPatches{}) // patches are for Envoys
	if err != nil {
		return nil, err
	}
	return v.s.Cache.Get(grpcClusterKey{full, v.p.Certificates}, func() (*xds.Resource, error) {
		var cluster clusterv3.Cluster
		if err := full.Body.UnmarshalTo(&cluster); err != nil {
			return nil, fmt.Errorf("cluster %s: %w", name, err)
		}
		return xds.NewResource(name, c.grpc(&cluster, v.p.Certificates))
	})
}

func grpcNowhere(name string) *clusterv3.Cluster {
	return &clusterv3.Cluster{
		Name:                 name,
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS},
		EdsClusterConfig:     &clusterv3.Cluster_EdsClusterConfig{EdsConfig: ads(), ServiceName: noEndpoints},
	}
}

// grpc makes of a cluster for Envoy one for gRPC, which knows two ways of balancing, circuit breaking by requests,
// outlier detection, and the mesh's own TLS. A cluster whose TLS it cannot have leads nowhere, rather than to plaintext.
func (c outbound) grpc(full *clusterv3.Cluster, certificates bool) *clusterv3.Cluster {
	port, _ := c.svc.Port(c.port)
	traffic := c.rule.Traffic(c.subset, c.port)
	security := c.security(port, traffic)
	if security.context != nil && !security.meshTLS() {
		return grpcNowhere(full.GetName())
	}
	out := grpcNowhere(full.GetName())
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
	// Not every endpoint may take mutual TLS, and a client cannot choose by endpoint.
	if security.meshTLS() && (!security.auto || certificates && c.facts.AllMTLS) {
		out.TransportSocket = grpcClientTLS(security.context.GetSni(), c.identities(traffic))
	}
	return out
}

// grpcDiscovery has gRPC resolve a name where Envoy would; it takes one for a cluster.
func (c outbound) grpcDiscovery(out *clusterv3.Cluster) {
	switch c.svc.Resolution {
	case registry.Static:
		out.EdsClusterConfig.ServiceName = ""
	case registry.Passthrough:
		if !strings.HasPrefix(c.svc.Hostname, "*") {
			grpcResolve(out, namedEndpoint(c.svc.Hostname, c.port))
		}
	default:
		for _, e := range c.endpoints(c.instances) {
			if !strings.HasPrefix(e.Address, "unix://") {
				grpcResolve(out, e)
				return
			}
		}
	}
}

// identities are those that the endpoints may prove to be, also under an alias of the trust domain, which a mesh has that
// comes from one name to another; with none, any of the mesh will do.
func (c outbound) identities(traffic snapshot.Traffic) []string {
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

func grpcResolve(out *clusterv3.Cluster, e snapshot.Endpoint) {
	out.EdsClusterConfig = nil
	out.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_LOGICAL_DNS}
	out.LoadAssignment = &endpointv3.ClusterLoadAssignment{
		ClusterName: out.GetName(),
		Endpoints:   []*endpointv3.LocalityLbEndpoints{{LbEndpoints: []*endpointv3.LbEndpoint{lbEndpoint(e)}}},
	}
}

// grpcAssignmentKey is a load assignment as gRPC takes it.
type grpcAssignmentKey struct{ of *xds.Resource }

func (v view) grpcAssignment(name string) (*xds.Resource, error) {
	c, ok := v.outboundByName(name)
	if !ok || c.svc.Resolution != registry.Static {
		return xds.NewResource(name, &endpointv3.ClusterLoadAssignment{ClusterName: name})
	}
	full, err := c.endpointsResource(v.s)
	if err != nil {
		return nil, err
	}
	return v.s.Cache.Get(grpcAssignmentKey{full}, func() (*xds.Resource, error) {
		var assignment endpointv3.ClusterLoadAssignment
		if err := full.Body.UnmarshalTo(&assignment); err != nil {
			return nil, fmt.Errorf("load assignment %s: %w", name, err)
		}
		grpcEndpoints(&assignment)
		return xds.NewResource(name, &assignment)
	})
}

// grpcEndpoints leaves out what gRPC refuses a whole assignment for: sockets in the file system, an address that is there
// twice, a locality without a name, and a gap in the priorities.
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
	closeGaps(rank)
	for _, group := range a.Endpoints {
		group.Priority = rank[group.GetPriority()]
	}
}
