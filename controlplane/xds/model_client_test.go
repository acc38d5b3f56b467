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

// memoryStream is an in-memory stream: the server's responses wait in a channel until the client reads them.
type memoryStream struct {
	name   string
	ctx    context.Context
	cancel context.CancelFunc
	in     chan *request
	out    chan *response
}

func newMemoryStream(name string) *memoryStream {
	ctx, end := context.WithCancel(context.Background())
	return &memoryStream{name: name, ctx: ctx, cancel: end, in: make(chan *request, 1024), out: make(chan *response, 1024)}
}

func (w *memoryStream) Context() context.Context { return w.ctx }
func (w *memoryStream) protocol() string         { return w.name }
func (w *memoryStream) send(r *response) error   { w.out <- r; return nil }
func (w *memoryStream) recv(*connection) (*request, error) {
	select {
	case r := <-w.in:
		return r, nil
	case <-w.ctx.Done():
		return nil, io.EOF
	}
}

// envoyModel is a client that behaves as Envoy does according to observations.
type envoyModel struct {
	rng    *rand.Rand
	server *Server
	stream *memoryStream
	node   string
	first  bool
	nonces map[string]string // nonces of the last responses, by type (state of the world)

	has        meshState // resources in use, by type and name
	claims     meshState // versions that the client claims when it reconnects, by type and name
	warm       map[string]bool
	ready      map[string]bool // route configurations whose virtual hosts arrived or were reported as nonexistent
	subscribed map[string]map[string]bool
	// Route configurations that the client requests again when idle: it releases them with a delay.
	released         map[string]bool
	hostsRequested   bool            // virtual hosts were requested
	onDemandClusters map[string]bool // clusters that were requested on demand; the client never unsubscribes from them
	// onDemandHosts contains the names of virtual hosts requested on demand. The value is true until the response
	// arrives.
	onDemandHosts map[string]bool
	strict        bool // routes must refer to existing clusters
	// otherServer is another control plane, to which the client switches at times; onOtherServer is set while it is
	// connected there.
	otherServer   *Server
	onOtherServer bool
	// vhdsRoutes contains the client's route configurations that use VHDS. leakedRoutes contains those with a leaked
	// VHDS subscription, because they changed to inline virtual hosts. After the client drops such a route
	// configuration, it is in crashingRoutes: the next VHDS response for it crashes the client.
	vhdsRoutes, leakedRoutes, crashingRoutes map[string]bool
	failures                                 []string
	history                                  []string
}

func newEnvoyModel(rng *rand.Rand, s *Server, node, protocol string, strict bool) *envoyModel {
	m := &envoyModel{rng: rng, server: s, node: node, onDemandClusters: map[string]bool{}, onDemandHosts: map[string]bool{}, has: meshState{}, claims: meshState{}, warm: map[string]bool{}, ready: map[string]bool{}, strict: strict,
		subscribed: map[string]map[string]bool{eds: {}, rds: {}}, nonces: map[string]string{}, released: map[string]bool{},
		vhdsRoutes: map[string]bool{}, leakedRoutes: map[string]bool{}, crashingRoutes: map[string]bool{}}
	for _, typeURL := range Order {
		m.has[typeURL], m.claims[typeURL] = map[string]string{}, map[string]string{}
	}
	m.connect(protocol)
	return m
}

func (m *envoyModel) delta() bool { return m.stream.name == deltaProtocol }

