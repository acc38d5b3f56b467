package translate_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/controlplane/translate"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
)

const (
	benchServices  = 1000
	benchEndpoints = 10
	benchProxies   = 100
)

// benchEntry returns one service and its endpoints. n varies the endpoints.
func benchEntry(i, n int) string {
	var b strings.Builder
	fmt.Fprintf(&b, `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: s%d, namespace: ns%d}
spec:
  hosts: [s%d.example.com]
  resolution: STATIC
  location: MESH_INTERNAL
  ports: [{number: 80, name: http, protocol: HTTP}]
  endpoints:
`, i, i%10, i)
	for e := range benchEndpoints {
		fmt.Fprintf(&b, "  - {address: 10.%d.%d.%d, serviceAccount: sa%d, labels: {version: v%d, security.istio.io/tlsMode: istio}}\n", n%250, i/250, e+1, i, e%2)
	}
	return b.String()
}

func benchRule(i int, timeout string) string {
	return fmt.Sprintf(`
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: s%d, namespace: ns%d}
spec: {hosts: [s%d.example.com], http: [{timeout: %s, route: [{destination: {host: s%d.example.com}}]}]}
`, i, i%10, i, timeout, i)
}

func benchMesh(b *testing.B) (*testMesh, []*translate.Proxy) {
	b.Helper()
	m := newTestMesh(b, nil)
	var text strings.Builder
	for i := range benchServices {
		text.WriteString("---" + benchEntry(i, 0) + "---" + benchRule(i, "1s"))
	}
	m.store.Put(parse(b, strings.TrimPrefix(text.String(), "---"))...)
	m.snap = snapshot.Build(nil, m.inputs(), nil)
	proxies := make([]*translate.Proxy, benchProxies)
	for i := range proxies {
		proxies[i] = proxy(b, fmt.Sprintf("sidecar p%d.ns1 127.203.%d.1 app=p%d", i, i, i))
	}
	return m, proxies
}

func all(b *testing.B, snap *snapshot.Snapshot, p *translate.Proxy, types []string) (bytes int) {
	b.Helper()
	for _, typeURL := range types {
		resources, err := generate(snap, p, typeURL, nil)
		if err != nil {
			b.Fatal(err)
		}
		for _, r := range resources {
			bytes += len(r.Body.Value)
		}
	}
	return bytes
}

// BenchmarkSnapshot builds the snapshot of 1,000 services with 10 endpoints each.
func BenchmarkSnapshot(b *testing.B) {
	m, _ := benchMesh(b)
	for b.Loop() {
		snapshot.Build(nil, m.inputs(), nil)
	}
}

// BenchmarkFirstProxy builds all resources of one proxy with an empty cache.
func BenchmarkFirstProxy(b *testing.B) {
	m, proxies := benchMesh(b)
	bytes := 0
	for b.Loop() {
		b.StopTimer()
		snap := snapshot.Build(nil, m.inputs(), nil)
		b.StartTimer()
		bytes = all(b, snap, proxies[0], xds.Order)
	}
	b.ReportMetric(float64(bytes), "bytes/proxy")
}

// BenchmarkNextProxy builds all resources of another proxy in the namespace.
func BenchmarkNextProxy(b *testing.B) {
	m, proxies := benchMesh(b)
	all(b, m.snap, proxies[0], xds.Order)
	for b.Loop() {
		all(b, m.snap, proxies[1], xds.Order)
	}
}

// BenchmarkEndpointChange changes the endpoints of one service, builds the next snapshot, and builds the changed
// resources for 100 proxies.
func BenchmarkEndpointChange(b *testing.B) {
	m, proxies := benchMesh(b)
	for _, p := range proxies {
		all(b, m.snap, p, xds.Order)
	}
	names := []string{translate.OutboundCluster("s7.example.com", "", 80)}
	n := 0
	for b.Loop() {
		b.StopTimer()
		n++
		resources := parse(b, benchEntry(7, n))
		m.store.Put(resources...)
		b.StartTimer()
		change := m.rebuild([]config.Key{resources[0].Key})
		for _, p := range proxies {
			if got := translate.AffectedResources(m.snap, p, change).Types(); len(got) != 2 || got[0] != xds.EndpointType || got[1] != xds.NameTableType {
				b.Fatalf("affected: %v", got)
			}
			if _, err := translate.Endpoints(m.snap, p, names); err != nil {
				b.Fatal(err)
			}
		}
	}
}

// BenchmarkRuleChange changes the timeout of one VirtualService of 1,000, and builds new routes for 100 proxies.
func BenchmarkRuleChange(b *testing.B) {
	m, proxies := benchMesh(b)
	for _, p := range proxies {
		all(b, m.snap, p, xds.Order)
	}
	n := 1
	for b.Loop() {
		b.StopTimer()
		n++
		resources := parse(b, benchRule(7, fmt.Sprintf("%ds", n)))
		m.store.Put(resources...)
		b.StartTimer()
		change := m.rebuild([]config.Key{resources[0].Key})
		for _, p := range proxies {
			if got := translate.AffectedResources(m.snap, p, change).Types(); len(got) != 1 || got[0] != xds.RouteType {
				b.Fatalf("affected: %v", got)
			}
			if _, err := translate.Routes(m.snap, p, []string{"http_proxy"}); err != nil {
				b.Fatal(err)
			}
		}
	}
}

// BenchmarkDestinationRuleChange changes one of 10,000 DestinationRules of one namespace, and builds the changed cluster
// for 10 proxies.
func BenchmarkDestinationRuleChange(b *testing.B) {
	const rules = 10_000
	rule := func(i, connections int) string {
		return fmt.Sprintf(`
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: s%d, namespace: shop}
spec: {host: s%d, trafficPolicy: {connectionPool: {tcp: {maxConnections: %d}}}, subsets: [{name: v1, labels: {version: v1}}, {name: v2, labels: {version: v2}}]}
`, i, i, connections)
	}
	m := newTestMesh(b, nil)
	var text strings.Builder
	for i := range rules {
		fmt.Fprintf(&text, "---\napiVersion: v1\nkind: Service\nmetadata: {name: s%d, namespace: shop}\nspec: {selector: {app: s%d}, ports: [{name: http, port: 80}]}\n---%s", i, i, rule(i, 1))
	}
	m.store.Put(parse(b, strings.TrimPrefix(text.String(), "---"))...)
	m.snap = snapshot.Build(nil, m.inputs(), nil)
	proxies := make([]*translate.Proxy, 10)
	for i := range proxies {
		proxies[i] = proxy(b, fmt.Sprintf("sidecar p%d.shop 127.203.%d.1 app=p%d", i, i, i))
		all(b, m.snap, proxies[i], []string{xds.ClusterType})
	}
	n := 1
	for b.Loop() {
		b.StopTimer()
		n++
		resources := parse(b, rule(7, n))
		m.store.Put(resources...)
		b.StartTimer()
		change := m.rebuild([]config.Key{resources[0].Key})
		for _, p := range proxies {
			if got := translate.AffectedResources(m.snap, p, change).Types(); len(got) != 2 || got[0] != xds.ClusterType {
				b.Fatalf("affected: %v", got)
			}
			if _, err := translate.NamedClusters(m.snap, p, []string{translate.OutboundCluster("s7.shop.svc.cluster.local", "v1", 80)}); err != nil {
				b.Fatal(err)
			}
		}
	}
}
