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

	"github.com/pilotfish-mesh/pilotfish/controlplane/analysis"
	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/controlplane/translate"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
	"github.com/pilotfish-mesh/pilotfish/internal/protoyaml"
)

var (
	randomMeshes = flag.Uint64("random-meshes", 5, "number of random meshes to edit")
	firstSeed    = flag.Uint64("first-random-mesh", 0, "seed of the first random mesh")
)

var randomMeshProxies = []string{
	"sidecar captured.one 127.193.1.1 app=a version=v1 INTERCEPTION_MODE=REDIRECT HOSTS_APART=yes ENVOY_VERSION=1.40.0",
	"sidecar captured.two 127.193.1.2 app=b INTERCEPTION_MODE=REDIRECT HOSTS_APART=yes PROVEN=yes",
	"sidecar unserved.three 127.193.1.6 app=a INTERCEPTION_MODE=REDIRECT HOSTS_APART=yes ENVOY_VERSION=1.40.0",
	"sidecar older.four 127.193.1.7 app=a INTERCEPTION_MODE=REDIRECT HOSTS_APART=yes ENVOY_VERSION=1.36.4",
	"sidecar whole.one 127.193.1.3 app=b INTERCEPTION_MODE=REDIRECT ENVOY_VERSION=1.36.4",
	"sidecar asked.one 127.193.4.1 app=a HOSTS_APART=yes UPSTREAM_LISTENERS=a.example:80=127.193.20.16:3306,red.one.svc.cluster.local:90=127.193.20.17:90",
	"router edge.one 127.193.1.5 istio=edge HOSTS_APART=yes PROVEN=yes",
	"router edge.two 127.193.1.8 istio=edge",
}

// baseDocuments ensure that listeners refer to the routes of each port, whichever other documents exist.
const baseDocuments = `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: last, namespace: one}
spec: {hosts: [zzz.last], resolution: STATIC, ports: [{number: 80, name: http, protocol: HTTP}, {number: 81, name: b, protocol: HTTP}, {number: 90, name: c, protocol: HTTP2}]}
`

// randomMesh is a mesh under random edits, and the resources of each proxy.
type randomMesh struct {
	*testMesh
	faults  []string
	proxies []*translate.Proxy
	// has contains the current resource versions of each proxy. lastVersions contains the versions before the changes
	// in since.
	has, lastVersions []map[string]map[string]string
	since             xds.Change
	validated         resourceValidator
	// touched counts how often a proxy's virtual hosts were checked. needsFull counts the checks in which all virtual
	// hosts were affected.
	touched, needsFull int
}

func newRandomMesh(t *testing.T) *randomMesh {
	m := &randomMesh{testMesh: newTestMesh(t, &meshconfig.MeshConfig{}, baseDocuments), validated: resourceValidator{}}
	for _, description := range randomMeshProxies {
		m.proxies = append(m.proxies, proxy(t, description))
		m.has = append(m.has, versions(t, m.snap, m.proxies[len(m.proxies)-1]))
	}
	m.lastVersions = slices.Clone(m.has)
	return m
}

// Errorf records a failed check.
func (m *randomMesh) Errorf(format string, args ...any) {
	m.faults = append(m.faults, fmt.Sprintf(format, args...))
}

func (m *randomMesh) Helper() {}

