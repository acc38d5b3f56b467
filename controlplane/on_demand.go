package controlplane

import (
	"slices"
	"strings"

	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/controlplane/translate"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
)

// onDemand contains the clusters and virtual hosts that one proxy has, if the proxy requests them on demand. They are
// from its workload's usage history, from its report at a reconnect, and from its later requests. No name is removed
// while the proxy is connected, because Envoy requests neither a removed cluster nor a resolved host again.
type onDemand struct {
	proxy        *translate.Proxy
	usage        *usageHistory
	workload     string
	clusterNames map[string]bool
	missingCount int // number of clusters in clusterNames that did not exist when the proxy requested them
	// existing contains the clusters in clusterNames that existed in the mesh when they were generated for this proxy.
	// Envoy has these clusters, or is about to receive them.
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

// workloadOf returns the proxy's key in the usage history. All instances of a workload have the same key.
func workloadOf(p *translate.Proxy) string {
	return p.Namespace + "/" + p.ServiceAccount + "/" + p.Workload
}

// resume adds the clusters or virtual hosts called names, which a reconnecting proxy reports.
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

// maxMissingClusters limits the number of recorded clusters that do not exist. They are recorded because they may exist
// later.
const maxMissingClusters = 10_000

// addCluster records that the proxy has the cluster name. If real is false, the cluster does not exist in the mesh;
// addCluster ignores it if there are too many of these.
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
			// The cluster may not exist, because a proxy can request any name.
			real := translate.HasCluster(s, o.proxy, name)
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

// withoutRemoved returns names without the clusters that Envoy has, but that no longer exist in the mesh. The server
// removes these from Envoy at the end of the push, and only then replaces them by clusters without endpoints.
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

// startReplacing records that the server is about to remove the clusters called names. It returns true if the
// proxy has requested any of them: the server must then send a cluster without endpoints in its place.
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

// filterScope limits scope to the clusters and virtual hosts that the proxy has, and adds those that its listeners and
// routes now require.
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
