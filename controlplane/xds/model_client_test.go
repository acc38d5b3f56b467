package xds

import (
	"context"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing/synctest"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
)

// memoryWire is a stream without a network: what the server sends waits in a list until the client looks.
type memoryWire struct {
	name string
	ctx  context.Context
	end  context.CancelFunc
	in   chan *request
	out  chan *response
}

func newMemoryWire(name string) *memoryWire {
	ctx, end := context.WithCancel(context.Background())
	return &memoryWire{name: name, ctx: ctx, end: end, in: make(chan *request, 1024), out: make(chan *response, 1024)}
}

func (w *memoryWire) Context() context.Context { return w.ctx }
func (w *memoryWire) protocol() string         { return w.name }
func (w *memoryWire) send(r *response) error   { w.out <- r; return nil }
func (w *memoryWire) recv() (*request, error) {
	select {
	case r := <-w.in:
		return r, nil
	case <-w.ctx.Done():
		return nil, io.EOF
	}
}

// envoyModel is a client that does as Envoy does, as far as it has been seen to.
type envoyModel struct {
	rng    *rand.Rand
	server *Server
	wire   *memoryWire
	node   string
	first  bool
	nonces map[string]string // of the last response, by type (state of the world)

	has    world // what it works with, by type and name
	claims world // what it says it has when it comes back: by type and name, versions
	warm   map[string]bool
	ready  map[string]bool // route configurations whose virtual hosts came, or were said not to exist
	asks   map[string]map[string]bool
	left   map[string]bool // route configurations that it asks for again when all is quiet: it lets go of them slowly
	asked  bool            // for virtual hosts
	needed map[string]bool // clusters that it asked for, if it does so as it needs them; it never takes that back
	// hosts are the virtual hosts that it asked for likewise, by the names that it asked by; true while it has no answer.
	hosts  map[string]bool
	strict bool // routes must lead to clusters that are there
	// elsewhere is another control plane, to which it goes now and then; away while it is there.
	elsewhere *Server
	away      bool
	// apart are the route configurations that it has without their virtual hosts. forgotten are those whose virtual hosts it
	// forgot to end its subscription to when they became whole; once it has let go of them, the next virtual hosts of theirs
	// crash it: they are in crashes.
	apart, forgotten, crashes map[string]bool
	broken                    []string
	story                     []string
}

func newEnvoyModel(rng *rand.Rand, s *Server, node, protocol string, strict bool) *envoyModel {
	m := &envoyModel{rng: rng, server: s, node: node, needed: map[string]bool{}, hosts: map[string]bool{}, has: world{}, claims: world{}, warm: map[string]bool{}, ready: map[string]bool{}, strict: strict,
		asks: map[string]map[string]bool{eds: {}, rds: {}}, nonces: map[string]string{}, left: map[string]bool{},
		apart: map[string]bool{}, forgotten: map[string]bool{}, crashes: map[string]bool{}}
	for _, typeURL := range Order {
		m.has[typeURL], m.claims[typeURL] = map[string]string{}, map[string]string{}
	}
	m.connect(protocol)
	return m
}

func (m *envoyModel) delta() bool { return m.wire.name == deltaProtocol }

// connect begins a stream, on which it asks for all that it asked for before, in any order.
func (m *envoyModel) connect(protocol string) {
	m.wire, m.first, m.nonces = newMemoryWire(protocol), true, map[string]string{}
	wire, server := m.wire, m.server
	if m.away {
		server = m.elsewhere
	}
	go func() { _ = server.serve(wire); wire.end() }()
	types := []string{cds, lds}
	for _, typeURL := range []string{eds, rds} {
		if len(m.asks[typeURL]) > 0 {
			types = append(types, typeURL)
		}
	}
	if m.asked {
		types = append(types, VirtualHostType)
	}
	m.rng.Shuffle(len(types), func(i, j int) { types[i], types[j] = types[j], types[i] })
	for _, typeURL := range types {
		r := &request{typeURL: typeURL, initial: maps.Clone(m.claims[typeURL]), resumes: len(m.claims[typeURL]) > 0}
		r.subscribe = slices.Sorted(maps.Keys(m.asks[typeURL]))
		if typeURL == cds && len(m.needed) > 0 {
			r.subscribe = append([]string{wildcardName}, slices.Sorted(maps.Keys(m.needed))...)
		}
		if typeURL == VirtualHostType && len(m.hosts) > 0 {
			r.subscribe = append([]string{wildcardName}, slices.Sorted(maps.Keys(m.hosts))...)
		}
		m.request(r)
	}
}

