package translate_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/controlplane/translate"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
)

// versions returns the versions of all resources of a proxy by type and name.
func versions(t testing.TB, snap *snapshot.Snapshot, p *translate.Proxy) map[string]map[string]string {
	t.Helper()
	out := map[string]map[string]string{}
	for _, typeURL := range xds.Order {
		resources, err := generate(snap, p, typeURL, nil)
		if err != nil {
			t.Fatal(err)
		}
		out[typeURL] = map[string]string{}
		for _, r := range resources {
			if _, twice := out[typeURL][r.Name]; twice {
				t.Errorf("%s: %s occurs twice", typeURL, r.Name)
			}
			out[typeURL][r.Name] = r.Version
		}
	}
	return out
}

var affectedProxies = []string{
	"sidecar a-1.one 127.203.20.1 app=a version=v1 UPSTREAM_LISTENERS=db.two:3306=127.203.20.16:3306,grpc.two.svc.cluster.local:90=127.203.20.17:90",
	"sidecar b-1.two 127.203.21.1 app=b",
	"sidecar narrow.narrow 127.203.22.1 app=narrow",
	"sidecar far.far 127.203.23.1 app=far",
	"sidecar captured.one 127.203.24.1 app=a INTERCEPTION_MODE=REDIRECT",
	"sidecar measured.one 127.203.24.2 app=a INTERCEPTION_MODE=REDIRECT ENVOY_VERSION=1.40.0",
	"router edge.edge 127.203.25.1 istio=edge",
	"router other.edge 127.203.26.1 istio=other",
	"sidecar proven.one 127.203.33.1 app=a INTERCEPTION_MODE=REDIRECT PROVEN=yes",
	"router proven.edge 127.203.32.1 istio=edge PROVEN=yes",
	"sidecar apart.one 127.203.27.1 app=a version=v1 HOSTS_APART=yes",
	"sidecar captured-apart.one 127.203.28.1 app=a INTERCEPTION_MODE=REDIRECT HOSTS_APART=yes",
	"sidecar narrow-apart.narrow 127.203.29.1 app=narrow INTERCEPTION_MODE=REDIRECT HOSTS_APART=yes",
	"router edge-apart.edge 127.203.31.1 istio=edge HOSTS_APART=yes",
}

const affectedMesh = `
apiVersion: v1
kind: Service
metadata: {name: a, namespace: one}
spec: {selector: {app: a}, ports: [{name: http, port: 80, targetPort: web}, {name: tcp, port: 81}]}
---
apiVersion: v1
kind: Service
metadata: {name: b, namespace: two}
spec: {selector: {app: b}, ports: [{name: http, port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: db, namespace: two}
spec: {clusterIP: 10.0.0.9, selector: {app: db}, ports: [{name: tcp, port: 3306}]}
---
apiVersion: v1
kind: Service
metadata: {name: edge, namespace: edge}
spec: {selector: {istio: edge}, ports: [{name: http, port: 80, targetPort: 8080}]}
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: default, namespace: narrow}
spec: {egress: [{hosts: ["one/*"]}]}
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: edge, namespace: edge}
spec: {selector: {istio: edge}, servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ["*"]}, {port: {number: 3306, name: tcp, protocol: TCP}, hosts: ["*"]}]}
`

const customStep = "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: asked, namespace: one}\nspec: {action: CUSTOM, provider: {name: opa}, rules: [{}]}"

const requestAuthenticationStep = "apiVersion: security.istio.io/v1\nkind: RequestAuthentication\nmetadata: {name: tokens, namespace: one}\nspec: {selector: {matchLabels: {app: a}}, jwtRules: [{issuer: i, jwksUri: 'https://i.example/keys'}]}"

func credentialStep(namespace, more, mode string) string {
	return "apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: mine, namespace: " + namespace + "}\nspec: {host: b.two.svc.cluster.local, " + more +
		"trafficPolicy: {tls: {mode: " + mode + ", credentialName: mine}}}"
}

func pluginStep(namespace, more, url string) string {
	return "apiVersion: extensions.istio.io/v1alpha1\nkind: WasmPlugin\nmetadata: {name: plugin, namespace: " + namespace + "}\nspec: {" + more + "url: '" + url + "'}"
}

