package controlplane

import (
	"slices"
	"strings"

	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/controlplane/translate"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
)

// onDemand is which clusters and virtual hosts one proxy holds that asks for them as it needs them: those that its workload
// was seen to use before, those that it came with, and those that it asked for since. It lets none of them go while it is
// connected: to Envoy a cluster that was taken away is lost, and a host that it has asked for it never asks for again.
type onDemand struct {
	proxy    *translate.Proxy
	learned  *learned
	workload string
	has      map[string]bool
	vain     int // of these, those that were not there when they were asked for
	// real are the clusters that its Envoy has, or is about to have, as they were while the mesh had them.
	real   map[string]bool
	routes map[string]*heldRoute
}

func newOnDemand(p *translate.Proxy, l *learned) *onDemand {
	o := &onDemand{proxy: p, learned: l, workload: workloadOf(p), has: map[string]bool{}, real: map[string]bool{}, routes: map[string]*heldRoute{}}
	for _, name := range l.of(o.workload) {
		if isOutbound(name) {
			o.has[name] = true
		} else {
			o.holdHost(name)
		}
	}
	return o
}

// workloadOf names what instances of a workload have in common.
func workloadOf(p *translate.Proxy) string {
	return p.Namespace + "/" + p.ServiceAccount + "/" + p.Workload
}

// resume takes up what a proxy that comes back has.
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
			o.has[name], o.real[name] = true, true
		}
	}
}

// maxVain bounds the clusters that a proxy asked for and the mesh does not have, which are followed in case it has them later.
const maxVain = 10_000

// hold books that the proxy has a cluster.
func (o *onDemand) hold(name string, real bool) {
	if !real {
		if o.vain >= maxVain {
			return
		}
		o.vain++
	}
	o.has[strings.Clone(name)] = true
}

func isOutbound(name string) bool { return strings.HasPrefix(name, "outbound|") }

func (o *onDemand) clusters(s *snapshot.Snapshot, wildcard bool, names []string) ([]*xds.Resource, error) {
	for _, name := range names {
		if isOutbound(name) && !o.has[name] {
			real := translate.HasCluster(s, o.proxy, name) // anything can be asked for
			if real {
				o.learned.note(o.workload, name)
			}
			o.hold(name, real)
		}
	}
	if !wildcard {
		return translate.AskedClusters(s, o.proxy, o.present(s, names))
	}
	needed, err := translate.NeededClusters(s, o.proxy)
	if err != nil {
		return nil, err
	}
	for _, name := range needed {
		o.has[name] = true
	}
	held := make([]string, 0, len(o.has))
	for name := range o.has {
		held = append(held, name)
	}
	slices.Sort(held)
	return translate.HeldClusters(s, o.proxy, o.present(s, held))
}

// present leaves out clusters of what the mesh has no longer: they are removed, and that goes last. Only then there are others
// without endpoints in their places.
func (o *onDemand) present(s *snapshot.Snapshot, names []string) []string {
	out := make([]string, 0, len(names))
	for _, name := range names {
		switch {
		case !isOutbound(name):
		case translate.HasCluster(s, o.proxy, name):
			o.real[name] = true
		case o.real[name]:
			continue
		}
		out = append(out, name)
	}
	return out
}

// replaces takes note that clusters are about to be removed.
func (o *onDemand) replaces(names []string) bool {
	found := false
	for _, name := range names {
		if o.has[name] {
			delete(o.real, name)
			found = true
		}
	}
	return found
}

// affected leaves out what the proxy does not hold, and adds what it has to hold from now on.
func (o *onDemand) affected(s *snapshot.Snapshot, touches xds.Touches) xds.Touches {
	o.affectedHosts(s, touches)
	clusters := touches[xds.ClusterType]
	if clusters.All {
		return touches
	}
	clusters.Names = slices.DeleteFunc(slices.Clone(clusters.Names), func(name string) bool { return isOutbound(name) && !o.has[name] })
	if rules := touches[xds.RouteType]; rules.All || len(rules.Names) > 0 || touches[xds.ListenerType].All || len(touches[xds.VirtualHostType].Names) > 0 {
		needed, err := translate.NeededClusters(s, o.proxy)
		if err != nil {
			return xds.Everything()
		}
		for _, name := range needed {
			if !o.has[name] {
				o.has[name] = true
				clusters.Names = append(clusters.Names, name)
			}
		}
	}
	touches[xds.ClusterType] = clusters
	return touches
}
