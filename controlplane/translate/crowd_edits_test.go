package translate_test

import (
	"flag"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/controlplane/translate"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
	"github.com/pilotfish-mesh/pilotfish/internal/protoyaml"
)

var (
	crowds     = flag.Uint64("crowds", 5, "how many crowded meshes to edit at random")
	firstCrowd = flag.Uint64("first-crowd", 0, "the number of the first of them")
)

var crowdProxies = []string{
	"sidecar captured.one 127.193.1.1 app=a version=v1 INTERCEPTION_MODE=REDIRECT HOSTS_APART=yes ENVOY_VERSION=1.40.0",
	"sidecar captured.two 127.193.1.2 app=b INTERCEPTION_MODE=REDIRECT HOSTS_APART=yes PROVEN=yes",
	"sidecar unserved.three 127.193.1.6 app=a INTERCEPTION_MODE=REDIRECT HOSTS_APART=yes ENVOY_VERSION=1.40.0",
	"sidecar older.four 127.193.1.7 app=a INTERCEPTION_MODE=REDIRECT HOSTS_APART=yes ENVOY_VERSION=1.36.4",
	"sidecar whole.one 127.193.1.3 app=b INTERCEPTION_MODE=REDIRECT ENVOY_VERSION=1.36.4",
	"sidecar asked.one 127.193.4.1 app=a HOSTS_APART=yes UPSTREAM_LISTENERS=a.example:80=127.193.20.16:3306,red.one.svc.cluster.local:90=127.193.20.17:90",
	"router edge.one 127.193.1.5 istio=edge HOSTS_APART=yes PROVEN=yes",
	"router edge.two 127.193.1.8 istio=edge",
}

// alwaysThere has listeners lead to the routes of each port, whatever else there is.
const alwaysThere = `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: last, namespace: one}
spec: {hosts: [zzz.last], resolution: STATIC, ports: [{number: 80, name: http, protocol: HTTP}, {number: 81, name: b, protocol: HTTP}, {number: 90, name: c, protocol: HTTP2}]}
`

// crowded is a mesh under edits of a crowd, and what each proxy has.
type crowded struct {
	*testMesh
	faults  []string
	proxies []*translate.Proxy
	// has is what there is for each proxy; had is what there was when the changes in since began.
	has, had []map[string]map[string]string
	since    xds.Change
	sound    sound
	// touched is how often the virtual hosts of a proxy were looked at, and whole how often all of them were touched.
	touched, whole int
}

func newCrowded(t *testing.T) *crowded {
	m := &crowded{testMesh: newTestMesh(t, &meshconfig.MeshConfig{}, alwaysThere), sound: sound{}}
	for _, description := range crowdProxies {
		m.proxies = append(m.proxies, proxy(t, description))
		m.has = append(m.has, versions(t, m.snap, m.proxies[len(m.proxies)-1]))
	}
	m.had = slices.Clone(m.has)
	return m
}

// Errorf notes what does not hold. It is what is seen of the mesh by the checks.
func (m *crowded) Errorf(format string, args ...any) {
	m.faults = append(m.faults, fmt.Sprintf(format, args...))
}

func (m *crowded) Helper() {}

// note applies an edit, without building what comes of it, and says which resources it changed; all is the configuration.
func (m *crowded) note(edit string) (changed []config.Key, all bool) {
	if text, ok := strings.CutPrefix(edit, meshEdit); ok {
		m.mesh = &meshconfig.MeshConfig{}
		if _, err := protoyaml.Unmarshal(text, m.mesh); err != nil {
			m.t.Fatalf("%s: %v", edit, err)
		}
		return nil, true
	}
	if text, ok := strings.CutPrefix(edit, keysEdit); ok {
		address, serial, _ := strings.Cut(text, " ")
		m.snapKeys(address, serial)
		return nil, false
	}
	if strings.HasPrefix(edit, "apiVersion") {
		resources := parse(m.t, edit)
		m.store.Put(resources...)
		return keys(resources), false
	}
	key := keyOf(edit)
	m.store.Delete(key)
	return []config.Key{key}, false
}

