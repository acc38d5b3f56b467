package envoyfilter

import (
	"slices"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"
)

// Cluster contains the attributes of a cluster to which the match conditions of patches refer.
type Cluster struct {
	Side Side
	Name string
	// Services contains the hostnames of the services to which the cluster belongs.
	Services []string
	Subset   string
	Port     uint32
}

// ClusterPatches contains the patches for one cluster.
type ClusterPatches struct {
	set     *Set
	patches []*patch
	// Key identifies the patches; it is empty if there are none.
	Key string
}

// ForCluster returns the patches that change or remove the cluster c.
func (s *Set) ForCluster(c Cluster) ClusterPatches {
	patches := s.selectPatches(func(p *patch) bool {
		return p.to == networking.EnvoyFilter_CLUSTER && p.op != networking.EnvoyFilter_Patch_ADD && p.appliesTo(c.Side) && c.matches(p)
	})
	return ClusterPatches{set: s, patches: patches, Key: patchesKey(patches)}
}

// ClustersKey identifies the cluster patches of a set; it is empty if there are none.
func (s *Set) ClustersKey() string { return patchesKey(s.patchesFor(networking.EnvoyFilter_CLUSTER)) }

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

// TakeSkipped returns the skipped patches of the set, like Set.TakeSkipped.
func (c ClusterPatches) TakeSkipped() []SkippedPatch { return c.set.TakeSkipped() }

// Removes reports whether a patch removes the cluster.
func (c ClusterPatches) Removes() bool {
	return slices.ContainsFunc(c.patches, func(p *patch) bool { return p.op == networking.EnvoyFilter_Patch_REMOVE })
}

// Apply returns the cluster after the patches have changed it. It ignores patches that remove the cluster (see
// Removes).
func (c ClusterPatches) Apply(cluster *clusterv3.Cluster) *clusterv3.Cluster {
	for _, p := range c.patches {
		if p.isMerge() {
			cluster = tryPatch(c.set, p, "cluster", cluster.GetName(), cluster, checkCluster, p.changeCluster)
		}
	}
	return cluster
}

func (p *patch) changeCluster(cluster *clusterv3.Cluster) (bool, error) {
	value := proto.Clone(p.value).(*clusterv3.Cluster)
	value.Name = ""
	if socket := value.GetTransportSocket(); socket != nil && len(cluster.GetTransportSocketMatches()) > 0 {
		// The cluster has several transport sockets, and each endpoint selects one of them. The patch therefore applies
		// to the transport socket with the same name, and not to the field for a single transport socket.
		value.TransportSocket = nil
		for _, m := range cluster.GetTransportSocketMatches() {
			if m.GetTransportSocket().GetName() == socket.GetName() {
				p.merge(m.GetTransportSocket(), socket)
			}
		}
	}
	p.merge(cluster, value)
	return true, nil
}

// AddedClusters returns the clusters that patches add to a proxy. It omits clusters for whose name taken returns true.
func (s *Set) AddedClusters(router bool, taken func(name string) bool) []*clusterv3.Cluster {
	var out []*clusterv3.Cluster
	seen := map[string]bool{}
	for _, p := range s.patchesFor(networking.EnvoyFilter_CLUSTER) {
		added, ok := p.value.(*clusterv3.Cluster)
		if !ok || p.op != networking.EnvoyFilter_Patch_ADD || !p.appliesToProxy(router) || seen[added.GetName()] || taken(added.GetName()) {
			continue
		}
		if err := checkCluster(added); err != nil {
			s.skip(p, "cluster", added.GetName(), err)
			continue
		}
		seen[added.GetName()] = true
		out = append(out, added)
	}
	return out
}

// Extension returns the extension configuration that is called name and that patches add, or nil. If several patches
// add it, the last one takes effect.
func (s *Set) Extension(router bool, name string) *corev3.TypedExtensionConfig {
	var found *corev3.TypedExtensionConfig
	for _, p := range s.patchesFor(networking.EnvoyFilter_EXTENSION_CONFIG) {
		if e, ok := p.value.(*corev3.TypedExtensionConfig); ok && e.GetName() == name && p.appliesToProxy(router) {
			found = e
		}
	}
	return found
}

// Extensions returns the names of all extension configurations that patches add, without duplicates.
func (s *Set) Extensions(router bool) []string {
	var out []string
	for _, p := range s.patchesFor(networking.EnvoyFilter_EXTENSION_CONFIG) {
		if e, ok := p.value.(*corev3.TypedExtensionConfig); ok && p.appliesToProxy(router) && !slices.Contains(out, e.GetName()) {
			out = append(out, e.GetName())
		}
	}
	return out
}