// connect opens a stream and sends all its subscriptions in random order.
func (m *envoyModel) connect(protocol string) {
	m.stream, m.first, m.nonces = newMemoryStream(protocol), true, map[string]string{}
	stream, server := m.stream, m.server
	if m.onOtherServer {
		server = m.otherServer
	}
	go func() { _ = server.serve(stream); stream.cancel() }()
	types := []string{cds, lds}
	for _, typeURL := range []string{eds, rds} {
		if len(m.subscribed[typeURL]) > 0 {
			types = append(types, typeURL)
		}
	}
	if m.hostsRequested {
		types = append(types, VirtualHostType)
	}
	m.rng.Shuffle(len(types), func(i, j int) { types[i], types[j] = types[j], types[i] })
	for _, typeURL := range types {
		r := &request{typeURL: typeURL, initial: maps.Clone(m.claims[typeURL]), resumes: len(m.claims[typeURL]) > 0}
		r.subscribe = slices.Sorted(maps.Keys(m.subscribed[typeURL]))
		if typeURL == cds && len(m.onDemandClusters) > 0 {
			r.subscribe = append([]string{wildcardName}, slices.Sorted(maps.Keys(m.onDemandClusters))...)
		}
		if typeURL == VirtualHostType && len(m.onDemandHosts) > 0 {
			r.subscribe = append([]string{wildcardName}, slices.Sorted(maps.Keys(m.onDemandHosts))...)
		}
		m.request(r)
	}
}

func (m *envoyModel) reconnect() {
	m.stream.cancel()
	m.record("reconnect, elsewhere: %v", m.onOtherServer)
	// A reconnecting SotW client does not list its clusters, so the server cannot retain removed ones until its routes
	// have changed.
	m.strict = m.strict && m.delta()
	for name := range m.has[eds] {
		m.warm[name] = true // after a timeout, a warming cluster uses the assignment that it had before
	}
	m.connect(m.stream.name)
}

func (m *envoyModel) request(r *request) {
	if m.onOtherServer && r.typeURL == VirtualHostType {
		return // the other control plane does not respond to this type
	}
	if m.first {
		r.node, m.first = &corev3.Node{Id: m.node}, false
	}
	if !m.delta() {
		r.names, r.subscribe, r.unsubscribe, r.initial = slices.Sorted(maps.Keys(m.subscribed[r.typeURL])), nil, nil, nil
	}
	m.record("-> %s %s +%v -%v has %v refused %v names %v", ShortType(r.typeURL), r.nonce, r.subscribe, r.unsubscribe, r.initial, r.errorDetail, r.names)
	m.stream.in <- r
}

// record records an event for the failure report.
func (m *envoyModel) record(format string, args ...any) {
	m.history = append(m.history, fmt.Sprintf(format, args...))
}

func describeResponse(r *response) string {
	out := ShortType(r.typeURL) + " " + r.nonce
	for _, res := range r.resources {
		out += " +" + string(res.Body.GetValue())
	}
	for _, res := range r.resources {
		if len(res.Aliases) > 0 {
			out += fmt.Sprintf(" %s for %v", res.Name, res.Aliases)
		}
	}
	return out + fmt.Sprint(" -", r.removed, " nowhere ", r.notFound)
}

// step processes one response and reports whether there was one.
func (m *envoyModel) step() bool {
	select {
	case r := <-m.stream.out:
		m.process(r)
		return true
	default:
	}
	if len(m.released) > 0 {
		synctest.Wait()
		if len(m.stream.out) > 0 {
			return true
		}
		m.released = map[string]bool{}
		m.updateSubscriptions()
	}
	return false
}

func (m *envoyModel) process(r *response) {
	m.record("<- %s", describeResponse(r))
	m.recordCrash(r)
	got := map[string]string{}
	refused := ""
	for _, res := range r.resources {
		content := strings.TrimPrefix(string(res.Body.GetValue()), res.Name+"=")
		got[res.Name] = content
		if strings.HasSuffix(content, "bad") || strings.Contains(content, "bad, ") {
			refused += res.Name + " is bad; "
		}
	}
	if refused == "" || r.typeURL == cds || r.typeURL == lds { // Envoy accepts the valid resources of a partly invalid response of these types
		maps.DeleteFunc(got, func(_, content string) bool { return strings.HasSuffix(content, "bad") })
		m.apply(r, got)
	}
	if refused == "" {
		for _, res := range r.resources {
			if names, byName := m.subscribed[r.typeURL]; !byName || names[res.Name] {
				m.claims[r.typeURL][res.Name] = res.Version
			}
		}
		for _, name := range r.removed {
			delete(m.claims[r.typeURL], name)
		}
		m.settleHosts(r)
	}
	m.check()
	answer := &request{typeURL: r.typeURL, nonce: r.nonce}
	if refused != "" {
		answer.errorDetail = &rpcstatus.Status{Code: 3, Message: refused}
	}
	m.nonces[r.typeURL] = r.nonce
	m.request(answer)
	m.updateSubscriptions()
}

