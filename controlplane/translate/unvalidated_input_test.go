package translate_test

import (
	"crypto/tls"
	"strings"
	"testing"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"google.golang.org/protobuf/encoding/protojson"
	networking "istio.io/api/networking/v1alpha3"
	security "istio.io/api/security/v1beta1"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// force adds a document that validation would refuse: it changes a valid document after parsing.
func force[T any](m *testMesh, document string, change func(spec T)) {
	m.t.Helper()
	resources := parse(m.t, document)
	for _, r := range resources {
		if spec, ok := r.Spec.(T); ok {
			change(spec)
		}
	}
	m.store.Put(resources...)
	m.rebuild(keys(resources))
}

const forcedGateway = `
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: edge, namespace: edge}
spec:
  selector: {istio: ingress}
  servers:
  - port: {number: 443, name: https, protocol: HTTPS}
    hosts: [a.example]
    tls: {mode: MUTUAL, serverCertificate: /c/cert.pem, privateKey: /c/key.pem, caCertificates: /c/ca.pem}
  - port: {number: 443, name: other, protocol: HTTPS}
    hosts: [b.example]
    tls: {mode: SIMPLE, serverCertificate: /c/cert.pem, privateKey: /c/key.pem}
`

const forcedRules = `
apiVersion: v1
kind: Service
metadata: {name: ingress, namespace: edge}
spec: {selector: {istio: ingress}, ports: [{name: https, port: 443, targetPort: 8443}]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: a, namespace: back}
spec: {hosts: [a.example], gateways: [edge/edge], http: [{directResponse: {status: 200, body: {string: only for those with a certificate}}}]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: b, namespace: back}
spec: {hosts: [b.example], gateways: [edge/edge], http: [{directResponse: {status: 200, body: {string: for all}}}]}
`

// TestTLSServersDoNotShareRoutes: a client without a certificate could otherwise reach the routes of the server that
// requires one.
func TestTLSServersDoNotShareRoutes(t *testing.T) {
	for name, same := range map[string]func(*networking.Gateway){
		"ports with the same name":   func(g *networking.Gateway) { g.Servers[1].Port.Name = "https" },
		"servers with the same name": func(g *networking.Gateway) { g.Servers[0].Name, g.Servers[1].Name = "s", "s" },
		"a server with the name of the other server's port": func(g *networking.Gateway) {
			g.Servers[1].Name = "https"
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := newTestMesh(t, nil, forcedRules)
			force(m, forcedGateway, same)
			routes := routeNamesOf(t, m, "router ingress.edge 127.203.60.1 istio=ingress")
			if len(routes) != 2 || routes[0] == routes[1] {
				t.Errorf("the route configurations are %q, want two different ones", routes)
			}
		})
	}
	m := newTestMesh(t, nil, forcedRules, strings.ReplaceAll(forcedGateway, "name: edge,", "name: b.c,"))
	force(m, strings.ReplaceAll(forcedGateway, "name: edge,", "name: c,"), func(g *networking.Gateway) {
		g.Servers[0].Port.Name, g.Servers[0].Hosts = "https.b", []string{"c.example"}
	})
	if routes := routeNamesOf(t, m, "router ingress.edge 127.203.60.1 istio=ingress"); len(routes) != 3 {
		t.Errorf("the route configurations of Gateways with dots in their names collide: %q", routes)
	}
}

func routeNamesOf(t *testing.T, m *testMesh, description string) []string {
	t.Helper()
	got, err := generate(m.snap, proxy(t, description), xds.ListenerType, nil)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	seen := map[string]bool{}
	for _, r := range got {
		var l listenerv3.Listener
		if err := r.Body.UnmarshalTo(&l); err != nil {
			t.Fatal(err)
		}
		for _, chain := range l.GetFilterChains() {
			if !seen[chain.GetName()] {
				seen[chain.GetName()] = true
				names = append(names, chain.GetName())
			}
		}
	}
	return names
}

func TestOtherServerCannotBypassClientCertificates(t *testing.T) {
	if _, problems := config.Parse("g.yaml", []byte(strings.ReplaceAll(forcedGateway, "name: other", "name: https"))); !refused(problems) {
		t.Error("validation accepts two servers whose ports have the same name")
	}
	forEachEnvoyVersion(t, 224, func(t *testing.T, version string, network int) {
		w := newTestEnv(t, version, network, forcedRules)
		force(w.testMesh, forcedGateway, func(g *networking.Gateway) { g.Servers[1].Port.Name = "https" })
		w.plane.push(pushState{snap: w.snap}, snapshot.Change{Full: true})
		w.proxy("router ingress.edge NET.1.1 istio=ingress", "edge/ingress")
		w.expect(200, "for all", func() httpResult { return w.httpsAs("b.example", "b.example", nil) })
		w.expect(404, "", func() httpResult { return w.httpsAs("b.example", "a.example", nil) })
		w.expect(0, "", func() httpResult { return w.httpsAs("a.example", "a.example", nil) })
		cert, key := w.plane.ca.issue("spiffe://anyone/x")
		pairOf, err := tls.X509KeyPair(cert, key)
		if err != nil {
			t.Fatal(err)
		}
		w.expect(200, "only for those", func() httpResult { return w.httpsAs("a.example", "a.example", []tls.Certificate{pairOf}) })
	})
}

