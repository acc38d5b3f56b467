package xds

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
)

// The states of the model have clusters c0 and following. Clusters whose content begins with "eds" have an assignment.
// The content of a listener names the route configurations to which the listener refers. Route configurations r0 and r1
// use VHDS, and r2 has inline virtual hosts. Routes name their cluster: "to c1 #7".

func initialState() meshState {
	w := meshState{}
	for i := range 3 {
		w = w.withResource(cds, fmt.Sprint("c", i), "eds #0").withResource(eds, fmt.Sprint("c", i), "at #0")
		w = w.withResource(rds, fmt.Sprint("r", i), map[bool]string{true: "apart #0", false: "to c0 #0"}[i < 2])
	}
	return w.withResource(lds, "l0", "r0 r2 #0").withResource(VirtualHostType, "r0/a", "to c1 #0").withResource(VirtualHostType, "r1/a", "to c2 #0")
}

// edit returns the next state, and the types or resource names that changed.
func edit(rng *rand.Rand, w meshState, n int, faults bool) (meshState, []string) {
	content := func(s string) string {
		s = fmt.Sprintf("%s #%d", s, n)
		if faults && rng.IntN(6) == 0 {
			s += " bad"
		}
		return s
	}
	next := w
	for range 1 + rng.IntN(3) {
		cluster := fmt.Sprint("c", rng.IntN(6))
		switch rng.IntN(9) {
		case 0, 1:
			next = next.withResource(cds, cluster, content("eds")).withResource(eds, cluster, content("at"))
		case 2:
			next = next.withResource(cds, cluster, content("static")).withoutResource(eds, cluster)
		case 3:
			if cluster != "c0" {
				next = next.withoutResource(cds, cluster).withoutResource(eds, cluster)
			}
		case 4:
			if _, ok := next[eds][cluster]; ok {
				next = next.withResource(eds, cluster, content("at"))
			}
		case 5:
			next = next.withResource(lds, fmt.Sprint("l", rng.IntN(3)), content([]string{"r0", "r1", "r2", "r0 r1", "r0 r1 r2"}[rng.IntN(5)]))
		case 6:
			next = next.withoutResource(lds, fmt.Sprint("l", rng.IntN(3)))
		case 7:
			next = next.withResource(VirtualHostType, fmt.Sprintf("r%d/%c", rng.IntN(2), 'a'+rune(rng.IntN(4))), content("to "+cluster))
		case 8:
			switch r := rng.IntN(4); r {
			case 0, 1:
				next = next.withResource(rds, fmt.Sprint("r", r), content("apart"))
			case 2:
				next = next.withResource(rds, "r2", content("to "+cluster))
			case 3:
				next = next.withoutResource(VirtualHostType, fmt.Sprintf("r%d/%c", rng.IntN(2), 'a'+rune(rng.IntN(4))))
			}
		}
	}
	next = withValidRoutes(next, n)
	return next, changedResources(rng, w, next)
}

// withValidRoutes changes routes to missing clusters into routes to c0.
func withValidRoutes(w meshState, n int) meshState {
	for _, typeURL := range []string{rds, VirtualHostType} {
		for _, name := range slices.Sorted(maps.Keys(w[typeURL])) {
			content := w[typeURL][name]
			if to := routeCluster(content); to != "" && w[cds][to] == "" {
				w = w.withResource(typeURL, name, fmt.Sprintf("to c0 #%d", n))
			}
		}
	}
	return w
}

// routeCluster returns the cluster of a route, or "".
func routeCluster(content string) string {
	to, ok := strings.CutPrefix(content, "to ")
	if !ok {
		return ""
	}
	return strings.Fields(to)[0]
}

func changedResources(rng *rand.Rand, before, after meshState) []string {
	var out []string
	for _, typeURL := range Order {
		names := map[string]string{}
		maps.Copy(names, before[typeURL])
		maps.Copy(names, after[typeURL])
		for _, name := range slices.Sorted(maps.Keys(names)) {
			if before[typeURL][name] == after[typeURL][name] {
				continue
			}
			if rng.IntN(4) == 0 {
				out = append(out, typeURL)
			} else {
				out = append(out, typeURL+" "+name)
			}
		}
	}
	return out
}

// modelSource serves states: with VHDS to clients of the delta protocol, and with inline virtual hosts to other
// clients.
type modelSource struct{}

func (modelSource) Connect(_ context.Context, node *corev3.Node, peer Peer) (Proxy, error) {
	p := modelProxy{vhds: peer.Delta}
	switch node.GetId() {
	case onDemandNode:
		return onDemandProxy{modelProxy: p, clusters: map[string]bool{}, hosts: map[string]bool{}}, nil
	case inlineOnlyNode:
		return &inlineOnlyProxy{p}, nil
	}
	return p, nil
}

// inlineSource is the Source of another control plane, without VHDS.
type inlineSource struct{}

func (inlineSource) Connect(context.Context, *corev3.Node, Peer) (Proxy, error) {
	return modelProxy{}, nil
}

// inlineOnlyNode is the node of a client that cannot switch back from inline virtual hosts to VHDS.
const inlineOnlyNode = "old"

// inlineOnlyProxy serves a client that cannot switch back from inline virtual hosts to VHDS.
type inlineOnlyProxy struct{ modelProxy }

func (modelProxy) Hooks() Hooks { return Hooks{} }

func (p *inlineOnlyProxy) Hooks() Hooks { return Hooks{DisableVHDS: p.disableVHDS} }