func registriesStep(namespace string) string {
	return "apiVersion: v1\nkind: Secret\nmetadata: {name: images, namespace: " + namespace + "}\nstringData: {.dockerconfigjson: '{\"auths\": {\"registry.example\": {\"password\": \"x\"}}}'}"
}

// affectedSteps are consecutive changes. A name without a document stands for a removal.
var affectedSteps = []string{
	"apiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {name: a-1, namespace: one}\nspec: {address: 127.203.20.1, serviceAccount: a, ports: {web: 8080}, labels: {app: a, version: v1, security.istio.io/tlsMode: istio}}",
	"apiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {name: a-2, namespace: one}\nspec: {address: 127.203.29.1, serviceAccount: a, ports: {web: 8081}, labels: {app: a, version: v2, security.istio.io/tlsMode: istio}}",
	"apiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {name: a-3, namespace: one}\nspec: {address: 127.203.30.1, ports: {web: 8081}, labels: {app: a}}",
	"apiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {name: b-1, namespace: two}\nspec: {address: 127.203.21.1, serviceAccount: b, labels: {app: b, security.istio.io/tlsMode: istio}}",
	"apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: a, namespace: one}\nspec: {host: a, subsets: [{name: v1, labels: {version: v1}}]}",
	"apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: a, namespace: one}\nspec: {host: a, trafficPolicy: {loadBalancer: {consistentHash: {httpHeaderName: x}}}, subsets: [{name: v1, labels: {version: v1}}]}",
	"apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: private, namespace: two}\nspec: {host: a.one, exportTo: [\".\"], trafficPolicy: {tls: {mode: DISABLE}}}",
	"apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: a, namespace: one}\nspec: {hosts: [a], http: [{match: [{sourceLabels: {app: far}}], route: [{destination: {host: b.two}}]}, {route: [{destination: {host: a, subset: v1}}]}]}",
	"apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: db, namespace: two}\nspec: {hosts: [db], tcp: [{route: [{destination: {host: a.one, port: {number: 81}}}]}]}",
	"apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: edge, namespace: one}\nspec: {hosts: [\"*\"], gateways: [edge/edge], http: [{route: [{destination: {host: a, port: {number: 80}}}]}], tcp: [{route: [{destination: {host: db.two}}]}]}",
	"apiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {name: other, namespace: edge}\nspec: {selector: {istio: other}, servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: [\"*\"]}]}",
	"apiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {name: other, namespace: edge}\nspec: {selector: {istio: edge}, servers: [{port: {number: 81, name: http, protocol: HTTP}, hosts: [\"*\"]}]}",
	"apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: default, namespace: one}\nspec: {mtls: {mode: STRICT}}",
	"apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: default, namespace: one}\nspec: {mtls: {mode: DISABLE}}",
	"apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: default, namespace: istio-system}\nspec: {mtls: {mode: STRICT}}",
	"apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: a, namespace: one}\nspec: {selector: {matchLabels: {app: a}}, rules: [{to: [{operation: {methods: [GET]}}]}]}",
	"apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: a, namespace: one}\nspec: {selector: {matchLabels: {app: other}}}",
	"apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: all, namespace: istio-system}\nspec: {action: DENY, rules: [{from: [{source: {ipBlocks: [10.0.0.0/8]}}]}]}",
	"apiVersion: networking.istio.io/v1\nkind: Sidecar\nmetadata: {name: default, namespace: narrow}\nspec: {egress: [{hosts: [\"two/*\", \"./*\"]}]}",
	"apiVersion: networking.istio.io/v1\nkind: Sidecar\nmetadata: {name: default, namespace: istio-system}\nspec: {outboundTrafficPolicy: {mode: REGISTRY_ONLY}, egress: [{hosts: [\"*/*\"]}]}",
	"apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: out, namespace: far}\nspec: {hosts: [out.example.com], exportTo: [\".\"], location: MESH_EXTERNAL, resolution: DNS, ports: [{number: 80, name: http, protocol: HTTP}]}",
	"apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: out, namespace: far}\nspec: {hosts: [out.example.com], location: MESH_EXTERNAL, resolution: DNS, ports: [{number: 80, name: http, protocol: HTTP}], endpoints: [{address: other.example.com}]}",
	"apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: any, namespace: far}\nspec: {hosts: [\"*.example.org\"], resolution: NONE, ports: [{number: 80, name: http, protocol: HTTP}]}",
	"apiVersion: v1\nkind: Service\nmetadata: {name: grpc, namespace: two}\nspec: {selector: {app: grpc}, ports: [{name: grpc, port: 90}]}",
	"apiVersion: v1\nkind: Service\nmetadata: {name: b, namespace: two}\nspec: {selector: {app: b}, ports: [{name: http, port: 80, targetPort: 8080}, {name: http-two, port: 82}]}",
	"apiVersion: v1\nkind: Service\nmetadata: {name: edge, namespace: edge}\nspec: {selector: {istio: edge}, ports: [{name: http, port: 80, targetPort: 8090}]}",
	"apiVersion: v1\nkind: Service\nmetadata: {name: a, namespace: one}\nspec: {selector: {app: other}, ports: [{name: http, port: 80}]}",
	requestAuthenticationStep, strings.Replace(requestAuthenticationStep, "namespace: one", "namespace: istio-system", 1),
	strings.Replace(requestAuthenticationStep, "{matchLabels: {app: a}}", "{matchLabels: {app: other}}", 1),
	"RequestAuthentication istio-system/tokens",
	"apiVersion: networking.istio.io/v1alpha3\nkind: EnvoyFilter\nmetadata: {name: all, namespace: istio-system}\nspec: {configPatches: [{applyTo: CLUSTER, patch: {operation: MERGE, value: {connect_timeout: 3s}}}, {applyTo: HTTP_ROUTE, patch: {operation: MERGE, value: {stat_prefix: x}}}]}",
	"apiVersion: networking.istio.io/v1alpha3\nkind: EnvoyFilter\nmetadata: {name: all, namespace: istio-system}\nspec: {configPatches: [{applyTo: CLUSTER, match: {cluster: {service: b.two.svc.cluster.local}}, patch: {operation: REMOVE}}, {applyTo: ROUTE_CONFIGURATION, match: {context: GATEWAY}, patch: {operation: MERGE, value: {most_specific_header_mutations_wins: true}}}]}",
	"apiVersion: networking.istio.io/v1alpha3\nkind: EnvoyFilter\nmetadata: {name: a, namespace: one}\nspec: {workloadSelector: {labels: {app: a}}, configPatches: [{applyTo: LISTENER, patch: {operation: MERGE, value: {per_connection_buffer_limit_bytes: 1000}}}, {applyTo: CLUSTER, patch: {operation: ADD, value: {name: extra, type: STATIC, connect_timeout: 1s}}}, {applyTo: VIRTUAL_HOST, match: {routeConfiguration: {name: http_proxy}}, patch: {operation: ADD, value: {name: more, domains: [more.example.com]}}}]}",
	"apiVersion: networking.istio.io/v1alpha3\nkind: EnvoyFilter\nmetadata: {name: a, namespace: one}\nspec: {configPatches: [{applyTo: LISTENER, match: {context: SIDECAR_INBOUND}, patch: {operation: MERGE, value: {per_connection_buffer_limit_bytes: 1000}}}]}",
	"apiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {name: tls, namespace: far}\nspec: {selector: {istio: edge}, servers: [{port: {number: 443, name: https, protocol: HTTPS}, hosts: [\"a.example\"], tls: {mode: SIMPLE, credentialName: one}}, {port: {number: 443, name: more, protocol: HTTPS}, hosts: [\"b.example\"], tls: {mode: MUTUAL, credentialName: one}}]}",
	"apiVersion: v1\nkind: Secret\nmetadata: {name: one, namespace: edge}\ndata: {tls.crt: $CERTIFICATE, tls.key: $KEY}",
	"apiVersion: v1\nkind: Secret\nmetadata: {name: one-cacert, namespace: edge}\ndata: {ca.crt: $AUTHORITY}",
	"apiVersion: v1\nkind: Secret\nmetadata: {name: one, namespace: edge}\ndata: {tls.crt: $CERTIFICATE, tls.key: $KEY, ca.crt: $AUTHORITY}",
	"Secret edge/one-cacert", "Secret edge/one",
	credentialStep("one", "workloadSelector: {matchLabels: {app: a}}, ", "SIMPLE"), "apiVersion: v1\nkind: Secret\nmetadata: {name: mine, namespace: one}\ndata: {ca.crt: $AUTHORITY}",
	credentialStep("one", "workloadSelector: {matchLabels: {app: a}}, ", "MUTUAL"), "apiVersion: v1\nkind: Secret\nmetadata: {name: mine, namespace: one}\ndata: {tls.crt: $CERTIFICATE, tls.key: $KEY, ca.crt: $AUTHORITY}",
	credentialStep("two", "", "MUTUAL"), "apiVersion: v1\nkind: Secret\nmetadata: {name: mine, namespace: edge}\ndata: {tls.crt: $CERTIFICATE, tls.key: $KEY, ca.crt: $AUTHORITY}",
	"apiVersion: networking.istio.io/v1\nkind: Sidecar\nmetadata: {name: ends, namespace: one}\nspec: {workloadSelector: {labels: {app: a}}, ingress: [{port: {number: 8443, protocol: HTTPS, name: web}, defaultEndpoint: 127.0.0.1:9, tls: {mode: MUTUAL, credentialName: mine}}], egress: [{hosts: [\"*/*\"]}]}",
	"apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: ends, namespace: one}\nspec: {mtls: {mode: DISABLE}}",
	"Secret one/mine", "DestinationRule one/mine", "Secret edge/mine", "DestinationRule two/mine", "Sidecar one/ends", "PeerAuthentication one/ends",
	"apiVersion: telemetry.istio.io/v1\nkind: Telemetry\nmetadata: {name: all, namespace: istio-system}\nspec: {accessLogging: [{providers: [{name: envoy}]}]}",
	"apiVersion: telemetry.istio.io/v1\nkind: Telemetry\nmetadata: {name: one, namespace: one}\nspec: {accessLogging: [{filter: {expression: response.code >= 400}}], metrics: [{overrides: [{tagOverrides: {response_flags: {operation: REMOVE}}}]}]}",
	"apiVersion: telemetry.istio.io/v1\nkind: Telemetry\nmetadata: {name: a, namespace: one}\nspec: {selector: {matchLabels: {app: a}}, accessLogging: [{disabled: true}]}",
	"Telemetry istio-system/all", "Telemetry one/a",
	strings.Replace(customStep, "CUSTOM, provider: {name: opa}", "AUDIT", 1), customStep,
	"apiVersion: networking.istio.io/v1\nkind: Sidecar\nmetadata: {name: a, namespace: one}\nspec: {workloadSelector: {labels: {app: a}}, ingress: [{port: {number: 8080, protocol: HTTP, name: web}, defaultEndpoint: 127.0.0.1:9}], egress: [{port: {number: 80, protocol: HTTP, name: http}, bind: 127.203.20.7, hosts: [\"two/*\"]}, {hosts: [\"*/*\"]}]}",
	"apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: b, namespace: two}\nspec: {hosts: [b], http: [{timeout: 1s, route: [{destination: {host: b}}]}]}",
	"apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: b, namespace: two}\nspec: {hosts: [b], http: [{timeout: 2s, route: [{destination: {host: b}}]}]}",
	"VirtualService two/b", "Sidecar one/a",
	pluginStep("istio-system", "", "file:///one.wasm"), pluginStep("one", "selector: {matchLabels: {app: a}}, ", "file:///two.wasm"),
	pluginStep("one", "selector: {matchLabels: {app: other}}, ", "file:///two.wasm"), pluginStep("one", "type: NETWORK, ", "file:///two.wasm"),
	pluginStep("one", "match: [{mode: CLIENT}], ", "oci://registry.example/three:1"), pluginStep("edge", "targetRefs: [{kind: Gateway, group: gateway.networking.k8s.io, name: edge}], ", "file:///four.wasm"),
	pluginStep("one", "imagePullSecret: images, ", "oci://registry.example/three:1"), pluginStep("istio-system", "imagePullSecret: images, ", "oci://registry.example/four:1"),
	registriesStep("one"), registriesStep("istio-system"), registriesStep("edge"),
	"Secret one/images", "Secret istio-system/images", "Secret edge/images",
	"WasmPlugin istio-system/plugin", "WasmPlugin one/plugin", "WasmPlugin edge/plugin",
	"apiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {name: auto, namespace: far}\nspec: {selector: {istio: edge}, servers: [{port: {number: 15443, name: tls, protocol: TLS}, hosts: [\"*.local\"], tls: {mode: AUTO_PASSTHROUGH}}]}",
	"apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: b, namespace: two}\nspec: {host: b, subsets: [{name: v9, labels: {version: v9}}]}",
	"apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: some, namespace: one}\nspec: {host: a, workloadSelector: {matchLabels: {app: a}}, trafficPolicy: {tls: {mode: DISABLE}, connectionPool: {tcp: {idleTimeout: 9s}}, loadBalancer: {consistentHash: {httpHeaderName: y}}}, subsets: [{name: v8, labels: {version: v8}}]}",
	"apiVersion: v1\nkind: Service\nmetadata: {name: more, namespace: two}\nspec: {selector: {app: b}, ports: [{name: http, port: 80}]}",
	"Service two/more", "DestinationRule two/b", "DestinationRule one/some",
	"VirtualService two/db", "VirtualService one/a", "VirtualService one/edge", "DestinationRule one/a", "DestinationRule two/private",
	"EnvoyFilter one/a", "EnvoyFilter istio-system/all", "Gateway edge/other", "PeerAuthentication one/default", "AuthorizationPolicy istio-system/all", "Sidecar narrow/default",
	"Sidecar istio-system/default", "ServiceEntry far/out", "ServiceEntry far/any", "WorkloadEntry one/a-3", "Service two/grpc", "Service one/a",
}