// recordCrash records responses that would crash an old Envoy.
func (m *envoyModel) recordCrash(r *response) {
	if r.typeURL != VirtualHostType {
		return
	}
	for _, name := range append(namesOf(r.resources), r.removed...) {
		if m.crashingRoutes[routeOf(name)] {
			m.failures = append(m.failures, "it crashes: "+describeResponse(r))
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
			if !m.subscribed[eds][name] {
				continue
			}
		case rds:
			if !m.subscribed[rds][name] {
				continue
			}
			m.setVHDS(name, slices.ContainsFunc(r.resources, func(res *Resource) bool { return res.Name == name && res.UsesVHDS }))
		case VirtualHostType:
			if m.has[rds][routeOf(name)] == "" {
				continue // Envoy silently drops virtual hosts of unknown route configurations
			}
			m.ready[routeOf(name)] = true
		}
		has[name] = content
	}
	for _, name := range removed {
		if r.typeURL == VirtualHostType {
			m.ready[routeOf(name)] = true
		}
		if r.typeURL != rds { // listeners retain the route configurations to which they refer
			delete(has, name)
		}
	}
}

// isUndetectable reports whether the client's claims after a reconnect do not show that VHDS must be disabled.
func (m *envoyModel) isUndetectable() bool {
	for name := range m.claims[VirtualHostType] {
		if !strings.HasSuffix(strings.TrimSuffix(m.claims[rds][routeOf(name)], provisionalSuffix), vhdsVersionSuffix) {
			return false
		}
	}
	for _, version := range m.claims[rds] {
		if !strings.HasSuffix(strings.TrimSuffix(version, provisionalSuffix), vhdsVersionSuffix) {
			return false
		}
	}
	return slices.Contains(slices.Collect(maps.Values(m.leakedRoutes)), true)
}

// setVHDS switches a route configuration to VHDS, or to inline virtual hosts, which drops the VHDS ones.
func (m *envoyModel) setVHDS(route string, apart bool) {
	if m.vhdsRoutes[route] && !apart {
		m.leakedRoutes[route] = m.node == inlineOnlyNode
		delete(m.ready, route)
		maps.DeleteFunc(m.has[VirtualHostType], func(host, _ string) bool { return routeOf(host) == route })
	}
	m.vhdsRoutes[route] = apart
}

// updateSubscriptions subscribes to the resources that new clusters and listeners refer to, and unsubscribes from
// unreferenced ones.
func (m *envoyModel) updateSubscriptions() {
	endpoints, routes := map[string]bool{}, map[string]bool{}
	for name, content := range m.has[cds] {
		if strings.HasPrefix(content, "eds") {
			endpoints[name] = true
		}
	}
	for _, content := range m.has[lds] {
		for _, name := range routesNamed(content) {
			if !m.released[name] {
				routes[name] = true
			}
		}
	}
	m.subscribe(eds, endpoints)
	m.subscribe(rds, routes)
	m.requestClusters()
	for name := range m.has[rds] {
		if m.vhdsRoutes[name] && !m.hostsRequested {
			m.hostsRequested = true
			m.request(&request{typeURL: VirtualHostType})
		}
	}
	m.requestHosts()
}

// settleHosts ends the waits of those on-demand names that a response answers.
func (m *envoyModel) settleHosts(r *response) {
	names := slices.Concat(r.notFound, namesOf(r.resources))
	for _, res := range r.resources {
		names = append(names, res.Aliases...)
	}
	for _, name := range names {
		if m.onDemandHosts[name] {
			m.onDemandHosts[name] = false
		}
	}
	for _, name := range r.notFound {
		m.claims[r.typeURL][name] = ""
	}
}

