package controlplane

import (
	"maps"
	"slices"
	"strings"

	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/controlplane/translate"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
)

// maxUnknownHosts limits the requested hosts of one route configuration that do not exist in the mesh. A proxy that
// exceeds the limit receives all virtual hosts and a catch-all virtual host, so that it requests no further ones.
const maxUnknownHosts = 100

// maxHostNames limits the number of host names that a proxy requests of one route configuration. There may be many: a
// virtual host may have several names, and a wildcard matches any number of names. A proxy that exceeds the limit
// receives all virtual hosts too.
const maxHostNames = 10_000

// routeHostSet contains the virtual hosts of one route configuration that a proxy has.
type routeHostSet struct {
	names    map[string]bool // requested names, and names of virtual hosts that a reconnecting proxy reported
	all      bool
	resolved map[string]bool // resources to which names resolved in the last generation; nil if all is set
}

// addHost records that the proxy requested the virtual host with the resource name "route/host".
func (o *onDemand) addHost(name string) {
	route, host := xds.SplitVirtualHostName(name)
	if route == "" || host == "" {
		return
	}
	if r := o.routeHosts(route); !r.all {
		r.names[strings.Clone(host)] = true
	}
}

// resumeHost records that a reconnecting proxy reports the virtual host with the resource name "route/host". If the
// virtual host is the catch-all, the proxy has all virtual hosts. A request for the catch-all would not prove this,
// because an HTTP request may contain any host.
func (o *onDemand) resumeHost(name string) {
	if route, host := xds.SplitVirtualHostName(name); route != "" && translate.IsCatchAllHost(host) {
		o.routeHosts(route).all = true
		return
	}
	o.addHost(name)
}

func (o *onDemand) routeHosts(name string) *routeHostSet {
	r := o.routes[name]
	if r == nil {
		r = &routeHostSet{names: map[string]bool{}}
		o.routes[name] = r
	}
	return r
}

// heldHosts returns the virtual hosts of the route configuration route that the proxy has, and those called more. It
// returns nil if the proxy does not request the virtual hosts of route on demand.
func (o *onDemand) heldHosts(s *snapshot.Snapshot, route string, more ...string) *translate.HeldHosts {
	var names []string
	all := false
	if r := o.routes[route]; r != nil {
		all = r.all
		for name := range r.names {
			names = append(names, name)
		}
	}
	return translate.NewHeldHosts(s, o.proxy, route, append(names, more...), all)
}

// resolve resolves names, the requested names of virtual hosts. targets maps each resolvable name to the name of its
// resource. before contains the clusters that the proxy must receive before the virtual hosts.
func (o *onDemand) resolve(s *snapshot.Snapshot, names []string) (targets map[string]string, before xds.PushScope) {
	targets, before = map[string]string{}, xds.PushScope{}
	byRoute := map[string][]string{}
	for _, name := range names {
		route, host := xds.SplitVirtualHostName(name)
		byRoute[route] = append(byRoute[route], host)
	}
	for route, hosts := range byRoute {
		held := o.resolveRoute(s, route, hosts)
		if held == nil {
			continue
		}
		wanted := map[string]bool{}
		for _, host := range hosts {
			if target := held.ResourceName(host); target != "" {
				targets[route+"/"+host] = target
				wanted[target] = true
			}
		}
		if made, err := held.Resources(func(name string) bool { return wanted[name] }); err == nil {
			before.Add(xds.ClusterType, o.addClusters(s, translate.ReferencedClusters(made))...)
		}
	}
	return targets, before
}

func (o *onDemand) resolveRoute(s *snapshot.Snapshot, route string, hosts []string) *translate.HeldHosts {
	held := o.heldHosts(s, route, hosts...)
	if held == nil {
		return nil
	}
	for _, host := range hosts {
		if held.ResourceName(host) != "" {
			o.addHost(route + "/" + host)
			o.usage.record(o.workload, route+"/"+host)
		}
	}
	if r := o.routes[route]; r != nil && !r.all && (held.Unknown() > maxUnknownHosts || len(r.names) > maxHostNames) {
		r.all = true
		clear(r.names)
		return o.heldHosts(s, route, hosts...)
	}
	return held
}

// addClusters records that the proxy needs clusters. It returns those that exist in the mesh and that the proxy does
// not have yet.
func (o *onDemand) addClusters(s *snapshot.Snapshot, clusters []string) []string {
	return slices.DeleteFunc(clusters, func(name string) bool {
		if o.clusterNames[name] || !translate.HasCluster(s, o.proxy, name) {
			return true
		}
		o.usage.record(o.workload, name)
		o.addCluster(name, true)
		return false
	})
}

// generateHosts generates the virtual hosts of routes that the proxy has. If wanted is not nil, it generates only the
// virtual hosts in wanted.
func (o *onDemand) generateHosts(s *snapshot.Snapshot, routes []string, wanted map[string]bool) ([]*xds.Resource, error) {
	var out []*xds.Resource
	for _, route := range routes {
		held := o.heldHosts(s, route)
		if held == nil {
			continue
		}
		if wanted == nil {
			o.routeHosts(route).resolved = held.Names()
		}
		made, err := held.Resources(func(name string) bool { return wanted == nil || wanted[name] })
		if err != nil {
			return nil, err
		}
		out = append(out, made...)
	}
	return out, nil
}

// generateNamedHosts generates those virtual hosts of the proxy whose resource names are in names.
func (o *onDemand) generateNamedHosts(s *snapshot.Snapshot, names []string) ([]*xds.Resource, error) {
	wanted, routes := map[string]bool{}, map[string]bool{}
	for _, name := range names {
		route, _ := xds.SplitVirtualHostName(name)
		wanted[name], routes[route] = true, true
	}
	return o.generateHosts(s, slices.Sorted(maps.Keys(routes)), wanted)
}

// filterHostScope removes the virtual hosts that the proxy does not have from scope. It adds the virtual hosts to which
// the proxy's names now resolve, or no longer resolve.
func (o *onDemand) filterHostScope(s *snapshot.Snapshot, scope xds.PushScope) {
	hosts, ok := scope[xds.VirtualHostType]
	if !ok || hosts.All {
		return
	}
	byRoute := map[string][]string{}
	for _, name := range hosts.Names {
		route, _ := xds.SplitVirtualHostName(name)
		byRoute[route] = append(byRoute[route], name)
	}
	var names []string
	for route, changed := range byRoute {
		r, held := o.routeHosts(route), o.heldHosts(s, route)
		if held.All() {
			names = append(names, changed...)
			continue
		}
		now, before := held.Names(), r.resolved
		for _, name := range changed {
			if now[name] || before[name] {
				names = append(names, name)
			}
		}
		names = append(names, symmetricDifference(now, before)...)
		r.resolved = now
	}
	if len(names) == 0 {
		delete(scope, xds.VirtualHostType)
		return
	}
	scope[xds.VirtualHostType] = xds.TypeScope{Names: names}
}

func symmetricDifference(a, b map[string]bool) []string {
	var out []string
	for name := range a {
		if !b[name] {
			out = append(out, name)
		}
	}
	for name := range b {
		if !a[name] {
			out = append(out, name)
		}
	}
	return out
}
