package translate

import (
	"slices"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
)

// Zone-aware routing is Envoy's: it keeps requests in the caller's zone as far as that overloads no endpoint there. For that
// it has to know which zones the workloads like its own are in; agents that are told to (ENABLE_SELF_DISCOVERY) have a
// cluster of these in Envoy's bootstrap.

// localCluster is what agents call that cluster.
const localCluster = "local_cluster"

// leastByZone is how many endpoints there are to be in the caller's region for their zones to matter.
const leastByZone = 6

// zoneSetting is what a rule says of zone-aware routing; nil where that is not in force.
func zoneSetting(t snapshot.Traffic) *networking.ZoneAwareLoadBalancerSetting {
	setting := t.LoadBalancer.GetZoneAwareLbSetting()
	if setting == nil || setting.GetEnabled() != nil && !setting.GetEnabled().GetValue() {
		return nil
	}
	return setting
}

// routeByZone has Envoy prefer its zone where a rule wants it, and nowhere else: it would do so by itself as soon as it
// knows the workloads like its own.
func (c outbound) routeByZone(cluster *clusterv3.Cluster, t snapshot.Traffic) {
	setting := zoneSetting(t)
	if cluster.GetCommonLbConfig() == nil || setting == nil && !c.zoned {
		return
	}
	zones := &clusterv3.Cluster_CommonLbConfig_ZoneAwareLbConfig{RoutingEnabled: &typev3.Percent{}}
	if setting != nil {
		zones.RoutingEnabled.Value = 100
		zones.MinClusterSize = wrapperspb.UInt64(leastByZone)
		if n := setting.GetMinClusterSize().GetValue(); n > 0 {
			zones.MinClusterSize = wrapperspb.UInt64(uint64(n))
		}
	}
	cluster.CommonLbConfig.LocalityConfigSpecifier = &clusterv3.Cluster_CommonLbConfig_ZoneAwareLbConfig_{ZoneAwareLbConfig: zones}
}

// zonePlace is where a caller is, as far as it matters: its region, and its labels that a setting asks for.
func zonePlace(p *Proxy, setting *networking.ZoneAwareLoadBalancerSetting) string {
	region, _, _ := strings.Cut(p.Locality, "/")
	place := "in " + region
	for _, key := range setting.GetFailoverPriority() {
		if key, _, given := strings.Cut(key, "="); !given {
			place += "\x00" + labelOf(p.Labels, p.Locality, p.Network, key)
		}
	}
	return place
}

// zonePriority: by the labels that are asked for, and among those alike the caller's region first, then the one that is
// named to fail over to. at is the caller's region, and its labels.
func zonePriority(e snapshot.Endpoint, setting *networking.ZoneAwareLoadBalancerSetting, at []string) int {
	const tiers = 3
	own := at[0]
	region, _, _ := strings.Cut(e.Locality, "/")
	tier := 0
	if region != own && own != "" {
		tier = 1
		if named := slices.IndexFunc(setting.GetFailover(), func(f *networking.ZoneAwareLoadBalancerSetting_Failover) bool { return f.GetFrom() == own }); named >= 0 && setting.GetFailover()[named].GetTo() != region {
			tier = 2
		}
	}
	return labelPriority(e, setting.GetFailoverPriority(), at[1:])*tiers + tier
}

// ownKey is all that the assignment of workloads like a proxy's own depends on.
type ownKey struct{ instances *snapshot.Instances }

// ownWorkload are the workloads like the proxy's own: those of the first service that selects it, each once.
func (v view) ownWorkload() (*xds.Resource, error) {
	var instances *snapshot.Instances
	for _, svc := range v.s.LocalServices(v.p.Namespace, v.p.Labels) {
		if instances = v.s.Instances(svc); instances != nil && len(instances.Endpoints) > 0 {
			break
		}
	}
	return v.s.Cache.Get(ownKey{instances}, func() (*xds.Resource, error) {
		out := &endpointv3.ClusterLoadAssignment{ClusterName: localCluster}
		if instances != nil {
			out.Endpoints = loadAssignment("", firstOfEach(instances.Endpoints)).GetEndpoints()
		}
		return xds.NewResource(localCluster, out)
	})
}

// firstOfEach keeps one endpoint of each workload, whatever number of ports it has.
func firstOfEach(eps []snapshot.Endpoint) []snapshot.Endpoint {
	seen := map[string]bool{}
	var out []snapshot.Endpoint
	for _, e := range eps {
		if !seen[e.Address] {
			seen[e.Address] = true
			out = append(out, e)
		}
	}
	return out
}
