package envoyfilter

import (
	"slices"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"
)

// Cluster says which cluster is patched.
type Cluster struct {
	Side Side
	Name string
	// Services are the hosts of the services that it is of.
	Services []string
	Subset   string
	Port     uint32
}

// ClusterPatches are the patches of one cluster.
type ClusterPatches struct {
	set     *Set
	patches []*patch
	// Key is equal for the same patches, and empty when there are none.
	Key string
}

// ForCluster gives the patches of a cluster.
func (s *Set) ForCluster(c Cluster) ClusterPatches {
	patches := s.pick(func(p *patch) bool {
		return p.to == networking.EnvoyFilter_CLUSTER && p.op != networking.EnvoyFilter_Patch_ADD && p.on(c.Side) && c.matches(p)
	})
	return ClusterPatches{set: s, patches: patches, Key: key(patches)}
}

// ClustersKey is equal for sets that patch all clusters alike, and empty for those that patch none.
func (s *Set) ClustersKey() string { return key(s.of(networking.EnvoyFilter_CLUSTER)) }

func (c Cluster) matches(p *patch) bool {
	if p.match.GetObjectTypes() == nil {
		return true
	}
	m := p.match.GetCluster()
	switch {
	case m == nil:
		return false
	case m.GetName() != "":
		return m.GetName() == c.Name
	}
	return (m.GetPortNumber() == 0 || m.GetPortNumber() == c.Port) && (m.GetSubset() == "" || m.GetSubset() == c.Subset) &&
		(m.GetService() == "" || slices.Contains(c.Services, m.GetService()))
}

// Take is that of the set.
func (c ClusterPatches) Take() []LeftOut { return c.set.Take() }

// Removes says whether a patch removes the cluster.
func (c ClusterPatches) Removes() bool {
	return slices.ContainsFunc(c.patches, func(p *patch) bool { return p.op == networking.EnvoyFilter_Patch_REMOVE })
}

// Apply gives the cluster with the patches.
func (c ClusterPatches) Apply(cluster *clusterv3.Cluster) *clusterv3.Cluster {
	for _, p := range c.patches {
		if p.op == networking.EnvoyFilter_Patch_MERGE {
			cluster = try(c.set, p, "cluster", cluster.GetName(), cluster, soundCluster, p.changeCluster)
		}
	}
	return cluster
}

func (p *patch) changeCluster(cluster *clusterv3.Cluster) (bool, error) {
	value := proto.Clone(p.value).(*clusterv3.Cluster)
	value.Name = ""
	if socket := value.GetTransportSocket(); socket != nil && len(cluster.GetTransportSocketMatches()) > 0 {
		// Which socket a connection gets, its endpoint decides: the patch is for the one of its name.
		value.TransportSocket = nil
		for _, m := range cluster.GetTransportSocketMatches() {
			if m.GetTransportSocket().GetName() == socket.GetName() {
				merge(m.GetTransportSocket(), socket)
			}
		}
	}
	merge(cluster, value)
	return true, nil
}

// AddedClusters are the clusters that patches add to a proxy, but for names that are taken.
func (s *Set) AddedClusters(router bool, taken func(name string) bool) []*clusterv3.Cluster {
	var out []*clusterv3.Cluster
	seen := map[string]bool{}
	for _, p := range s.of(networking.EnvoyFilter_CLUSTER) {
		added, ok := p.value.(*clusterv3.Cluster)
		if !ok || p.op != networking.EnvoyFilter_Patch_ADD || !p.onProxy(router) || seen[added.GetName()] || taken(added.GetName()) {
			continue
		}
		if err := soundCluster(added); err != nil {
			s.leaveOut(p, "cluster", added.GetName(), err)
			continue
		}
		seen[added.GetName()] = true
		out = append(out, added)
	}
	return out
}

// Extension is the configuration that patches give a name; nil when none does. Of several the last counts.
func (s *Set) Extension(router bool, name string) *corev3.TypedExtensionConfig {
	var found *corev3.TypedExtensionConfig
	for _, p := range s.of(networking.EnvoyFilter_EXTENSION_CONFIG) {
		if e, ok := p.value.(*corev3.TypedExtensionConfig); ok && e.GetName() == name && p.onProxy(router) {
			found = e
		}
	}
	return found
}

// Extensions are the names of all configurations that patches give.
func (s *Set) Extensions(router bool) []string {
	var out []string
	for _, p := range s.of(networking.EnvoyFilter_EXTENSION_CONFIG) {
		if e, ok := p.value.(*corev3.TypedExtensionConfig); ok && p.onProxy(router) && !slices.Contains(out, e.GetName()) {
			out = append(out, e.GetName())
		}
	}
	return out
}
