package translate_test

import (
	"slices"
	"strings"
	"testing"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/encoding/protojson"
	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/controlplane/analysis"
	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/translate"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
)

const aliasedMesh = `
apiVersion: v1
kind: Service
metadata: {name: reviews, namespace: shop}
spec: {clusterIP: 10.96.0.1, selector: {app: reviews}, ports: [{name: http, port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: kritik, namespace: books}
spec: {type: ExternalName, externalName: reviews.shop.svc.cluster.local}
---
apiVersion: v1
kind: Service
metadata: {name: private, namespace: books, annotations: {networking.istio.io/exportTo: "."}}
spec: {type: ExternalName, externalName: reviews.shop.svc.cluster.local}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: vault, namespace: shop}
spec: {hosts: [vault.example], resolution: DNS, location: MESH_EXTERNAL, ports: [{number: 443, name: tls, protocol: TLS}]}
---
apiVersion: v1
kind: Service
metadata: {name: safe, namespace: books}
spec: {type: ExternalName, externalName: vault.example}
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: default, namespace: narrow}
spec: {egress: [{hosts: [books/kritik.books.svc.cluster.local]}]}
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: default, namespace: strict}
spec: {egress: [{hosts: [shop/*]}]}
`

// TestAliasesResolveForProxiesThatSeeThem in requests, SNI and DNS. A proxy whose Sidecar lists only the alias sees the
// service. A proxy whose Sidecar lists only the service does not see the alias.
func TestAliasesResolveForProxiesThatSeeThem(t *testing.T) {
	m := newTestMesh(t, nil, aliasedMesh)
	const own = "reviews.shop.svc.cluster.local reviews.shop reviews.shop.svc 10.96.0.1"
	for namespace, want := range map[string]struct{ domains, names, handshakes string }{
		"shop": {"reviews.shop.svc.cluster.local reviews reviews.shop reviews.shop.svc kritik.books.svc.cluster.local kritik.books kritik.books.svc 10.96.0.1",
			"kritik.books.svc.cluster.local reviews.shop.svc.cluster.local", "vault.example safe.books.svc.cluster.local"},
		"books": {"reviews.shop.svc.cluster.local reviews.shop reviews.shop.svc kritik.books.svc.cluster.local kritik kritik.books kritik.books.svc " +
			"private.books.svc.cluster.local private private.books private.books.svc 10.96.0.1",
			"kritik.books.svc.cluster.local private.books.svc.cluster.local reviews.shop.svc.cluster.local", "vault.example safe.books.svc.cluster.local"},
		"narrow": {"reviews.shop.svc.cluster.local reviews.shop reviews.shop.svc kritik.books.svc.cluster.local kritik.books kritik.books.svc 10.96.0.1",
			"kritik.books.svc.cluster.local reviews.shop.svc.cluster.local", ""},
		"strict": {own, "reviews.shop.svc.cluster.local", "vault.example"},
	} {
		t.Run(namespace, func(t *testing.T) {
			p := proxy(t, "sidecar a."+namespace+" 127.179.91.1 app=a INTERCEPTION_MODE=REDIRECT")
			i := slices.IndexFunc(routesOf(t, m, p)["80"].GetVirtualHosts(), func(h *routev3.VirtualHost) bool {
				return h.GetName() == "reviews.shop.svc.cluster.local:80"
			})
			if i < 0 {
				t.Fatal("the service has no virtual host")
			}
			var domains []string
			for _, d := range routesOf(t, m, p)["80"].VirtualHosts[i].GetDomains() {
				if !strings.HasSuffix(d, ":80") {
					domains = append(domains, d)
				}
			}
			if got := strings.Join(domains, " "); got != want.domains {
				t.Errorf("domains: %s\nwant: %s", got, want.domains)
			}
			var known []string
			for name, d := range names(t, m, "sidecar a."+namespace+" 127.179.91.1 app=a INTERCEPTION_MODE=REDIRECT") {
				known = append(known, name)
				if short, of, _ := strings.Cut(strings.TrimSuffix(name, ".svc.cluster.local"), "."); d.ShortName != short || d.Namespace != of || !slices.Equal(d.IPs, []string{"10.96.0.1"}) {
					t.Errorf("%s: %+v", name, d)
				}
			}
			slices.Sort(known)
			if got := strings.Join(known, " "); got != want.names {
				t.Errorf("names: %s\nwant: %s", got, want.names)
			}
			if got := strings.Join(handshakes(t, m, p), " "); got != want.handshakes {
				t.Errorf("SNI matches: %s\nwant: %s", got, want.handshakes)
			}
		})
	}
}

// handshakes returns the SNI matches of all filter chains.
func handshakes(t *testing.T, m *testMesh, p *translate.Proxy) []string {
	t.Helper()
	resources, err := translate.Listeners(m.snap, p)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, r := range resources {
		l := &listenerv3.Listener{}
		if err := r.Body.UnmarshalTo(l); err != nil {
			t.Fatal(err)
		}
		for _, c := range l.GetFilterChains() {
			out = append(out, c.GetFilterChainMatch().GetServerNames()...)
		}
	}
	return out
}

// TestAliasHasNoOwnCluster: requests to an alias use the cluster of its service, also with rules for the alias.
func TestAliasHasNoOwnCluster(t *testing.T) {
	m := newTestMesh(t, nil, aliasedMesh, `
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: kritik, namespace: books}
spec: {host: kritik, subsets: [{name: v1, labels: {version: v1}}]}
`)
	for _, description := range []string{"sidecar a.books 127.179.91.1 app=a", "sidecar a.books 127.179.91.1 app=a INTERCEPTION_MODE=REDIRECT"} {
		resources, err := generate(m.snap, proxy(t, description), xds.ClusterType, nil)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, r := range resources {
			if strings.HasPrefix(r.Name, "outbound|80|") {
				got = append(got, r.Name)
			}
		}
		if want := translate.OutboundCluster("reviews.shop.svc.cluster.local", "", 80); len(got) != 1 || got[0] != want {
			t.Errorf("%s has the clusters %q", description, got)
		}
	}
}

// TestInvisibleAuthorizerAliasDeniesRequests that would require a check.
func TestInvisibleAuthorizerAliasDeniesRequests(t *testing.T) {
	mesh := &meshconfig.MeshConfig{}
	if err := protojson.Unmarshal([]byte(`{"extensionProviders": [
 {"name": "seen", "envoyExtAuthzHttp": {"service": "kritik.books.svc.cluster.local", "port": 80}},
 {"name": "hidden", "envoyExtAuthzHttp": {"service": "private.books.svc.cluster.local", "port": 80}}]}`), mesh); err != nil {
		t.Fatal(err)
	}
	m := newTestMesh(t, mesh, aliasedMesh, `
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: one, namespace: shop}
spec: {action: CUSTOM, provider: {name: seen}, rules: [{}]}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: two, namespace: shop}
spec: {action: CUSTOM, provider: {name: hidden}, rules: [{}]}
`)
	var reported []string
	for _, p := range analysis.Check(m.snap) {
		if p.Code == config.UnknownProvider {
			reported = append(reported, p.Key.Name+": "+p.Message)
		}
	}
	want := "two: the external authorizer private.books.svc.cluster.local is not a service that the policy's namespace can see, or does not have the provider's port, so proxies deny the requests that match the policy's rules"
	if !slices.Equal(reported, []string{want}) {
		t.Errorf("reported: %q", reported)
	}
}
