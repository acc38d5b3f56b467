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

// The worlds of the model: clusters c0…, of which those whose content begins with "eds" have an assignment; listeners,
// whose content names the route configurations that they refer to; route configurations r0 and r1, whose virtual hosts go
// by themselves, and r2, which is whole. Routes lead to clusters: "to c1 #7".

func modelFirst() world {
	w := world{}
	for i := range 3 {
		w = w.with(cds, fmt.Sprint("c", i), "eds #0").with(eds, fmt.Sprint("c", i), "at #0")
		w = w.with(rds, fmt.Sprint("r", i), map[bool]string{true: "apart #0", false: "to c0 #0"}[i < 2])
	}
	return w.with(lds, "l0", "r0 r2 #0").with(VirtualHostType, "r0/a", "to c1 #0").with(VirtualHostType, "r1/a", "to c2 #0")
}

// edit gives the next world, and what differs: types, or names of them.
func edit(rng *rand.Rand, w world, n int, faults bool) (world, []string) {
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
			next = next.with(cds, cluster, content("eds")).with(eds, cluster, content("at"))
		case 2:
			next = next.with(cds, cluster, content("static")).without(eds, cluster)
		case 3:
			if cluster != "c0" {
				next = next.without(cds, cluster).without(eds, cluster)
			}
		case 4:
			if _, ok := next[eds][cluster]; ok {
				next = next.with(eds, cluster, content("at"))
			}
		case 5:
			next = next.with(lds, fmt.Sprint("l", rng.IntN(3)), content([]string{"r0", "r1", "r2", "r0 r1", "r0 r1 r2"}[rng.IntN(5)]))
		case 6:
			next = next.without(lds, fmt.Sprint("l", rng.IntN(3)))
		case 7:
			next = next.with(VirtualHostType, fmt.Sprintf("r%d/%c", rng.IntN(2), 'a'+rune(rng.IntN(4))), content("to "+cluster))
		case 8:
			switch r := rng.IntN(4); r {
			case 0, 1:
				next = next.with(rds, fmt.Sprint("r", r), content("apart"))
			case 2:
				next = next.with(rds, "r2", content("to "+cluster))
			case 3:
				next = next.without(VirtualHostType, fmt.Sprintf("r%d/%c", rng.IntN(2), 'a'+rune(rng.IntN(4))))
			}
		}
	}
	next = whole(next, n)
	return next, touched(rng, w, next)
}

// whole has no route lead to a cluster that is not there.
func whole(w world, n int) world {
	for _, typeURL := range []string{rds, VirtualHostType} {
		for _, name := range slices.Sorted(maps.Keys(w[typeURL])) {
			content := w[typeURL][name]
			if to := target(content); to != "" && w[cds][to] == "" {
				w = w.with(typeURL, name, fmt.Sprintf("to c0 #%d", n))
			}
		}
	}
	return w
}

// target is the cluster that a route leads to.
func target(content string) string {
	to, ok := strings.CutPrefix(content, "to ")
	if !ok {
		return ""
	}
	return strings.Fields(to)[0]
}