func (m *crowded) snapKeys(address, serial string) {
	m.keys = &snapshot.KeySets{ByAddress: map[string]string{address: fmt.Sprintf(`{"keys":[{"kty":"oct","kid":%q,"k":"AAAA"}]}`, serial)}}
}

func keyOf(name string) config.Key {
	kind, name, _ := strings.Cut(name, " ")
	namespace, name, _ := strings.Cut(name, "/")
	return config.Key{Kind: config.Kind(kind), Namespace: namespace, Name: name}
}

// step makes one change of some edits, and checks that it names all that differs for each proxy, and that Envoy would take
// all that is made.
func (m *crowded) step(edits []string) {
	changed, whole := []config.Key{}, false
	for _, edit := range edits {
		of, all := m.note(edit)
		changed, whole = append(changed, of...), whole || all
	}
	if whole {
		changed = nil
	}
	change := m.rebuild(changed)
	if m.since == nil {
		m.since = change
	} else {
		m.since = m.since.Merge(change)
	}
	for i, p := range m.proxies {
		after, touches := versions(m.t, m.snap, p), translate.Affected(m.snap, p, change)
		what := "for " + crowdProxies[i]
		checkAffected(m, what, m.has[i], after, touches)
		checkNamed(m, what, m.snap, p, after, touches)
		checkAffected(m, what+", changes in one", m.had[i], after, translate.Affected(m.snap, p, m.since.(snapshot.Change)))
		m.sound.check(m, what, m.snap, p)
		m.has[i] = after
		m.touched++
		if touches[xds.VirtualHostType].All {
			m.whole++
		}
	}
}

// begin has the changes from here on be looked at as one.
func (m *crowded) begin() { m.had, m.since = slices.Clone(m.has), nil }

// compare checks that a snapshot that is built from nothing, of documents that come in another order, makes the same as that
// of all the edits, and that virtual hosts by themselves are those that are within route configurations elsewhere.
func (m *crowded) compare() {
	inputs := m.inputs()
	inputs.Store = m.reordered()
	fresh := snapshot.Build(nil, inputs, nil)
	for i, p := range m.proxies {
		m.compareHosts(fresh, p, "for "+crowdProxies[i])
		want := versions(m.t, fresh, p)
		for _, typeURL := range xds.Order {
			if !maps.Equal(want[typeURL], m.has[i][typeURL]) {
				m.Errorf("for %s: %s differ from those of a full snapshot: %v", crowdProxies[i], typeURL, differing(m.has[i][typeURL], want[typeURL]))
			}
		}
	}
	if got, want := problemTexts(m.snap), problemTexts(fresh); !slices.Equal(got, want) {
		m.Errorf("problems are %v, and not %v", got, want)
	}
}

// reordered has the same documents, which came in the reverse order.
func (m *crowded) reordered() *config.MemoryStore {
	var all []*config.Resource
	for _, kind := range config.Kinds() {
		all = append(all, m.store.List(kind)...)
	}
	slices.Reverse(all)
	store := config.NewMemoryStore()
	for _, r := range all {
		store.Put(r)
	}
	return store
}

// compareHosts checks that a proxy has the same virtual hosts whether they go by themselves or not.
func (m *crowded) compareHosts(snap *snapshot.Snapshot, p *translate.Proxy, what string) {
	apart, whole := *p, *p
	apart.HostsApart, whole.HostsApart = true, false
	got, want := hostsOf(m.t, snap, &apart), hostsOf(m.t, snap, &whole)
	if !maps.Equal(got, want) {
		m.Errorf("%s: virtual hosts by themselves are others than those within: %v", what, differing(got, want))
	}
}