func (m *envoyModel) reconnect() {
	m.wire.end()
	m.tell("reconnect, elsewhere: %v", m.away)
	// Of such a client nobody knows which clusters it has, and so they cannot be left to it until it has other routes.
	m.strict = m.strict && m.delta()
	for name := range m.has[eds] {
		m.warm[name] = true // a cluster that was warming takes the assignment it had, after a while
	}
	m.connect(m.wire.name)
}

func (m *envoyModel) request(r *request) {
	if m.away && r.typeURL == VirtualHostType {
		return // as if it had: nobody answers
	}
	if m.first {
		r.node, m.first = &corev3.Node{Id: m.node}, false
	}
	if !m.delta() {
		r.names, r.subscribe, r.unsubscribe, r.initial = slices.Sorted(maps.Keys(m.asks[r.typeURL])), nil, nil, nil
	}
	m.tell("-> %s %s +%v -%v has %v refused %v names %v", ShortType(r.typeURL), r.nonce, r.subscribe, r.unsubscribe, r.initial, r.refusal, r.names)
	m.wire.in <- r
}

// tell keeps what happened, for when the end is not as it should be.
func (m *envoyModel) tell(format string, args ...any) {
	m.story = append(m.story, fmt.Sprintf(format, args...))
}

func showResponse(r *response) string {
	out := ShortType(r.typeURL) + " " + r.nonce
	for _, res := range r.resources {
		out += " +" + string(res.Body.GetValue())
	}
	for _, res := range r.resources {
		if len(res.Aliases) > 0 {
			out += fmt.Sprintf(" %s for %v", res.Name, res.Aliases)
		}
	}
	return out + fmt.Sprint(" -", r.removed, " nowhere ", r.nowhere)
}

// step takes in one response, if there is one.
func (m *envoyModel) step() bool {
	select {
	case r := <-m.wire.out:
		m.take(r)
		return true
	default:
	}
	if len(m.left) > 0 {
		synctest.Wait()
		if len(m.wire.out) > 0 {
			return true
		}
		m.left = map[string]bool{}
		m.follow()
	}
	return false
}

func (m *envoyModel) take(r *response) {
	m.tell("<- %s", showResponse(r))
	m.crash(r)
	got := map[string]string{}
	refused := ""
	for _, res := range r.resources {
		content := strings.TrimPrefix(string(res.Body.GetValue()), res.Name+"=")
		got[res.Name] = content
		if strings.HasSuffix(content, "bad") || strings.Contains(content, "bad, ") {
			refused += res.Name + " is bad; "
		}
	}
	if refused == "" || r.typeURL == cds || r.typeURL == lds { // of these the good ones are taken all the same
		maps.DeleteFunc(got, func(_, content string) bool { return strings.HasSuffix(content, "bad") })
		m.apply(r, got)
	}
	if refused == "" {
		for _, res := range r.resources {
			if names, byName := m.asks[r.typeURL]; !byName || names[res.Name] {
				m.claims[r.typeURL][res.Name] = res.Version
			}
		}
		for _, name := range r.removed {
			delete(m.claims[r.typeURL], name)
		}
		m.answered(r)
	}
	m.check()
	answer := &request{typeURL: r.typeURL, nonce: r.nonce}
	if refused != "" {
		answer.refusal = &rpcstatus.Status{Code: 3, Message: refused}
	}
	m.nonces[r.typeURL] = r.nonce
	m.request(answer)
	m.follow()
}