func touched(rng *rand.Rand, before, after world) []string {
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

// modelSource serves worlds: with parts to clients of the delta protocol, and whole to others.
type modelSource struct{}

func (modelSource) Connect(_ context.Context, node *corev3.Node, peer Peer) (Proxy, error) {
	p := modelProxy{apart: peer.Delta}
	switch node.GetId() {
	case onDemandNode:
		return onDemandProxy{modelProxy: p, held: map[string]bool{}, hosts: map[string]bool{}}, nil
	case oldNode:
		return &oldProxy{p}, nil
	}
	return p, nil
}

// wholeSource is of another control plane, which knows nothing of virtual hosts apart.
type wholeSource struct{}

func (wholeSource) Connect(context.Context, *corev3.Node, Peer) (Proxy, error) {
	return modelProxy{}, nil
}

// oldNode is the node of a client that does not go back from whole route configurations to virtual hosts apart.
const oldNode = "old"

// oldProxy serves such a client.
type oldProxy struct{ modelProxy }

func (p *oldProxy) KeepWhole() bool {
	p.apart = false
	return true
}

// onDemandNode is the node of a client that asks for virtual hosts and clusters as it needs them.
const onDemandNode = "on demand"

// onDemandProxy serves such a client: what it asked for, or came with. Of a cluster that is not there it is given one that
// leads nowhere. A virtual host may be asked for in capitals.
type onDemandProxy struct {
	modelProxy
	held  map[string]bool // clusters
	hosts map[string]bool
}

const nowhere = "nowhere"

func (p onDemandProxy) Resume(typeURL string, names []string) {
	for _, name := range names {
		switch typeURL {
		case cds:
			p.held[name] = true
		case VirtualHostType:
			p.hosts[strings.ToLower(name)] = true
		}
	}
}

func (p onDemandProxy) Ask(state State, names []string) (leads map[string]string, before Touches) {
	leads = map[string]string{}
	for _, name := range names {
		host := strings.ToLower(name)
		p.hosts[host] = true
		if state.(world)[VirtualHostType][host] != "" {
			leads[name] = host
		}
	}
	return leads, nil
}

func (p onDemandProxy) Affected(state State, change Change) Touches {
	touches := p.modelProxy.Affected(state, change)
	clusters := touches[cds]
	clusters.Names = slices.DeleteFunc(clusters.Names, func(name string) bool { return !p.held[name] })
	touches[cds] = clusters
	hosts := touches[VirtualHostType]
	hosts.Names = slices.DeleteFunc(hosts.Names, func(name string) bool { return !p.hosts[name] })
	touches[VirtualHostType] = hosts
	return touches
}

func (p onDemandProxy) Generate(state State, typeURL string, wildcard bool, names []string) ([]*Resource, error) {
	if typeURL == VirtualHostType {
		return p.modelProxy.Generate(withHosts(state.(world), p.hosts), typeURL, wildcard, names)
	}
	if typeURL != cds {
		return p.modelProxy.Generate(state, typeURL, wildcard, names)
	}
	for _, name := range names {
		p.held[name] = true
	}
	if wildcard {
		names = slices.Sorted(maps.Keys(p.held))
	}
	return p.modelProxy.Generate(withNowhere(state.(world), names), cds, false, names)
}

// withHosts has no other virtual hosts.
func withHosts(w world, hosts map[string]bool) world {
	for name := range w[VirtualHostType] {
		if !hosts[name] {
			w = w.without(VirtualHostType, name)
		}
	}
	return w
}

// withNowhere has all clusters of these names.
func withNowhere(w world, names []string) world {
	for _, name := range names {
		if w[cds][name] == "" {
			w = w.with(cds, name, nowhere)
		}
	}
	return w
}

type modelProxy struct{ apart bool }

func (p modelProxy) Affected(_ State, change Change) Touches {
	touches := change.(changed).touches()
	if _, ok := touches[VirtualHostType]; ok && !p.apart {
		touches.AddAll(RouteType)
	}
	return touches
}

func (p modelProxy) Generate(state State, typeURL string, wildcard bool, names []string) ([]*Resource, error) {
	w := state.(world)
	var out []*Resource
	for _, name := range slices.Sorted(maps.Keys(w[typeURL])) {
		switch {
		case typeURL == VirtualHostType && !p.apart:
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
			r.HostsApart = p.apart
		}
		if typeURL == rds && !p.apart {
			r.Version += hostsOf(w[VirtualHostType], name)
		}
		r.Body.Value = []byte(name + "=" + r.Version)
		if typeURL == rds && p.apart {
			r.Version += apartMark
		}
		out = append(out, r)
	}
	return out, nil
}

// hostsOf tells the virtual hosts of a route configuration in one line.
func hostsOf(hosts map[string]string, route string) string {
	var out string
	for _, name := range slices.Sorted(maps.Keys(hosts)) {
		if routeOf(name) == route {
			out += ", " + name + "=" + hosts[name]
		}
	}
	return out
}

// effective tells what a client of a world should have: all clusters and listeners, the assignments of clusters that have
// one, and the routes that listeners refer to.
func effective(w world) map[string]string {
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
			out["routes "+route] = w[rds][route] + hostsOf(w[VirtualHostType], route)
		}
	}
	return out
}

func routesNamed(listener string) []string {
	return slices.DeleteFunc(strings.Fields(listener), func(word string) bool { return !strings.HasPrefix(word, "r") })
}