func (p *inlineOnlyProxy) disableVHDS() bool {
	p.vhds = false
	return true
}

// onDemandNode is the node of a client that requests virtual hosts and clusters on demand.
const onDemandNode = "on demand"

// onDemandProxy serves a client that requests resources on demand. It returns the resources that the client requested
// or claims. For a cluster that does not exist it returns a placeholder. The requested name of a virtual host may be in
// upper case.
type onDemandProxy struct {
	modelProxy
	clusters map[string]bool // clusters
	hosts    map[string]bool
}

const placeholder = "nowhere"

func (p onDemandProxy) Hooks() Hooks {
	return Hooks{Resume: p.resume, ResolveOnDemand: p.resolveOnDemand}
}

func (p onDemandProxy) resume(typeURL string, names []string) {
	for _, name := range names {
		switch typeURL {
		case cds:
			p.clusters[name] = true
		case VirtualHostType:
			p.hosts[strings.ToLower(name)] = true
		}
	}
}

func (p onDemandProxy) resolveOnDemand(state State, names []string) (leads map[string]string, before PushScope) {
	leads = map[string]string{}
	for _, name := range names {
		host := strings.ToLower(name)
		p.hosts[host] = true
		if state.(meshState)[VirtualHostType][host] != "" {
			leads[name] = host
		}
	}
	return leads, nil
}

func (p onDemandProxy) ComputePushScope(state State, change Change) PushScope {
	scope := p.modelProxy.ComputePushScope(state, change)
	clusters := scope[cds]
	clusters.Names = slices.DeleteFunc(clusters.Names, func(name string) bool { return !p.clusters[name] })
	scope[cds] = clusters
	hosts := scope[VirtualHostType]
	hosts.Names = slices.DeleteFunc(hosts.Names, func(name string) bool { return !p.hosts[name] })
	scope[VirtualHostType] = hosts
	return scope
}

func (p onDemandProxy) Generate(state State, typeURL string, wildcard bool, names []string) ([]*Resource, error) {
	if typeURL == VirtualHostType {
		return p.modelProxy.Generate(withHosts(state.(meshState), p.hosts), typeURL, wildcard, names)
	}
	if typeURL != cds {
		return p.modelProxy.Generate(state, typeURL, wildcard, names)
	}
	for _, name := range names {
		p.clusters[name] = true
	}
	if wildcard {
		names = slices.Sorted(maps.Keys(p.clusters))
	}
	return p.modelProxy.Generate(withPlaceholders(state.(meshState), names), cds, false, names)
}

// withHosts returns the state without all virtual hosts that are not in hosts.
func withHosts(w meshState, hosts map[string]bool) meshState {
	for name := range w[VirtualHostType] {
		if !hosts[name] {
			w = w.withoutResource(VirtualHostType, name)
		}
	}
	return w
}

// withPlaceholders adds placeholders for missing clusters of these names.
func withPlaceholders(w meshState, names []string) meshState {
	for _, name := range names {
		if w[cds][name] == "" {
			w = w.withResource(cds, name, placeholder)
		}
	}
	return w
}

type modelProxy struct{ vhds bool }

func (p modelProxy) ComputePushScope(_ State, change Change) PushScope {
	scope := change.(testChange).pushScope()
	if _, ok := scope[VirtualHostType]; ok && !p.vhds {
		scope.AddAll(RouteType)
	}
	return scope
}

func (p modelProxy) Generate(state State, typeURL string, wildcard bool, names []string) ([]*Resource, error) {
	w := state.(meshState)
	var out []*Resource
	for _, name := range slices.Sorted(maps.Keys(w[typeURL])) {
		switch {
		case typeURL == VirtualHostType && !p.vhds:
			continue
		case typeURL == VirtualHostType && wildcard:
			if !slices.Contains(names, routeOf(name)) {
				continue
			}
		case !wildcard && !slices.Contains(names, name):
			continue
		}
		r := w.resource(typeURL, name)
		if typeURL == rds && strings.HasPrefix(r.Version, "apart") {
			r.UsesVHDS = p.vhds
		}
		if typeURL == rds && !p.vhds {
			r.Version += describeHosts(w[VirtualHostType], name)
		}
		r.Body.Value = []byte(name + "=" + r.Version)
		if typeURL == rds && p.vhds {
			r.Version += vhdsVersionSuffix
		}
		out = append(out, r)
	}
	return out, nil
}

// describeHosts describes the virtual hosts of a route configuration in one line.
func describeHosts(hosts map[string]string, route string) string {
	var out string
	for _, name := range slices.Sorted(maps.Keys(hosts)) {
		if routeOf(name) == route {
			out += ", " + name + "=" + hosts[name]
		}
	}
	return out
}

// describeEffective describes the resources that a client of a state should have: all clusters and listeners, the
// assignments of EDS clusters, and the routes that listeners refer to.
func describeEffective(w meshState) map[string]string {
	out := map[string]string{}
	for name, content := range w[cds] {
		out["cluster "+name] = content
		if strings.HasPrefix(content, "eds") {
			out["endpoints "+name] = w[eds][name]
		}
	}
	for name, content := range w[lds] {
		out["listener "+name] = content
		for _, route := range routesNamed(content) {
			out["routes "+route] = w[rds][route] + describeHosts(w[VirtualHostType], route)
		}
	}
	return out
}

func routesNamed(listener string) []string {
	return slices.DeleteFunc(strings.Fields(listener), func(word string) bool { return !strings.HasPrefix(word, "r") })
}