// crash notes what an old Envoy does not survive.
func (m *envoyModel) crash(r *response) {
	if r.typeURL != VirtualHostType {
		return
	}
	for _, name := range append(namesOf(r.resources), r.removed...) {
		if m.crashes[routeOf(name)] {
			m.broken = append(m.broken, "it crashes: "+showResponse(r))
		}
	}
}

func (m *envoyModel) apply(r *response, got map[string]string) {
	has := m.has[r.typeURL]
	removed := r.removed
	if !m.delta() && impliesWildcard(r.typeURL) {
		for name := range has {
			if !slices.ContainsFunc(r.resources, func(res *Resource) bool { return res.Name == name }) {
				removed = append(removed, name)
			}
		}
	}
	for name, content := range got {
		switch r.typeURL {
		case cds:
			m.warm[name] = !strings.HasPrefix(content, "eds")
		case eds:
			m.warm[name] = true
			if !m.asks[eds][name] {
				continue
			}
		case rds:
			if !m.asks[rds][name] {
				continue
			}
			m.becomes(name, slices.ContainsFunc(r.resources, func(res *Resource) bool { return res.Name == name && res.HostsApart }))
		case VirtualHostType:
			if m.has[rds][routeOf(name)] == "" {
				continue // it has no place for it, and says nothing
			}
			m.ready[routeOf(name)] = true
		}
		has[name] = content
	}
	for _, name := range removed {
		if r.typeURL == VirtualHostType {
			m.ready[routeOf(name)] = true
		}
		if r.typeURL != rds { // what still refers to a route configuration keeps it
			delete(has, name)
		}
	}
}

// untold says whether nothing that it would come back with tells that it must not have virtual hosts apart.
func (m *envoyModel) untold() bool {
	for name := range m.claims[VirtualHostType] {
		if !strings.HasSuffix(strings.TrimSuffix(m.claims[rds][routeOf(name)], provisional), apartMark) {
			return false
		}
	}
	for _, version := range m.claims[rds] {
		if !strings.HasSuffix(strings.TrimSuffix(version, provisional), apartMark) {
			return false
		}
	}
	return slices.Contains(slices.Collect(maps.Values(m.forgotten)), true)
}

// becomes has a route configuration have its virtual hosts apart, or whole and without those that were apart.
func (m *envoyModel) becomes(route string, apart bool) {
	if m.apart[route] && !apart {
		m.forgotten[route] = m.node == oldNode
		delete(m.ready, route)
		maps.DeleteFunc(m.has[VirtualHostType], func(host, _ string) bool { return routeOf(host) == route })
	}
	m.apart[route] = apart
}

// follow asks for what new clusters and listeners refer to, and no longer for what nobody refers to.
func (m *envoyModel) follow() {
	endpoints, routes := map[string]bool{}, map[string]bool{}
	for name, content := range m.has[cds] {
		if strings.HasPrefix(content, "eds") {
			endpoints[name] = true
		}
	}
	for _, content := range m.has[lds] {
		for _, name := range routesNamed(content) {
			if !m.left[name] {
				routes[name] = true
			}
		}
	}
	m.ask(eds, endpoints)
	m.ask(rds, routes)
	m.need()
	for name := range m.has[rds] {
		if m.apart[name] && !m.asked {
			m.asked = true
			m.request(&request{typeURL: VirtualHostType})
		}
	}
	m.needHosts()
}

// answered ends the waits of the names that a response answers.
func (m *envoyModel) answered(r *response) {
	names := slices.Concat(r.nowhere, namesOf(r.resources))
	for _, res := range r.resources {
		names = append(names, res.Aliases...)
	}
	for _, name := range names {
		if m.hosts[name] {
			m.hosts[name] = false
		}
	}
	for _, name := range r.nowhere {
		m.claims[r.typeURL][name] = ""
	}
}