// requestHosts requests virtual hosts on demand, as if there was an HTTP request for each.
func (m *envoyModel) requestHosts() {
	if m.node != onDemandNode || !m.hostsRequested {
		return
	}
	for _, route := range slices.Sorted(maps.Keys(m.has[rds])) {
		for _, name := range []string{"a", "B", "b", "C", "d"} {
			name = route + "/" + name
			_, requested := m.onDemandHosts[name]
			if requested || !m.ready[route] || m.has[VirtualHostType][name] != "" || m.rng.IntN(6) > 0 {
				continue
			}
			m.onDemandHosts[name] = true
			m.request(&request{typeURL: VirtualHostType, subscribe: []string{name}})
		}
	}
}

// requestClusters requests the clusters of routes on demand, as if there was an HTTP request for each.
func (m *envoyModel) requestClusters() {
	if m.node != onDemandNode {
		return
	}
	for _, typeURL := range []string{rds, VirtualHostType} {
		for _, name := range slices.Sorted(maps.Keys(m.has[typeURL])) {
			if to := routeCluster(m.has[typeURL][name]); to != "" && !m.onDemandClusters[to] && m.rng.IntN(2) == 0 {
				m.onDemandClusters[to] = true
				m.request(&request{typeURL: cds, subscribe: []string{to}})
			}
		}
	}
}

// visibleState returns the part of a state that the client should see.
func (m *envoyModel) visibleState(w meshState) meshState {
	if m.node != onDemandNode {
		return w
	}
	for name := range w[cds] {
		if !m.onDemandClusters[name] {
			w = w.withoutResource(cds, name)
		}
	}
	hosts := map[string]bool{}
	for name := range m.onDemandHosts {
		hosts[strings.ToLower(name)] = true
	}
	return withPlaceholders(withHosts(w, hosts), slices.Sorted(maps.Keys(m.onDemandClusters)))
}

func (m *envoyModel) subscribe(typeURL string, names map[string]bool) {
	if maps.Equal(names, m.subscribed[typeURL]) {
		return
	}
	r := &request{typeURL: typeURL, nonce: ""}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if !m.subscribed[typeURL][name] {
			r.subscribe = append(r.subscribe, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(m.subscribed[typeURL])) {
		if names[name] {
			continue
		}
		r.unsubscribe = append(r.unsubscribe, name)
		delete(m.has[typeURL], name)
		delete(m.claims[typeURL], name)
		if typeURL == rds { // Envoy drops the virtual hosts together with the route configuration, but still claims them
			delete(m.ready, name)
			delete(m.vhdsRoutes, name)
			m.crashingRoutes[name] = m.leakedRoutes[name]
			m.released[name] = m.delta()
			maps.DeleteFunc(m.has[VirtualHostType], func(host, _ string) bool { return routeOf(host) == name })
		}
	}
	m.subscribed[typeURL] = names
	if !m.delta() {
		r.nonce = m.nonces[typeURL]
	}
	m.request(r)
}

// check checks that no request fails because its cluster is missing.
func (m *envoyModel) check() {
	if !m.strict {
		return
	}
	for _, typeURL := range []string{rds, VirtualHostType} {
		for name, content := range m.has[typeURL] {
			for _, part := range strings.Split(content, "=") {
				if to := routeCluster(part); to != "" && m.has[cds][to] == "" {
					m.failures = append(m.failures, fmt.Sprintf("%s %s refers to %s, which the client does not have", ShortType(typeURL), name, part))
				}
			}
		}
	}
}

// state describes the resources in use, in the format of effective.
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
			out["routes "+route] = routes + describeHosts(m.has[VirtualHostType], route)
			if m.vhdsRoutes[route] && !m.ready[route] {
				out["routes "+route] = "waiting for virtual hosts"
			}
			for name, waits := range m.onDemandHosts {
				if waits && routeOf(name) == route {
					out["routes "+route] = "waiting for " + name
				}
			}
		}
	}
	return out
}
