package controlplane

import (
	"maps"
	"slices"
	"strings"

	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/controlplane/translate"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
)

// maxUnknown bounds the hosts that the mesh does not know and a proxy asked for, of one route configuration. A proxy that
// asks for more is given all hosts of the mesh, and one for all that are not: then it has nothing to ask any more.
const maxUnknown = 100

// maxNamed bounds all names of hosts that a proxy asked for, of one route configuration: known hosts have several, and patterns
// stand for any number. A proxy that asks by more is given all hosts too.
const maxNamed = 10_000

// heldRoute is which virtual hosts of one route configuration a proxy holds.
type heldRoute struct {
	names map[string]bool // that it asked for, or that stand for what it has
	all   bool
	sent  map[string]bool // the resources that they led to last; nothing while there are all
}

// holdHost books that the proxy is to have what a name leads to.
func (o *onDemand) holdHost(name string) {
	route, host := xds.CutHost(name)
	if route == "" || host == "" {
		return
	}
	if r := o.route(route); !r.all {
		r.names[strings.Clone(host)] = true
	}
}

// resumeHost takes up a virtual host that the proxy has. Only of what it has the name says that it has all: a request may name
// any host.
func (o *onDemand) resumeHost(name string) {
	if route, host := xds.CutHost(name); route != "" && translate.ForAllHosts(host) {
		o.route(route).all = true
		return
	}
	o.holdHost(name)
}

func (o *onDemand) route(name string) *heldRoute {
	r := o.routes[name]
	if r == nil {
		r = &heldRoute{names: map[string]bool{}}
		o.routes[name] = r
	}
	return r
}

// held says what the proxy holds of a route configuration; nil when there is nothing to ask for.
func (o *onDemand) held(s *snapshot.Snapshot, route string, more ...string) *translate.HeldHosts {
	var names []string
	all := false
	if r := o.routes[route]; r != nil {
		all = r.all
		for name := range r.names {
			names = append(names, name)
		}
	}
	return translate.Held(s, o.proxy, route, append(names, more...), all)
}

// ask books virtual hosts that requests need, and has the clusters that they lead to come before them.
func (o *onDemand) ask(s *snapshot.Snapshot, names []string) (leads map[string]string, before xds.Touches) {
	leads, before = map[string]string{}, xds.Touches{}
	byRoute := map[string][]string{}
	for _, name := range names {
		route, host := xds.CutHost(name)
		byRoute[route] = append(byRoute[route], host)
	}
	for route, hosts := range byRoute {
		held := o.askOf(s, route, hosts)
		if held == nil {
			continue
		}
		wanted := map[string]bool{}
		for _, host := range hosts {
			if lead := held.Lead(host); lead != "" {
				leads[route+"/"+host] = lead
				wanted[lead] = true
			}
		}
		if made, err := held.Resources(func(name string) bool { return wanted[name] }); err == nil {
			before.Add(xds.ClusterType, o.lacking(s, translate.ClustersOf(made))...)
		}
	}
	return leads, before
}

func (o *onDemand) askOf(s *snapshot.Snapshot, route string, hosts []string) *translate.HeldHosts {
	held := o.held(s, route, hosts...)
	if held == nil {
		return nil
	}
	for _, host := range hosts {
		if held.Lead(host) != "" {
			o.holdHost(route + "/" + host)
			o.learned.note(o.workload, route+"/"+host)
		}
	}
	if r := o.routes[route]; r != nil && !r.all && (held.Unknown() > maxUnknown || len(r.names) > maxNamed) {
		r.all = true
		clear(r.names)
		return o.held(s, route, hosts...)
	}
	return held
}

// lacking books clusters that the proxy is about to need, and gives those that it does not have.
func (o *onDemand) lacking(s *snapshot.Snapshot, clusters []string) []string {
	return slices.DeleteFunc(clusters, func(name string) bool {
		if o.has[name] || !translate.HasCluster(s, o.proxy, name) {
			return true
		}
		o.learned.note(o.workload, name)
		o.hold(name, true)
		return false
	})
}

// hosts makes the virtual hosts of route configurations that the proxy holds: those that are wanted, or with nil all.
func (o *onDemand) hosts(s *snapshot.Snapshot, routes []string, wanted map[string]bool) ([]*xds.Resource, error) {
	var out []*xds.Resource
	for _, route := range routes {
		held := o.held(s, route)
		if held == nil {
			continue
		}
		if wanted == nil {
			o.route(route).sent = held.Names()
		}
		made, err := held.Resources(func(name string) bool { return wanted == nil || wanted[name] })
		if err != nil {
			return nil, err
		}
		out = append(out, made...)
	}
	return out, nil
}

// namedHosts makes those of them that are named.
func (o *onDemand) namedHosts(s *snapshot.Snapshot, names []string) ([]*xds.Resource, error) {
	wanted, routes := map[string]bool{}, map[string]bool{}
	for _, name := range names {
		route, _ := xds.CutHost(name)
		wanted[name], routes[route] = true, true
	}
	return o.hosts(s, slices.Sorted(maps.Keys(routes)), wanted)
}

// affectedHosts leaves out of the virtual hosts what the proxy does not hold, and adds what its names lead to now and did not
// before.
func (o *onDemand) affectedHosts(s *snapshot.Snapshot, touches xds.Touches) {
	touched, ok := touches[xds.VirtualHostType]
	if !ok || touched.All {
		return
	}
	byRoute := map[string][]string{}
	for _, name := range touched.Names {
		route, _ := xds.CutHost(name)
		byRoute[route] = append(byRoute[route], name)
	}
	var names []string
	for route, changed := range byRoute {
		r, held := o.route(route), o.held(s, route)
		if held.All() {
			names = append(names, changed...)
			continue
		}
		now, before := held.Names(), r.sent
		for _, name := range changed {
			if now[name] || before[name] {
				names = append(names, name)
			}
		}
		names = append(names, differing(now, before)...)
		r.sent = now
	}
	if len(names) == 0 {
		delete(touches, xds.VirtualHostType)
		return
	}
	touches[xds.VirtualHostType] = xds.Touched{Names: names}
}

func differing(a, b map[string]bool) []string {
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