// needHosts asks for virtual hosts, as if there was a request for each.
func (m *envoyModel) needHosts() {
	if m.node != onDemandNode || !m.asked {
		return
	}
	for _, route := range slices.Sorted(maps.Keys(m.has[rds])) {
		for _, name := range []string{"a", "B", "b", "C", "d"} {
			name = route + "/" + name
			_, asked := m.hosts[name]
			if asked || !m.ready[route] || m.has[VirtualHostType][name] != "" || m.rng.IntN(6) > 0 {
				continue
			}
			m.hosts[name] = true
			m.request(&request{typeURL: VirtualHostType, subscribe: []string{name}})
		}
	}
}

// need asks for clusters that routes lead to, as if there was a request for each.
func (m *envoyModel) need() {
	if m.node != onDemandNode {
		return
	}
	for _, typeURL := range []string{rds, VirtualHostType} {
		for _, name := range slices.Sorted(maps.Keys(m.has[typeURL])) {
			if to := target(m.has[typeURL][name]); to != "" && !m.needed[to] && m.rng.IntN(2) == 0 {
				m.needed[to] = true
				m.request(&request{typeURL: cds, subscribe: []string{to}})
			}
		}
	}
}

// seen is what of a world the client should see.
func (m *envoyModel) seen(w world) world {
	if m.node != onDemandNode {
		return w
	}
	for name := range w[cds] {
		if !m.needed[name] {
			w = w.without(cds, name)
		}
	}
	hosts := map[string]bool{}
	for name := range m.hosts {
		hosts[strings.ToLower(name)] = true
	}
	return withNowhere(withHosts(w, hosts), slices.Sorted(maps.Keys(m.needed)))
}

func (m *envoyModel) ask(typeURL string, names map[string]bool) {
	if maps.Equal(names, m.asks[typeURL]) {
		return
	}
	r := &request{typeURL: typeURL, nonce: ""}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if !m.asks[typeURL][name] {
			r.subscribe = append(r.subscribe, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(m.asks[typeURL])) {
		if names[name] {
			continue
		}
		r.unsubscribe = append(r.unsubscribe, name)
		delete(m.has[typeURL], name)
		delete(m.claims[typeURL], name)
		if typeURL == rds { // its virtual hosts go with it, and are still claimed
			delete(m.ready, name)
			delete(m.apart, name)
			m.crashes[name] = m.forgotten[name]
			m.left[name] = m.delta()
			maps.DeleteFunc(m.has[VirtualHostType], func(host, _ string) bool { return routeOf(host) == name })
		}
	}
	m.asks[typeURL] = names
	if !m.delta() {
		r.nonce = m.nonces[typeURL]
	}
	m.request(r)
}

// check: no request may fail for want of a cluster.
func (m *envoyModel) check() {
	if !m.strict {
		return
	}
	for _, typeURL := range []string{rds, VirtualHostType} {
		for name, content := range m.has[typeURL] {
			for _, part := range strings.Split(content, "=") {
				if to := target(part); to != "" && m.has[cds][to] == "" {
					m.broken = append(m.broken, fmt.Sprintf("%s %s leads %s, which is not there", ShortType(typeURL), name, part))
				}
			}
		}
	}
}

// state tells what it works with, as effective does.
func (m *envoyModel) state() map[string]string {
	out := map[string]string{}
	for name, content := range m.has[cds] {
		out["cluster "+name] = content
		if strings.HasPrefix(content, "eds") {
			out["endpoints "+name] = m.has[eds][name]
			if !m.warm[name] {
				out["endpoints "+name] = "warming"
			}
		}
	}
	for name, content := range m.has[lds] {
		out["listener "+name] = content
		for _, route := range routesNamed(content) {
			routes := m.has[rds][route]
			out["routes "+route] = routes + hostsOf(m.has[VirtualHostType], route)
			if m.apart[route] && !m.ready[route] {
				out["routes "+route] = "waiting for virtual hosts"
			}
			for name, waits := range m.hosts {
				if waits && routeOf(name) == route {
					out["routes "+route] = "waiting for " + name
				}
			}
		}
	}
	return out
}
