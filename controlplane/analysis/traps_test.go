package analysis_test

import (
	"strings"
	"testing"

	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/controlplane/analysis"
	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/internal/testpki"
)

// inNamespace moves documents of the namespace shop.
func inNamespace(namespace, documents string) string {
	return strings.ReplaceAll(documents, "namespace: shop}", "namespace: "+namespace+"}")
}

func exported(name, exportTo string) string {
	return traffic("VirtualService", name, "{hosts: [reviews.shop.svc.cluster.local], "+exportTo+"http: [{route: [{destination: {host: reviews.shop.svc.cluster.local}}]}]}")
}

// twoPorts is a Service with two ports, of which none is that of the Gateway.
var twoPorts = document("v1", "Service", "two", "shop", "{selector: {app: db}, ports: [{name: http-a, port: 8081}, {name: http-b, port: 8082}]}")

// secretDocument returns a Secret with CA certificates.
func secretDocument(t *testing.T) string {
	pem := strings.ReplaceAll(strings.TrimSpace(string(testpki.New(t, "x").PEM())), "\n", "\n    ")
	return "apiVersion: v1\nkind: Secret\nmetadata: {name: x, namespace: shop}\nstringData:\n  ca.crt: |\n    " + pem + "\n---\n"
}

func httpsServer(name, host, tls string) string {
	return traffic("Gateway", name, "{selector: {istio: edge}, servers: [{port: {number: 443, name: https, protocol: HTTPS}, hosts: ["+host+"], tls: {mode: SIMPLE, "+tls+"}}]}")
}

// TestSettingsThatFailSilentlyAreReported: without a finding, each of these settings fails only at run time.
func TestSettingsThatFailSilentlyAreReported(t *testing.T) {
	toEdge := func(destination string) string {
		return traffic("VirtualService", "x", "{hosts: [reviews.example.com], gateways: [edge], http: [{route: [{destination: "+destination+"}]}]}")
	}
	claims := traffic("VirtualService", "x", `{hosts: [reviews.example.com], gateways: [edge], http: [{match: [{headers: {"@request.auth.claims.group": {exact: admin}}}], `+toReviews+`}]}`)
	const files = "serverCertificate: /c.pem, privateKey: /k.pem"
	for name, tc := range map[string]struct{ documents, want string }{
		"claims without verification at a gateway": {claims,
			`VirtualService shop/x: spec.http[0].match[0].headers[@request.auth.claims.group]: "@request.auth.claims.group": no RequestAuthentication verifies tokens at the Gateway shop/edge: the route never matches (add a RequestAuthentication for the gateway's workloads) [PF0405]`},
		"no port for a service with several": {twoPorts + toEdge("{host: two}"),
			`VirtualService shop/x: spec.http[0].route[0].destination: "two": the port is missing, and two.shop.svc.cluster.local has no port 80, at which the traffic arrives: requests to it are answered with 503 (set port.number to one of 8081, 8082) [PF0113]`},
		"no port of the host at sidecars": {twoPorts + virtualService("{route: [{destination: {host: two}}]}"), `has no port 80, at which the traffic arrives`},
		"a Gateway without a workload": {traffic("Gateway", "x", "{selector: {istio: egde}, servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: [a.example.com]}]}"),
			`info: Gateway shop/x: spec.selector: "istio=egde": no known workload has these labels: no proxy serves the Gateway`},
		"a port that no Service has": {document("v1", "Service", "edge", "shop", "{selector: {istio: edge}, ports: [{port: 443, name: https}]}"),
			`Gateway shop/edge: spec.servers[0].port.number: "80": no Service of the Gateway's workloads has this port: clients that use the Service cannot reach the server (add the port to Service shop/edge, or correct the port) [PF0303]`},
		"public rules of one host": {exported("a", `exportTo: ["*"], `) + exported("b", ""),
			`VirtualService shop/b: spec.hosts[0]: "reviews.shop.svc.cluster.local": sidecars use VirtualService shop/a (mesh.yaml:31:1) for this host, because it comes first in name order; this VirtualService has no effect on sidecars`},
		"a public rule of another namespace": {exported("b", "") + inNamespace("far", exported("a", `exportTo: ["*"], `)), `VirtualService shop/b: spec.hosts[0]`},
		"two rules of one namespace alone":   {exported("a", `exportTo: ["."], `) + exported("b", `exportTo: ["shop"], `), `VirtualService shop/b: spec.hosts[0]`},
		"targets of waypoints": {policy("RequestAuthentication", "x", `{targetRefs: [{kind: Service, name: reviews, group: ""}], jwtRules: [{issuer: a, jwksUri: 'https://a.example/keys'}]}`),
			`RequestAuthentication shop/x: spec.targetRefs[0]: "Service": this mesh has no waypoints, so the document has no effect on a target of this kind (select the workloads by label with spec.selector) [PF0006]`},
		"a Secret for sidecars": {secretDocument(t) + traffic("DestinationRule", "x", "{host: reviews, trafficPolicy: {tls: {mode: SIMPLE, credentialName: x}}}"),
			`warning: DestinationRule shop/x: spec.trafficPolicy.tls.credentialName: "x": without a workloadSelector, only gateways use the Secret: requests from sidecars fail with status 503`},
		"a Secret for a gateway and sidecars": {secretDocument(t) + toEdge("{host: reviews}") + traffic("DestinationRule", "x", "{host: reviews, trafficPolicy: {tls: {mode: SIMPLE, credentialName: x}}}"),
			`info: DestinationRule shop/x: spec.trafficPolicy.tls.credentialName`},
		"Sidecars that meet in a workload": {traffic("Sidecar", "a", "{workloadSelector: {labels: {app: reviews}}, egress: [{hosts: [./*]}]}") + traffic("Sidecar", "b", "{workloadSelector: {labels: {version: v1}}, egress: [{hosts: [./*]}]}"),
			`Sidecar shop/b: spec.workloadSelector: "version=v1": Sidecar shop/a (mesh.yaml:31:1) also selects 1 workload (reviews-1) and takes effect instead of this document, because it comes first in name order (merge the two documents, or use selectors that do not overlap) [PF0208]`},
		"Telemetries that meet in a workload": {document("telemetry.istio.io/v1", "Telemetry", "a", "shop", "{selector: {matchLabels: {app: reviews}}}") + document("telemetry.istio.io/v1", "Telemetry", "b", "shop", "{selector: {matchLabels: {version: v1}}}"),
			`Telemetry shop/b: spec.selector: "version=v1": Telemetry shop/a`},
		"a certificate of an SDS server that may not exist": {httpsServer("a", "a.example.com", "credentialName: 'sds://one'"),
			`info: Gateway shop/a: spec.servers[0].tls.credentialName: "sds://one": the proxy serves this certificate only if an SDS server listens on its socket credential-uds/socket`},
		"a certificate of two servers": {httpsServer("a", "a.example.com", files) + httpsServer("b", "b.example.com", files),
			`Gateway shop/b: spec.servers[0].tls: the server spec.servers[0] of Gateway shop/a (mesh.yaml:31:1) has the same certificate on this port`},
	} {
		t.Run(name, func(t *testing.T) {
			m := newTestMesh(t, nil, shop+tc.documents)
			if got := m.check(); len(got) != 1 || !strings.Contains(got[0].String(), tc.want) {
				t.Errorf("problems:\n%s\nnot:\n%s", problems(m), tc.want)
			}
		})
	}
}