// applyEdit applies an edit without building a snapshot, and returns the changed resources. all is true if the edit
// changed the mesh configuration.
func (m *randomMesh) applyEdit(edit string) (changed []config.Key, all bool) {
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

func (m *randomMesh) snapKeys(address, serial string) {
	m.keys = &snapshot.KeySets{ByAddress: map[string]string{address: fmt.Sprintf(`{"keys":[{"kty":"oct","kid":%q,"k":"AAAA"}]}`, serial)}}
}

func keyOf(name string) config.Key {
	kind, name, _ := strings.Cut(name, " ")
	namespace, name, _ := strings.Cut(name, "/")
	return config.Key{Kind: config.Kind(kind), Namespace: namespace, Name: name}
}

// step applies some edits as one change. It checks that the change affects all differences for each proxy, and that
// Envoy would accept all resources.
func (m *randomMesh) step(edits []string) {
	changed, whole := []config.Key{}, false
	for _, edit := range edits {
		of, all := m.applyEdit(edit)
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
		after, touches := versions(m.t, m.snap, p), translate.AffectedResources(m.snap, p, change)
		what := "for " + randomMeshProxies[i]
		checkAffected(m, what, m.has[i], after, touches)
		checkNamed(m, what, m.snap, p, after, touches)
		checkAffected(m, what+", accumulated changes", m.lastVersions[i], after, translate.AffectedResources(m.snap, p, m.since.(snapshot.Change)))
		m.validated.check(m, what, m.snap, p)
		m.has[i] = after
		m.touched++
		if touches[xds.VirtualHostType].All {
			m.needsFull++
		}
	}
}

// saveVersions starts a new accumulated change from the current versions.
func (m *randomMesh) saveVersions() { m.lastVersions, m.since = slices.Clone(m.has), nil }

// compare checks that a full snapshot, from documents in another order, yields the same resources as the incremental
// one. VHDS virtual hosts must be those of full route configurations.
func (m *randomMesh) compare() {
	inputs := m.inputs()
	inputs.Store = m.reversedStore()
	fresh := snapshot.Build(nil, inputs, nil)
	for i, p := range m.proxies {
		m.compareHosts(fresh, p, "for "+randomMeshProxies[i])
		want := versions(m.t, fresh, p)
		for _, typeURL := range xds.Order {
			if !maps.Equal(want[typeURL], m.has[i][typeURL]) {
				m.Errorf("for %s: %s differ from those of a full snapshot: %v", randomMeshProxies[i], typeURL, differing(m.has[i][typeURL], want[typeURL]))
			}
		}
	}
	if got, want := problemTexts(m.snap), problemTexts(fresh); !slices.Equal(got, want) {
		m.Errorf("the incremental snapshot has the problems %v, the full one %v", got, want)
	}
}

// reversedStore returns a store with the documents in reverse order.
func (m *randomMesh) reversedStore() *config.MemoryStore {
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

// compareHosts checks that a proxy has the same virtual hosts with and without VHDS.
func (m *randomMesh) compareHosts(snap *snapshot.Snapshot, p *translate.Proxy, what string) {
	apart, whole := *p, *p
	apart.UseVHDS, whole.UseVHDS = true, false
	got, want := hostsOf(m.t, snap, &apart), hostsOf(m.t, snap, &whole)
	if !maps.Equal(got, want) {
		m.Errorf("%s: virtual hosts sent by VHDS differ from those in route configurations: %v", what, differing(got, want))
	}
}

// hostsOf returns a proxy's virtual hosts by route configuration and name.
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
	for _, p := range analysis.Check(s) {
		out = append(out, p.String())
	}
	slices.Sort(out)
	return out
}

// editRandomMesh applies steps of edits until a check fails. After each compared steps it compares with a full
// snapshot.
func editRandomMesh(t *testing.T, steps [][]string, compared int) *randomMesh {
	m := newRandomMesh(t)
	for i, edits := range steps {
		m.step(edits)
		if i%compared == compared-1 || i == len(steps)-1 {
			m.compare()
		}
		if len(m.faults) > 0 {
			return m
		}
		if i%5 == 4 {
			m.saveVersions()
		}
	}
	return m
}

// minimizeEdits removes steps without which a check still fails.
func minimizeEdits(t *testing.T, steps [][]string) [][]string {
	for size := len(steps) / 2; size > 0; size /= 2 {
		for at := 0; at+size <= len(steps) && len(steps) > 1; {
			fewer := slices.Delete(slices.Clone(steps), at, at+size)
			if len(editRandomMesh(t, fewer, 1).faults) > 0 {
				steps = fewer
			} else {
				at += size
			}
		}
	}
	return steps
}

func randomSteps(seed uint64) [][]string {
	c := newDocumentGenerator(seed)
	steps := make([][]string, 50)
	for i := range steps {
		for range 1 + c.IntN(5)/3 { // mostly one edit per step
			steps[i] = append(steps[i], c.edit())
		}
	}
	return steps
}

// TestRandomEditsAffectAllDependents: many documents use the same names, addresses and ports, so a change of one
// document can affect others. AffectedResources must report all differences, after single and after accumulated
// changes. Cached resources must equal those of a full snapshot.
func TestRandomEditsAffectAllDependents(t *testing.T) {
	t.Parallel()
	touched, whole := 0, 0
	for seed := *firstSeed; seed < *firstSeed+*randomMeshes; seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			m := checkRandomMesh(t, randomSteps(seed))
			touched, whole = touched+m.touched, whole+m.needsFull
		})
	}
	if whole == 0 || whole > touched*3/4 {
		t.Errorf("%[2]d of %[1]d changes affected all virtual hosts, so the test is weak", touched, whole)
	}
}

const addsHost = "configPatches: [{applyTo: VIRTUAL_HOST, match: {context: SIDECAR_OUTBOUND}, patch: {operation: ADD, value: {name: more, domains: [more.example], routes: []}}}]"