func (m *testMesh) step(step string) snapshot.Change {
	if strings.HasPrefix(step, "apiVersion") {
		return m.apply(withCertificates(step))
	}
	kind, name, _ := strings.Cut(step, " ")
	namespace, name, _ := strings.Cut(name, "/")
	return m.delete(config.Key{Kind: config.Kind(kind), Namespace: namespace, Name: name})
}

// TestAffectedResourcesIncludeAllTypes makes many single changes, and then all of them as one change. Each resource
// type that differs for a proxy must be reported as affected.
func TestAffectedResourcesIncludeAllTypes(t *testing.T) {
	m := newTestMesh(t, nil, affectedMesh)
	first := map[string]map[string]map[string]string{}
	before := map[string]map[string]map[string]string{}
	for _, description := range affectedProxies {
		first[description] = versions(t, m.snap, proxy(t, description))
	}
	maps.Copy(before, first)
	var all xds.Change
	for _, step := range affectedSteps {
		change := m.step(step)
		if all == nil {
			all = change
		} else {
			all = all.Merge(change)
		}
		for _, description := range affectedProxies {
			p := proxy(t, description)
			after := versions(t, m.snap, p)
			touches := translate.AffectedResources(m.snap, p, change)
			checkAffected(t, step+" for "+description, before[description], after, touches)
			checkNamed(t, step+" for "+description, m.snap, p, after, touches)
			checkAffected(t, "all until "+step+" for "+description, first[description], after, translate.AffectedResources(m.snap, p, all.(snapshot.Change)))
			before[description] = after
		}
	}
}

