package controlplane

import (
	"slices"
	"strings"

	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/controlplane/translate"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
)

// onDemand contains the clusters and virtual hosts of one proxy that requests them on demand: those in its workload's
// usage history, those that it claimed when it reconnected, and those that it has requested since. The set does not
// shrink while the proxy is connected, because Envoy does not request a removed cluster or a resolved host again.
type onDemand struct {
	proxy        *translate.Proxy
	usage        *usageHistory
	workload     string
	clusterNames map[string]bool
	missingCount int // number of clusters in has that did not exist when they were requested
	// existing contains the clusters that Envoy has, or is about to receive, in a version that was generated while they
	// existed in the mesh.
	existing map[string]bool
	routes   map[string]*routeHostSet
}

func newOnDemand(p *translate.Proxy, l *usageHistory) *onDemand {
	o := &onDemand{proxy: p, usage: l, workload: workloadOf(p), clusterNames: map[string]bool{}, existing: map[string]bool{}, routes: map[string]*routeHostSet{}}
	for _, name := range l.recentNames(o.workload) {
		if isOutbound(name) {
			o.clusterNames[name] = true
		} else {
			o.addHost(name)
		}
	}
	return o
}

// workloadOf returns the usage history's key, which all instances of a workload share.
func workloadOf(p *translate.Proxy) string {
	return p.Namespace + "/" + p.ServiceAccount + "/" + p.Workload
}

// resume adds the resources that a reconnecting proxy claims.
func (o *onDemand) resume(typeURL string, names []string) {
	if typeURL == xds.VirtualHostType {
		for _, name := range names {
			o.resumeHost(name)
		}
		return
	}
	if typeURL != xds.ClusterType {
		return
	}
	for _, name := range names {
		if isOutbound(name) {
			o.clusterNames[name], o.existing[name] = true, true
		}
	}
}

// maxMissingClusters limits the requested clusters that do not exist. They are stored because they may be created
// later.
const maxMissingClusters = 10_000

// addCluster adds a cluster to the set.
func (o *onDemand) addCluster(name string, real bool) {
	if !real {
		if o.missingCount >= maxMissingClusters {
			return
		}
		o.missingCount++
	}
	o.clusterNames[strings.Clone(name)] = true
}

func isOutbound(name string) bool { return strings.HasPrefix(name, "outbound|") }

func (o *onDemand) generateClusters(s *snapshot.Snapshot, wildcard bool, names []string) ([]*xds.Resource, error) {
	for _, name := range names {
		if isOutbound(name) && !o.clusterNames[name] {
			real := translate.HasCluster(s, o.proxy, name) // a proxy can request any name
			if real {
				o.usage.record(o.workload, name)
			}
			o.addCluster(name, real)
		}
	}
	if !wildcard {
		return translate.RequestedClusters(s, o.proxy, o.withoutRemoved(s, names))
	}
	needed, err := translate.RequiredClusters(s, o.proxy)
	if err != nil {
		return nil, err
	}
	for _, name := range needed {
		o.clusterNames[name] = true
	}
	held := make([]string, 0, len(o.clusterNames))
	for name := range o.clusterNames {
		held = append(held, name)
	}
	slices.Sort(held)
	return translate.HeldClusters(s, o.proxy, o.withoutRemoved(s, held))
}

// withoutRemoved returns names without the clusters that no longer exist but that Envoy has not removed yet. Envoy
// removes clusters at the end of a push. Only then are they replaced by clusters without endpoints.
func (o *onDemand) withoutRemoved(s *snapshot.Snapshot, names []string) []string {
	out := make([]string, 0, len(names))
	for _, name := range names {
		switch {
		case !isOutbound(name):
		case translate.HasCluster(s, o.proxy, name):
			o.existing[name] = true
		case o.existing[name]:
			continue
		}
		out = append(out, name)
	}
	return out
}

// startReplacing records that the server is about to remove clusters. It returns true if any of them is in the set.
func (o *onDemand) startReplacing(names []string) bool {
	found := false
	for _, name := range names {
		if o.clusterNames[name] {
			delete(o.existing, name)
			found = true
		}
	}
	return found
}

// filterScope removes clusters and hosts outside the set from a push scope, and adds those that the proxy newly needs.
func (o *onDemand) filterScope(s *snapshot.Snapshot, scope xds.PushScope) xds.PushScope {
	o.filterHostScope(s, scope)
	clusters := scope[xds.ClusterType]
	if clusters.All {
		return scope
	}
	clusters.Names = slices.DeleteFunc(slices.Clone(clusters.Names), func(name string) bool { return isOutbound(name) && !o.clusterNames[name] })
	if rules := scope[xds.RouteType]; rules.All || len(rules.Names) > 0 || scope[xds.ListenerType].All || len(scope[xds.VirtualHostType].Names) > 0 {
		needed, err := translate.RequiredClusters(s, o.proxy)
		if err != nil {
			return xds.FullPushScope()
		}
		for _, name := range needed {
			if !o.clusterNames[name] {
				o.clusterNames[name] = true
				clusters.Names = append(clusters.Names, name)
			}
		}
	}
	scope[xds.ClusterType] = clusters
	return scope
}