func envoyFilter(name, namespace, spec string) string {
	return document("networking.istio.io/v1alpha3", "EnvoyFilter", name, namespace, spec)
}

func checkRandomMesh(t *testing.T, steps [][]string) *randomMesh {
	m := editRandomMesh(t, steps, 6)
	if len(m.faults) == 0 {
		return m
	}
	few := minimizeEdits(t, steps)
	for i, edits := range few {
		t.Logf("step %d: %s", i, strings.Join(edits, "\n---\n"))
	}
	t.Errorf("%s\nWith the minimal steps above: %s", strings.Join(m.faults, "\n"), strings.Join(editRandomMesh(t, few, 1).faults, "\n"))
	return m
}

// TestRandomMeshRegressions contains minimized steps of former failures.
func TestRandomMeshRegressions(t *testing.T) {
	t.Parallel()
	for name, steps := range map[string][][]string{
		"an authorizer is removed and the inbound routes stop using it": {
			{ofNetworking("ServiceEntry", "w", "one", "hosts: [a.example], resolution: STATIC, workloadSelector: {labels: {app: b}}, ports: [{number: 80, name: p, protocol: TCP}]")},
			{ofSecurity("AuthorizationPolicy", "p", "three", "action: CUSTOM, provider: {name: checked}, rules: [{to: [{operation: {paths: [/x]}}]}]")},
			{meshEdit + "extensionProviders: [{name: checked, envoyExtAuthzGrpc: {service: a.example, port: 80}}]"},
			{"ServiceEntry one/w"},
		},
		"a Service with a rule for its short name is removed, and a ServiceEntry has its full name": {
			{document("v1", "Service", "red", `one, annotations: {networking.istio.io/exportTo: "."}`, "clusterIP: 240.9.9.2, selector: {app: b}, ports: [{port: 81, name: p, appProtocol: HTTP}]")},
			{ofNetworking("ServiceEntry", "s", "two", "hosts: [red.one.svc.cluster.local], resolution: STATIC, ports: [{number: 81, name: p, protocol: HTTP}]")},
			{ofNetworking("DestinationRule", "r", "istio-system", "host: red.one.svc, trafficPolicy: {outlierDetection: {consecutive5xxErrors: 3}}, subsets: [{name: v1, labels: {version: v1}}]")},
			{"Service one/red"},
		},
		"a rule for a name is removed after a Service of that name is added": {
			{ofNetworking("VirtualService", "v1", "one", "hosts: [red.one], http: [{route: [{destination: {host: a.example}}]}]")},
			{document("v1", "Service", "red", "one", "clusterIP: None, selector: {app: b}, ports: [{port: 80, name: p, appProtocol: HTTP}]")},
			{"VirtualService one/v1"},
		},
		"a ServiceEntry with an address block shares the listener of its port": {
			{ofNetworking("ServiceEntry", "w3", "two", "hosts: [a.example], resolution: STATIC, addresses: [240.9.9.0/24], workloadSelector: {labels: {app: b}}, ports: [{number: 90, name: p, protocol: TLS}]")},
			{"ServiceEntry two/w3"},
		},
		"an EnvoyFilter that prevented the patch of another is removed": {
			{envoyFilter("g", "istio-system", addsHost), envoyFilter("f", "three", "workloadSelector: {labels: {app: a}}, "+addsHost)},
			{"EnvoyFilter three/f"},
		},
		"a rule with an SNI match in a patched listener is removed": {
			{envoyFilter("f", "two", "configPatches: [{applyTo: HTTP_FILTER, match: {context: SIDECAR_OUTBOUND, listener: {filterChain: {filter: {name: envoy.filters.network.http_connection_manager, subFilter: {name: envoy.filters.http.router}}}}}, patch: {operation: INSERT_BEFORE, value: {name: lua, typed_config: {'@type': type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua}}}}]")},
			{ofNetworking("VirtualService", "v5", "two", "hosts: [a.example, b.example], tls: [{match: [{sniHosts: [a.example]}], route: [{destination: {host: red.one.svc.cluster.local, port: {number: 81}}}]}, {match: [{sniHosts: [b.example]}], route: [{destination: {host: red.one.svc, port: {number: 81}}}]}]")},
			{ofNetworking("ServiceEntry", "w1", "one", "hosts: [b.example, x.example], resolution: STATIC, addresses: [240.9.9.0/24], workloadSelector: {labels: {app: a}}, ports: [{number: 80, name: p80, protocol: TLS}, {number: 90, name: p90, protocol: \"\"}]")},
			{"VirtualService two/v5"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			for _, fault := range editRandomMesh(t, steps, 1).faults {
				t.Error(fault)
			}
		})
	}
}