// hostsOf are a proxy's virtual hosts, by route configuration and name.
func hostsOf(t testing.TB, snap *snapshot.Snapshot, p *translate.Proxy) map[string]string {
	t.Helper()
	out := map[string]string{}
	note := func(name string, host *routev3.VirtualHost) {
		host.Name = ""
		out[name] = fmt.Sprint(host)
	}
	for _, typeURL := range []string{xds.RouteType, xds.VirtualHostType} {
		resources, err := generate(snap, p, typeURL, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range resources {
			message, err := r.Body.UnmarshalNew()
			if err != nil {
				t.Fatal(err)
			}
			switch message := message.(type) {
			case *routev3.RouteConfiguration:
				for _, host := range message.GetVirtualHosts() {
					note(r.Name+"/"+host.GetName(), host)
				}
			case *routev3.VirtualHost:
				note(r.Name, message)
			}
		}
	}
	return out
}

func problemTexts(s *snapshot.Snapshot) []string {
	var out []string
	for _, p := range s.Problems() {
		out = append(out, p.String())
	}
	slices.Sort(out)
	return out
}

// editCrowd applies steps of edits, until something does not hold. A full snapshot is made after each so many.
func editCrowd(t *testing.T, steps [][]string, compared int) *crowded {
	m := newCrowded(t)
	for i, edits := range steps {
		m.step(edits)
		if i%compared == compared-1 || i == len(steps)-1 {
			m.compare()
		}
		if len(m.faults) > 0 {
			return m
		}
		if i%5 == 4 {
			m.begin()
		}
	}
	return m
}

// fewest are steps that still end in a fault: those without which there is none.
func fewest(t *testing.T, steps [][]string) [][]string {
	for size := len(steps) / 2; size > 0; size /= 2 {
		for at := 0; at+size <= len(steps) && len(steps) > 1; {
			fewer := slices.Delete(slices.Clone(steps), at, at+size)
			if len(editCrowd(t, fewer, 1).faults) > 0 {
				steps = fewer
			} else {
				at += size
			}
		}
	}
	return steps
}

func crowdSteps(seed uint64) [][]string {
	c := newCrowd(seed)
	steps := make([][]string, 50)
	for i := range steps {
		for range 1 + c.IntN(5)/3 { // one by one mostly
			steps[i] = append(steps[i], c.edit())
		}
	}
	return steps
}

// TestWhatComesAndGoesInACrowdTouchesAllThatItHasAPartIn: where many want the same names, addresses and ports, what one of
// them leaves is another's. None of that is missed: what a proxy is sent because of a change, by itself or in one with those
// before it, is all that differs, and what was kept from before is what a full snapshot would make.
func TestWhatComesAndGoesInACrowdTouchesAllThatItHasAPartIn(t *testing.T) {
	t.Parallel()
	touched, whole := 0, 0
	for seed := *firstCrowd; seed < *firstCrowd+*crowds; seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			m := checkCrowd(t, crowdSteps(seed))
			touched, whole = touched+m.touched, whole+m.whole
		})
	}
	if whole == 0 || whole > touched*3/4 {
		t.Errorf("of %d changes %d touched all virtual hosts: that tells little", touched, whole)
	}
}

const addsHost = "configPatches: [{applyTo: VIRTUAL_HOST, match: {context: SIDECAR_OUTBOUND}, patch: {operation: ADD, value: {name: more, domains: [more.example], routes: []}}}]"

func envoyFilter(name, namespace, spec string) string {
	return document("networking.istio.io/v1alpha3", "EnvoyFilter", name, namespace, spec)
}

func checkCrowd(t *testing.T, steps [][]string) *crowded {
	m := editCrowd(t, steps, 6)
	if len(m.faults) == 0 {
		return m
	}
	few := fewest(t, steps)
	for i, edits := range few {
		t.Logf("step %d: %s", i, strings.Join(edits, "\n---\n"))
	}
	t.Errorf("%s\nWith the fewest steps, which are above: %s", strings.Join(m.faults, "\n"), strings.Join(editCrowd(t, few, 1).faults, "\n"))
	return m
}

