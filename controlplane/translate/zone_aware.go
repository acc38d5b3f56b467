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

// With zone-aware routing, Envoy sends requests to endpoints in the caller's zone, unless that would overload them.
// Envoy must know the zones of the workloads of the proxy's own service. Agents with ENABLE_SELF_DISCOVERY define a
// cluster for these workloads in the bootstrap.

// localCluster is the name of the cluster that contains the workloads of the proxy's own service.
const localCluster = "local_cluster"

// minZoneEndpoints is the default minimum number of endpoints in the caller's region. If there are fewer, Envoy does
// not use zone-aware routing.
const minZoneEndpoints = 6

// zoneSetting returns the zone-aware setting of a DestinationRule, or nil if it is disabled.
func zoneSetting(t snapshot.Traffic) *networking.ZoneAwareLoadBalancerSetting {
	setting := t.LoadBalancer.GetZoneAwareLbSetting()
	if setting == nil || setting.GetEnabled() != nil && !setting.GetEnabled().GetValue() {
		return nil
	}
	return setting
}

// setZoneRouting enables zone-aware routing if a rule specifies it. Otherwise it disables zone-aware routing
// explicitly, because Envoy enables it by default if a local cluster exists.
func (c serviceCluster) setZoneRouting(cluster *clusterv3.Cluster, t snapshot.Traffic) {
	setting := zoneSetting(t)
	if cluster.GetCommonLbConfig() == nil || setting == nil && !c.selfDiscovery {
		return
	}
	zones := &clusterv3.Cluster_CommonLbConfig_ZoneAwareLbConfig{RoutingEnabled: &typev3.Percent{}}
	if setting != nil {
		zones.RoutingEnabled.Value = 100
		zones.MinClusterSize = wrapperspb.UInt64(minZoneEndpoints)
		if n := setting.GetMinClusterSize().GetValue(); n > 0 {
			zones.MinClusterSize = wrapperspb.UInt64(uint64(n))
		}
	}
	cluster.CommonLbConfig.LocalityConfigSpecifier = &clusterv3.Cluster_CommonLbConfig_ZoneAwareLbConfig_{ZoneAwareLbConfig: zones}
}

// zonePlace returns the caller's region, and the values of the labels that a setting compares.
func zonePlace(s *snapshot.Snapshot, p *Proxy, setting *networking.ZoneAwareLoadBalancerSetting) string {
	region, _, _ := strings.Cut(p.locality(s), "/")
	place := "in " + region
	for _, key := range setting.GetFailoverPriority() {
		if key, _, given := strings.Cut(key, "="); !given {
			place += "\x00" + workloadLabel(p.Labels, p.locality(s), p.Network, key)
		}
	}
	return place
}

// zonePriority returns the priority of an endpoint. It depends on the labels first, and then on whether the endpoint is
// in the caller's region, the failover region or another region. at contains the caller's region and label values.
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

// localClusterKey contains all values on which the local cluster's load assignment depends.
type localClusterKey struct{ instances *snapshot.Instances }

// localClusterAssignment returns a load assignment with the workloads of the first service that selects the proxy. It
// contains each workload once.
func (v proxyView) localClusterAssignment() (*xds.Resource, error) {
	var instances *snapshot.Instances
	for _, svc := range v.s.LocalServices(v.p.Namespace, v.p.Labels) {
		if instances = v.p.instances(v.s, svc); instances != nil && len(instances.Endpoints) > 0 {
			break
		}
	}
	return v.s.Cache.Get(localClusterKey{instances}, func() (*xds.Resource, error) {
		out := &endpointv3.ClusterLoadAssignment{ClusterName: localCluster}
		if instances != nil {
			out.Endpoints = loadAssignment("", dedupeByAddress(instances.Endpoints)).GetEndpoints()
		}
		return xds.NewResource(localCluster, out)
	})
}

// dedupeByAddress returns one endpoint for each address, even if the address has several ports.
func dedupeByAddress(eps []snapshot.Endpoint) []snapshot.Endpoint {
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