// TestWorkingSettingsHaveNoFinding has the counterparts of the settings that fail.
func TestWorkingSettingsHaveNoFinding(t *testing.T) {
	claims := traffic("VirtualService", "x", `{hosts: [reviews.example.com], gateways: [edge], http: [{match: [{headers: {"@request.auth.claims.group": {exact: admin}}}], `+toReviews+`}]}`)
	for name, documents := range map[string]string{
		"claims that are verified":              claims + policy("RequestAuthentication", "x", `{selector: {matchLabels: {istio: edge}}, jwtRules: [{issuer: a, jwksUri: 'https://a.example/keys'}]}`),
		"a port for a service with several":     twoPorts + traffic("VirtualService", "x", "{hosts: [reviews.example.com], gateways: [edge], http: [{route: [{destination: {host: two, port: {number: 8081}}}]}]}"),
		"the Gateway's port among several":      document("v1", "Service", "two", "shop", "{selector: {app: db}, ports: [{name: http-a, port: 80}, {name: http-b, port: 8082}]}") + traffic("VirtualService", "x", "{hosts: [reviews.example.com], gateways: [edge], http: [{route: [{destination: {host: two}}]}]}"),
		"a Service of the Gateway's port":       document("v1", "Service", "edge", "shop", "{selector: {istio: edge}, ports: [{port: 80, name: http}]}"),
		"a Service of another number":           document("v1", "Service", "edge", "shop", "{selector: {istio: edge}, ports: [{port: 8000, targetPort: 80, name: http}]}"),
		"a Gateway whose workloads may come":    document("v1", "Service", "other", "shop", "{selector: {istio: other}, ports: [{port: 80, name: http}]}") + traffic("Gateway", "x", "{selector: {istio: other}, servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: [a.example.com]}]}"),
		"private rules of two namespaces":       exported("a", `exportTo: ["."], `) + inNamespace("far", exported("b", `exportTo: ["."], `)),
		"a private rule and a public one":       exported("a", `exportTo: ["*"], `) + inNamespace("far", exported("b", `exportTo: ["."], `)),
		"rules for one namespace each":          exported("a", `exportTo: ["one"], `) + exported("b", `exportTo: ["two"], `),
		"a Gateway as target":                   policy("RequestAuthentication", "x", `{targetRefs: [{kind: Gateway, name: edge, group: gateway.networking.k8s.io}], jwtRules: [{issuer: a, jwksUri: 'https://a.example/keys'}]}`),
		"a Secret for selected workloads":       secretDocument(t) + traffic("DestinationRule", "x", "{host: reviews, workloadSelector: {matchLabels: {app: db}}, trafficPolicy: {tls: {mode: SIMPLE, credentialName: x}}}"),
		"Sidecars of different workloads":       traffic("Sidecar", "a", "{workloadSelector: {labels: {app: reviews}}, egress: [{hosts: [./*]}]}") + traffic("Sidecar", "b", "{workloadSelector: {labels: {app: db}}, egress: [{hosts: [./*]}]}"),
		"certificates of their own":             httpsServer("a", "a.example.com", "serverCertificate: /a.pem, privateKey: /k.pem") + httpsServer("b", "b.example.com", "serverCertificate: /b.pem, privateKey: /k.pem"),
		"a policy for labels beside a selector": document("v1", "Service", "new", "empty", "{selector: {app: new}, ports: [{port: 80, name: http}]}") + document("security.istio.io/v1", "AuthorizationPolicy", "x", "empty", "{selector: {matchLabels: {version: v9}}}"),
	} {
		t.Run(name, func(t *testing.T) {
			if p := problems(newTestMesh(t, nil, shop+documents)); p != "" {
				t.Errorf("problems of what is right:\n%s", p)
			}
		})
	}
}