// TestWhatCrowdsHaveShownOnce: the fewest steps that led to a fault, each of which was mended.
func TestWhatCrowdsHaveShownOnce(t *testing.T) {
	t.Parallel()
	for name, steps := range map[string][][]string{
		"who authorizes goes, and the routes to the workload itself ask nobody": {
			{ofNetworking("ServiceEntry", "w", "one", "hosts: [a.example], resolution: STATIC, workloadSelector: {labels: {app: b}}, ports: [{number: 80, name: p, protocol: TCP}]")},
			{ofSecurity("AuthorizationPolicy", "p", "three", "action: CUSTOM, provider: {name: checked}, rules: [{to: [{operation: {paths: [/x]}}]}]")},
			{meshEdit + "extensionProviders: [{name: checked, envoyExtAuthzGrpc: {service: a.example, port: 80}}]"},
			{"ServiceEntry one/w"},
		},
		"a Service by whose short name a rule is goes, and a ServiceEntry has its full name": {
			{document("v1", "Service", "red", `one, annotations: {networking.istio.io/exportTo: "."}`, "clusterIP: 240.9.9.2, selector: {app: b}, ports: [{port: 81, name: p, appProtocol: HTTP}]")},
			{ofNetworking("ServiceEntry", "s", "two", "hosts: [red.one.svc.cluster.local], resolution: STATIC, ports: [{number: 81, name: p, protocol: HTTP}]")},
			{ofNetworking("DestinationRule", "r", "istio-system", "host: red.one.svc, trafficPolicy: {outlierDetection: {consecutive5xxErrors: 3}}, subsets: [{name: v1, labels: {version: v1}}]")},
			{"Service one/red"},
		},
		"a rule for a name goes while the Service comes that the name is now one of": {
			{ofNetworking("VirtualService", "v1", "one", "hosts: [red.one], http: [{route: [{destination: {host: a.example}}]}]")},
			{document("v1", "Service", "red", "one", "clusterIP: None, selector: {app: b}, ports: [{port: 80, name: p, appProtocol: HTTP}]")},
			{"VirtualService one/v1"},
		},
		"a ServiceEntry with a block of addresses comes, and is told apart in the listener of its port": {
			{ofNetworking("ServiceEntry", "w3", "two", "hosts: [a.example], resolution: STATIC, addresses: [240.9.9.0/24], workloadSelector: {labels: {app: b}}, ports: [{number: 90, name: p, protocol: TLS}]")},
			{"ServiceEntry two/w3"},
		},
		"an EnvoyFilter goes that stood in the way of another one's patch": {
			{envoyFilter("g", "istio-system", addsHost), envoyFilter("f", "three", "workloadSelector: {labels: {app: a}}, "+addsHost)},
			{"EnvoyFilter three/f"},
		},
		"a rule goes that told TLS apart in a patched listener": {
			{envoyFilter("f", "two", "configPatches: [{applyTo: HTTP_FILTER, match: {context: SIDECAR_OUTBOUND, listener: {filterChain: {filter: {name: envoy.filters.network.http_connection_manager, subFilter: {name: envoy.filters.http.router}}}}}, patch: {operation: INSERT_BEFORE, value: {name: lua, typed_config: {'@type': type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua}}}}]")},
			{ofNetworking("VirtualService", "v5", "two", "hosts: [a.example, b.example], tls: [{match: [{sniHosts: [a.example]}], route: [{destination: {host: red.one.svc.cluster.local, port: {number: 81}}}]}, {match: [{sniHosts: [b.example]}], route: [{destination: {host: red.one.svc, port: {number: 81}}}]}]")},
			{ofNetworking("ServiceEntry", "w1", "one", "hosts: [b.example, x.example], resolution: STATIC, addresses: [240.9.9.0/24], workloadSelector: {labels: {app: a}}, ports: [{number: 80, name: p80, protocol: TLS}, {number: 90, name: p90, protocol: \"\"}]")},
			{"VirtualService two/v5"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			for _, fault := range editCrowd(t, steps, 1).faults {
				t.Error(fault)
			}
		})
	}
}