// failureReporter records failed checks.
type failureReporter interface {
	Helper()
	Errorf(format string, args ...any)
}

func checkAffected(t failureReporter, what string, before, after map[string]map[string]string, affected xds.PushScope) {
	t.Helper()
	for _, typeURL := range xds.Order {
		touched := affected[typeURL]
		for _, name := range differing(before[typeURL], after[typeURL]) {
			if !touched.All && !slices.Contains(touched.Names, name) {
				t.Errorf("%s: %s %s differs, but the affected resources are only %v", what, typeURL, name, touched.Names)
			}
		}
	}
}

// checkNamed checks that requests by name return the same resources as a request for all.
func checkNamed(t failureReporter, what string, snap *snapshot.Snapshot, p *translate.Proxy, after map[string]map[string]string, affected xds.PushScope) {
	t.Helper()
	named := map[string]func(*snapshot.Snapshot, *translate.Proxy, []string) ([]*xds.Resource, error){
		xds.ClusterType: translate.NamedClusters, xds.EndpointType: translate.Endpoints, xds.VirtualHostType: translate.NamedVirtualHosts,
		xds.ListenerType: translate.NamedListeners,
	}
	for typeURL, make := range named {
		names := slices.Compact(slices.Sorted(slices.Values(affected[typeURL].Names)))
		if affected[typeURL].All {
			names = slices.Sorted(maps.Keys(after[typeURL]))
		}
		if len(names) == 0 {
			continue
		}
		resources, err := make(snap, p, names)
		if err != nil {
			t.Errorf("%s: generating %s by name: %v", what, typeURL, err)
		}
		got, want := map[string]string{}, map[string]string{}
		for _, r := range resources {
			got[r.Name] = r.Version
		}
		for _, name := range names {
			if version, ok := after[typeURL][name]; ok {
				want[name] = version
			}
		}
		if !maps.Equal(got, want) {
			t.Errorf("%s: %s requested by name are %v, but in the response for all they are %v", what, typeURL, got, want)
		}
	}
}