// TestProvidersOfCertificatesAreChecked: the service of the SDS server must be visible.
func TestProvidersOfCertificatesAreChecked(t *testing.T) {
	for service, want := range map[string]string{"reviews.shop.svc.cluster.local": "", "none.example": "the service none.example of the SDS provider, port 80, is not visible in namespace "} {
		mesh := &meshconfig.MeshConfig{ExtensionProviders: []*meshconfig.MeshConfig_ExtensionProvider{{
			Name: "sds", Provider: &meshconfig.MeshConfig_ExtensionProvider_Sds{Sds: &meshconfig.MeshConfig_ExtensionProvider_SDSProvider{Name: "sds", Service: service, Port: 80}},
		}}}
		if got := problems(newTestMesh(t, mesh, shop+httpsServer("a", "a.example.com", "credentialName: 'sds://one'"))); !strings.Contains(got, want) || want == "" && got != "" {
			t.Errorf("%s: problems:\n%s", service, got)
		}
	}
}

// TestUnknownWorkloadsAreNotMissing: where no workload is known, a selector without a match is no mistake.
func TestUnknownWorkloadsAreNotMissing(t *testing.T) {
	m := newTestMesh(t, nil, shop+document("v1", "Service", "new", "empty", "{selector: {app: new}, ports: [{port: 80, name: http}]}")+
		document("security.istio.io/v1", "AuthorizationPolicy", "x", "empty", "{selector: {matchLabels: {app: old}}}"))
	if got := m.check(); len(got) != 1 || got[0].Severity != config.Info || !strings.Contains(got[0].Message, "no workload of the namespace empty is known") {
		t.Errorf("problems:\n%s", problems(m))
	}
}

// TestRefusedObjectsAreNotReportedAsMissing: the author sees that the object exists, so the finding names the refusal.
func TestRefusedObjectsAreNotReportedAsMissing(t *testing.T) {
	const refusedGateway = "apiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {name: second, namespace: shop}\nspec: {selector: {istio: edge}, servers: 1}\n---\n"
	for name, tc := range map[string]struct{ documents, want string }{
		"Gateway": {refusedGateway + traffic("VirtualService", "x", "{hosts: [a.example.com], gateways: [second], http: [{"+toReviews+"}]}"),
			`spec.gateways[0]: "second": Gateway shop/second is refused (mesh.yaml:34:42): the routes do not apply to it (correct Gateway shop/second as its finding describes) [PF0104]`},
		"ServiceEntry": {traffic("ServiceEntry", "s", "{hosts: [a.example.com], ports: [{number: 70000, name: http, protocol: HTTP}], resolution: DNS}") + virtualService("{route: [{destination: {host: a.example.com}}]}"),
			`spec.http[0].route[0].destination.host: "a.example.com": ServiceEntry shop/s is refused (`},
		"Service": {document("v1", "Service", "new", "shop", "{ports: [{port: 70000}]}") + virtualService("{route: [{destination: {host: new}}]}"),
			`"new": Service shop/new is refused (`},
		"DestinationRule": {traffic("DestinationRule", "r", "{host: reviews, subsets: [{name: v1, labels: {version: v1}}], trafficPolicy: {connectionPool: {tcp: {maxConnections: -1}}}}") + virtualService("{route: [{destination: {host: reviews, subset: v1}}]}"),
			`destination.subset: "v1": DestinationRule shop/r is refused (`},
		"another Gateway": {refusedGateway + traffic("VirtualService", "x", "{hosts: [a.example.com], gateways: [third], http: [{"+toReviews+"}]}"),
			`there is no Gateway shop/third: the routes do not apply to it`},
	} {
		t.Run(name, func(t *testing.T) {
			resources, refused := config.Parse("mesh.yaml", []byte(shop+tc.documents))
			store := config.NewMemoryStore()
			store.Put(resources...)
			built := snapshot.Build(nil, snapshot.Inputs{Store: store}, nil)
			found := analysis.ExplainRefused(built, analysis.Check(built), refused)
			if len(found) != 1 || !strings.Contains(found[0].String(), tc.want) {
				t.Errorf("problems: %v\nnot:\n%s", found, tc.want)
			}
		})
	}
}