// TestServerRequiresConfiguredCA: if the CA certificate is missing, the server does not accept certificates of public
// CAs instead.
func TestServerRequiresConfiguredCA(t *testing.T) {
	for _, ca := range []string{"", "system"} {
		for _, mode := range []networking.ServerTLSSettings_TLSmode{networking.ServerTLSSettings_MUTUAL, networking.ServerTLSSettings_OPTIONAL_MUTUAL} {
			m := newTestMesh(t, nil, forcedRules)
			force(m, forcedGateway, func(g *networking.Gateway) { g.Servers[0].Tls.CaCertificates, g.Servers[0].Tls.Mode = ca, mode })
			if routes := routeNamesOf(t, m, "router ingress.edge 127.203.60.1 istio=ingress"); len(routes) != 1 || strings.Contains(routes[0], "https.443.https.") {
				t.Errorf("the server accepts connections for %s with the CA %q: %q", mode, ca, routes)
			}
		}
	}
}

// TestEnvoyAcceptsUnvalidatedInput: Envoy accepts all resources. Rules with invalid values deny more in DENY policies,
// and allow less in ALLOW policies.
func TestEnvoyAcceptsUnvalidatedInput(t *testing.T) {
	long := strings.Repeat("x", 40_000)
	rule := "\n---\n" + oddRule("a", "mesh", `{match: [{uri: {prefix: /odd}, queryParams: {q: {exact: a}}}], headers: {request: {set: {h: v}}}, rewrite: {uri: /x, authority: y}, `+toA+`}, {match: [{uri: {prefix: /gone}}], redirect: {uri: /x, authority: y}}, {match: [{uri: {prefix: /said}}], directResponse: {status: 200, body: {string: x}}}, {`+toA+`}`)
	breakRule := map[string]func(*networking.VirtualService){
		"rewrite":   func(vs *networking.VirtualService) { vs.Http[0].Rewrite.Uri = "/a\r\nb" },
		"authority": func(vs *networking.VirtualService) { vs.Http[0].Rewrite.Authority = "a\r\nb" },
		"header":    func(vs *networking.VirtualService) { vs.Http[0].Headers.Request.Set["h"] = long },
		"parameter": func(vs *networking.VirtualService) { vs.Http[0].Match[0].QueryParams[""] = &networking.StringMatch{} },
		"redirect":  func(vs *networking.VirtualService) { vs.Http[1].Redirect.Uri = "/a\r\nb" },
		"answer": func(vs *networking.VirtualService) {
			vs.Http[2].DirectResponse.Body = &networking.HTTPBody{Specifier: &networking.HTTPBody_String_{String_: strings.Repeat("x", config.MaxDirectResponse+1)}}
		},
	}
	policy := oddDocument("AuthorizationPolicy", `{selector: {matchLabels: {app: a}}, action: DENY, rules: [{to: [{operation: {paths: [/p], hosts: [h]}}], when: [{key: "request.headers[k]", values: [v]}]}]}`)
	breakPolicy := map[string]func(*security.AuthorizationPolicy){}
	for _, path := range []string{"{**}/x", "{*}", "/a/{**}/b/{**}", "/{**}/{*}/x", "/{*}/a b", "/a//{*}", "/é/{*}", "/{*}/a|b"} {
		breakPolicy[path] = func(p *security.AuthorizationPolicy) { p.Rules[0].To[0].Operation.Paths[0] = path }
		breakPolicy["not "+path] = func(p *security.AuthorizationPolicy) {
			p.Action, p.Rules[0].To[0].Operation.Paths, p.Rules[0].To[0].Operation.NotPaths = security.AuthorizationPolicy_ALLOW, nil, []string{path}
		}
	}
	breakPolicy["host"] = func(p *security.AuthorizationPolicy) { p.Rules[0].To[0].Operation.Hosts[0] = long }
	breakPolicy["header"] = func(p *security.AuthorizationPolicy) { p.Rules[0].When[0].Key = "request.headers[a\nb]" }

	for _, version := range []string{testenv.EnvoyVersion, testenv.OldEnvoyVersion} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			plane := newTestControlPlane(t)
			plane.push(pushState{snap: newTestMesh(t, nil).snap}, snapshot.Change{Full: true})
			e := plane.startEnvoy(version, "sidecar taster.default 127.203.252.1", "spiffe://cluster.local/ns/default/sa/taster")
			plane.inSync(1)
			try := func(name string, m *testMesh) {
				if complaint := e.checkMesh(plane, version, m); complaint != "" {
					t.Errorf("%s: %s", name, complaint)
				}
			}
			for name, change := range breakRule {
				m := newTestMesh(t, nil, oddBase)
				force(m, rule, change)
				try(name, m)
			}
			for name, change := range breakPolicy {
				m := newTestMesh(t, nil, oddBase)
				force(m, policy, change)
				try(name, m)
			}
		})
	}
	for name, change := range breakPolicy {
		m := newTestMesh(t, nil, oddBase)
		force(m, policy, change)
		got := inboundRoutesOf(t, m)
		if strings.HasPrefix(name, "not ") {
			if !strings.Contains(got, "filters.http.rbac.allow") || strings.Contains(got, "policies") {
				t.Errorf("%s: %s", name, got)
			}
		} else if !strings.Contains(got, "filters.http.rbac.deny") || !strings.Contains(got, "policies") || strings.Contains(got, "uri_template") {
			t.Errorf("%s: %s", name, got)
		}
	}
}

func inboundRoutesOf(t *testing.T, m *testMesh) string {
	t.Helper()
	got, err := generate(m.snap, proxy(t, "sidecar a.default 127.203.40.1 app=a"), xds.RouteType, []string{"inbound|8080||"})
	if err != nil || len(got) != 1 {
		t.Fatalf("%v, %v", got, err)
	}
	data, err := protojson.Marshal(got[0].Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