// differing returns the names of resources that were added, removed or changed.
func differing(before, after map[string]string) []string {
	var out []string
	for name, version := range after {
		if before[name] != version {
			out = append(out, name)
		}
	}
	for name := range before {
		if _, still := after[name]; !still {
			out = append(out, name)
		}
	}
	return out
}

// TestChangesAffectMinimalResources checks the most frequent changes.
func TestChangesAffectMinimalResources(t *testing.T) {
	cds, eds, lds, rds, nds := xds.ClusterType, xds.EndpointType, xds.ListenerType, xds.RouteType, xds.NameTableType
	sidecar, stranger, router := "sidecar b-1.two 127.203.21.1 app=b", "sidecar narrow.narrow 127.203.22.1 app=narrow", "router edge.edge 127.203.25.1 istio=edge"
	m := newTestMesh(t, nil, affectedMesh, affectedSteps[3])
	for _, tc := range []struct {
		name, step, proxy string
		want              []string
	}{
		{"another endpoint with the same attributes", strings.ReplaceAll(affectedSteps[3], "b-1", "b-2"), sidecar, []string{eds, nds}},
		{"an endpoint without a sidecar", strings.ReplaceAll(affectedSteps[3], "name: b-1, namespace: two}\nspec: {address: 127.203.21.1, serviceAccount: b, labels: {app: b, security.istio.io/tlsMode: istio}", "name: b-3, namespace: two}\nspec: {address: 127.203.31.1, labels: {app: b}"), sidecar, []string{cds, eds, nds}},
		{"an endpoint of an invisible service", strings.ReplaceAll(affectedSteps[3], "b-1", "b-4"), stranger, nil},
		{"a rule for HTTP", affectedSteps[7], sidecar, []string{rds}},
		{"a rule for sidecars, at a gateway", strings.Replace(affectedSteps[7], "far", "near", 1), router, nil},
		{"a rule for connections", affectedSteps[8], sidecar, []string{lds, rds}},
		{"a rule for a gateway, at a sidecar", affectedSteps[9], sidecar, nil},
		{"a DestinationRule", affectedSteps[4], sidecar, []string{cds, eds}},
		{"a Gateway, at a sidecar", affectedSteps[10], sidecar, nil},
		{"a policy of another namespace", affectedSteps[15], sidecar, nil},
		{"a policy for all namespaces", affectedSteps[17], sidecar, []string{lds, rds}},
	} {
		change := m.step(tc.step)
		if got := translate.AffectedResources(m.snap, proxy(t, tc.proxy), change).Types(); !slices.Equal(got, tc.want) {
			t.Errorf("%s affects %v, want %v", tc.name, got, tc.want)
		}
	}
}

func TestMeshConfigurationAffectsAll(t *testing.T) {
	m := newTestMesh(t, nil, affectedMesh)
	m.mesh = &meshconfig.MeshConfig{AccessLogFile: "/dev/null"}
	if got := translate.AffectedResources(m.snap, proxy(t, affectedProxies[0]), m.rebuild(nil)).Types(); !slices.Equal(got, xds.Order) {
		t.Errorf("affected: %v", got)
	}
}
