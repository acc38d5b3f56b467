package analysis_test

import (
	"fmt"
	"strings"
	"testing"

	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// shop is a mesh without problems.
const shop = `apiVersion: v1
kind: Service
metadata: {name: reviews, namespace: shop}
spec: {selector: {app: reviews}, ports: [{name: http, port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: db, namespace: shop}
spec: {selector: {app: db}, ports: [{name: tcp, port: 5432, targetPort: 5432}]}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: reviews-1, namespace: shop}
spec: {address: 10.0.0.1, serviceAccount: reviews, labels: {app: reviews, version: v1, security.istio.io/tlsMode: istio}}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: db-1, namespace: shop}
spec: {address: 10.0.0.2, labels: {app: db}}
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: edge, namespace: shop}
spec: {selector: {istio: edge}, servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ["reviews.example.com"]}]}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: edge-1, namespace: shop}
spec: {address: 10.0.0.4, labels: {istio: edge}}
---
`

func traffic(kind, name, spec string) string {
	return document("networking.istio.io/v1", kind, name, "shop", spec)
}

func policy(kind, name, spec string) string {
	return document("security.istio.io/v1", kind, name, "shop", spec)
}

func document(api, kind, name, namespace, spec string) string {
	return fmt.Sprintf("apiVersion: %s\nkind: %s\nmetadata: {name: %s, namespace: %s}\nspec: %s\n---\n", api, kind, name, namespace, spec)
}

func virtualService(http string) string {
	return traffic("VirtualService", "x", "{hosts: [reviews], http: ["+http+"]}")
}

// alias is an alias of reviews.
var alias = document("v1", "Service", "other", "shop", "{type: ExternalName, externalName: reviews.shop.svc.cluster.local}")

const toReviews = "route: [{destination: {host: reviews}}]"

// TestConflictingDocumentsAreReported: each of these documents is valid by itself.
func TestConflictingDocumentsAreReported(t *testing.T) {
	strict := policy("PeerAuthentication", "default", "{mtls: {mode: STRICT}}")
	for name, tc := range map[string]struct{ documents, want string }{
		"a route after one that matches all": {virtualService("{" + toReviews + "}, {match: [{uri: {prefix: /a}}], " + toReviews + "}"),
			`spec.http[1]: the route is never reached: spec.http[0] matches all its requests (move it before the route or match that matches its requests, or remove it) [PF0202]`},
		"a match for a gateway that the rule is not for": {virtualService("{match: [{gateways: [edge]}, {uri: {prefix: /a}}], " + toReviews + "}"),
			`spec.http[0].match[0].gateways: "edge": the match is never reached: the VirtualService is not bound to this gateway`},
		"a match for the workloads' port": {virtualService("{match: [{port: 8080}], " + toReviews + "}, {match: [{port: 80}], " + toReviews + "}"),
			`spec.http[0].match[0].port: "8080": the match is never reached: none of the VirtualService's hosts and gateways has this port`},
		"a match for a port that the gateway has not": {traffic("VirtualService", "x", `{hosts: [reviews.example.com], gateways: [edge], http: [{match: [{port: 8080}], `+toReviews+`}]}`),
			`spec.http[0].match[0].port: "8080": the match is never reached`},
		"a delegate for what is not left to it": {virtualService("{match: [{uri: {prefix: /a}}], delegate: {name: d}}") + traffic("VirtualService", "d", "{http: [{match: [{uri: {prefix: /a/b}}], "+toReviews+"}, {match: [{uri: {prefix: /b}}], "+toReviews+"}]}"),
			`spec.http[0].delegate: "d": spec.http[1] of the delegate is left out: its match cannot be combined with the match of this route`},
		"a Sidecar's own TLS beside the mesh's": {traffic("Sidecar", "x", "{workloadSelector: {labels: {app: reviews}}, ingress: [{port: {number: 8080, protocol: HTTPS, name: https}, defaultEndpoint: '127.0.0.1:80', tls: {mode: SIMPLE, serverCertificate: /c, privateKey: /k}}]}"),
			`spec.ingress[0].tls: the port accepts the mesh's mutual TLS (PERMISSIVE), so these TLS settings have no effect (set portLevelMtls of the workloads' PeerAuthentication to DISABLE for port 8080) [PF0006]`},
		"strict by port without a sidecar": {policy("PeerAuthentication", "db", "{selector: {matchLabels: {app: db}}, portLevelMtls: {5432: {mode: STRICT}}}"),
			`PeerAuthentication shop/db: spec.portLevelMtls: "STRICT": STRICT is not enforced for 1 workload without a sidecar: shop/db-1`},
		"a longer prefix behind a shorter": {virtualService("{match: [{uri: {prefix: /a}}], " + toReviews + "}, {match: [{uri: {exact: /ab}}, {uri: {prefix: /b}}], " + toReviews + "}"),
			`spec.http[1].match[0]: the match is never reached: spec.http[0].match[0] matches all its requests`},
		"a more special header behind a more general": {virtualService("{match: [{headers: {x: {}}}], " + toReviews + "}, {match: [{headers: {x: {exact: a}, y: {exact: b}}}], " + toReviews + "}"),
			`spec.http[1]: the route is never reached`},
		"a server name behind its wildcard": {traffic("VirtualService", "x", `{hosts: ["*.example.com"], gateways: [edge], tls: [{match: [{sniHosts: ["*.example.com"]}], route: [{destination: {host: reviews}}]}, {match: [{sniHosts: [a.example.com]}], route: [{destination: {host: reviews}}]}]}`),
			`spec.tls[1]: the route is never reached`},
		"weights unlike 100": {virtualService("{route: [{weight: 1, destination: {host: reviews}}, {weight: 2, destination: {host: db}}]}"),
			`info: VirtualService shop/x: spec.http[0].route: "3"`},
		"a subset without endpoints": {traffic("DestinationRule", "r", "{host: reviews, subsets: [{name: v2, labels: {version: v2}}]}") +
			virtualService("{route: [{destination: {host: reviews, subset: v2}}]}"),
			`spec.http[0].route[0].destination.subset: "v2": none of the endpoints of reviews.shop.svc.cluster.local has the labels version=v2`},
		"a host that is not exported": {document("networking.istio.io/v1", "ServiceEntry", "s", "other", `{hosts: [a.example.com], exportTo: ["."], ports: [{number: 80, name: http, protocol: HTTP}], resolution: DNS}`) +
			virtualService("{route: [{destination: {host: a.example.com}}]}"),
			`a.example.com is not exported to the namespace shop: requests to it are answered with 503 (add "shop" to exportTo of ServiceEntry other/s, which is now .) [PF0105]`},
		"two policies of one host": {traffic("DestinationRule", "a", "{host: reviews, trafficPolicy: {connectionPool: {tcp: {maxConnections: 1}}}}") +
			traffic("DestinationRule", "b", "{host: reviews, trafficPolicy: {connectionPool: {tcp: {maxConnections: 2}}}}"),
			`DestinationRule shop/b: spec.trafficPolicy: the traffic policy of DestinationRule shop/a (mesh.yaml:31:1), which comes first in name order, applies to reviews.shop.svc.cluster.local; this policy has no effect`},
		"one subset twice": {traffic("DestinationRule", "a", "{host: reviews, subsets: [{name: v1, labels: {version: v1}}]}") +
			traffic("DestinationRule", "b", "{host: reviews, subsets: [{name: v1, labels: {version: v1}}]}"), `DestinationRule shop/b: spec.subsets[0]: "v1": DestinationRule shop/a (mesh.yaml:31:1), which comes first in name order, has a subset with this name`},
		"a gateway's port for HTTP and TCP": {traffic("Gateway", "z", `{selector: {istio: edge}, servers: [{port: {number: 80, name: tcp, protocol: TCP}, hosts: ["*"]}]}`),
			`Gateway shop/z: spec.servers[0].port.protocol: "TCP": Gateway shop/edge (mesh.yaml:21:1), which comes first in name order, uses port 80 for HTTP, so the gateway does not serve this server`},
		"a gateway's host that redirects and does not": {traffic("Gateway", "z", `{selector: {istio: edge}, servers: [{port: {number: 80, name: http, protocol: HTTP}, tls: {httpsRedirect: true}, hosts: ["reviews.example.com"]}]}`),
			`Gateway shop/z: spec.servers[0].hosts: "reviews.example.com": the server spec.servers[0] of Gateway shop/edge`},
		"a gateway that lacks the host": {traffic("VirtualService", "x", `{hosts: [other.example.com], gateways: [edge], http: [{`+toReviews+`}]}`),
			`spec.gateways[0]: "edge": no server of the Gateway has a host of this VirtualService`},
		"a policy that selects nothing": {policy("AuthorizationPolicy", "x", "{selector: {matchLabels: {app: review}}}"),
			`AuthorizationPolicy shop/x: spec.selector: "app=review": no workload of the namespace shop has these labels: the document has no effect`},
		"two policies of all": {policy("PeerAuthentication", "a", "{mtls: {mode: PERMISSIVE}}") + policy("PeerAuthentication", "b", "{mtls: {mode: PERMISSIVE}}"),
			`PeerAuthentication shop/b: metadata.name: PeerAuthentication shop/a (mesh.yaml:31:1), which comes first in name order, selects the same workloads and takes effect instead of this document`},
		"the port of a service in a policy": {policy("AuthorizationPolicy", "x", `{selector: {matchLabels: {app: reviews}}, rules: [{to: [{operation: {ports: ["80"]}}]}]}`),
			`spec.rules[0].to[0].operation.ports[0]: "80": this is the port of a service, but policies apply to ports of workloads, and no selected workload serves it (use 8080`},
		"a principal of another form": {policy("AuthorizationPolicy", "x", `{rules: [{from: [{source: {principals: ["cluster.local/shop/db"]}}]}]}`),
			`no caller has a principal of this form`},
		"a namespace that is not there": {policy("AuthorizationPolicy", "x", `{rules: [{from: [{source: {namespaces: ["shopp"]}}]}]}`),
			`info: AuthorizationPolicy shop/x: spec.rules[0].from[0].source.namespaces[0]: "shopp"`},
		"plaintext to strict": {policy("PeerAuthentication", "default", "{selector: {matchLabels: {app: reviews}}, mtls: {mode: STRICT}}") + traffic("DestinationRule", "x", "{host: reviews, trafficPolicy: {tls: {mode: DISABLE}}}"),
			`spec.trafficPolicy.tls.mode: "DISABLE": endpoints of reviews.shop.svc.cluster.local accept the mesh's mutual TLS only (STRICT): calls to them fail`},
		"strict without a sidecar": {strict, `PeerAuthentication shop/default: spec.mtls.mode: "STRICT": STRICT is not enforced for 1 workload without a sidecar: shop/db-1`},
		"mutual TLS to workloads without it": {traffic("DestinationRule", "x", "{host: db, trafficPolicy: {portLevelSettings: [{port: {number: 5432}, tls: {mode: ISTIO_MUTUAL}}]}}"),
			`spec.trafficPolicy.portLevelSettings[0].tls.mode: "ISTIO_MUTUAL": no endpoint of db.shop.svc.cluster.local supports the mesh's mutual TLS`},
		"principals where none can be proved": {policy("PeerAuthentication", "default", "{mtls: {mode: DISABLE}}") + policy("AuthorizationPolicy", "x", `{rules: [{from: [{source: {principals: ["*"]}}]}]}`),
			`AuthorizationPolicy shop/x: spec.rules[0].from[0].source: mutual TLS is disabled for these workloads`},
		"claims without verification": {policy("AuthorizationPolicy", "x", `{selector: {matchLabels: {app: reviews}}, rules: [{when: [{key: "request.auth.claims[iss]", values: [a]}]}]}`),
			`no RequestAuthentication verifies tokens for these workloads`},
		"a method in what a TCP port allows": {policy("AuthorizationPolicy", "x", `{selector: {matchLabels: {app: db}}, rules: [{to: [{operation: {methods: [GET]}}]}]}`),
			`info: AuthorizationPolicy shop/x: spec.rules[0].to[0].operation: the condition applies only to HTTP requests, but these ports do not use HTTP: db.shop.svc.cluster.local:5432: the rule never matches at these ports`},
		"a listener for an unknown port": {traffic("Sidecar", "x", "{egress: [{port: {number: 81, protocol: HTTP, name: http}, hosts: [./*]}, {hosts: [./*]}]}"),
			`warning: Sidecar shop/x: spec.egress[0].port.number: "81": none of the services in the listener's hosts has the port 81, so the listener has no effect (use one of the services' ports: 80, 5432) [PF0102]`},
		"a header of the PROXY protocol towards a sidecar": {traffic("DestinationRule", "x", "{host: reviews, trafficPolicy: {proxyProtocol: {version: V2}}}"),
			`DestinationRule shop/x: spec.trafficPolicy.proxyProtocol: "V2": the workloads of reviews.shop.svc.cluster.local have sidecars, which expect no PROXY protocol header: calls to it fail`},
		"that of a subset, without TLS, before requests": {traffic("DestinationRule", "x", "{host: '*.shop.svc.cluster.local', subsets: [{name: v1, labels: {version: v1}, trafficPolicy: {tls: {mode: DISABLE}, proxyProtocol: {}}}]}"),
			`DestinationRule shop/x: spec.subsets[0].trafficPolicy.proxyProtocol: "V1": the workloads of reviews.shop.svc.cluster.local have sidecars`},
		"hosts of one address that are looked up": {traffic("ServiceEntry", "a", `{hosts: [a.example.com, b.example.com], addresses: [10.9.9.9], ports: [{number: 1, name: tcp, protocol: TCP}], resolution: DNS}`),
			`ServiceEntry shop/a: spec.addresses[0]: "10.9.9.9": a.example.com has the same address 10.9.9.9 and port 1`},
		"hosts of one address with rules of their own": {traffic("ServiceEntry", "a", `{hosts: [a.example.com, b.example.com], addresses: [10.9.9.9], ports: [{number: 1, name: tcp, protocol: TCP}], resolution: STATIC, endpoints: [{address: 10.1.1.1}]}`) +
			traffic("VirtualService", "b", "{hosts: [b.example.com], tcp: [{route: [{destination: {host: db}}]}]}"),
			`ServiceEntry shop/a: spec.addresses[0]: "10.9.9.9": a.example.com has the same address 10.9.9.9 and port 1`},
		"a method on a TCP port": {policy("AuthorizationPolicy", "x", `{selector: {matchLabels: {app: db}}, action: DENY, rules: [{to: [{operation: {methods: [GET]}}]}]}`),
			`the condition applies only to HTTP requests, but these ports do not use HTTP: db.shop.svc.cluster.local:5432: the rule ignores the condition at these ports and refuses connections`},
		"outlier detection that leaves none of two out": {traffic("WorkloadEntry", "reviews-2", "{address: 10.0.0.3, serviceAccount: reviews, labels: {app: reviews, version: v2, security.istio.io/tlsMode: istio}}") + traffic("DestinationRule", "x", "{host: reviews, trafficPolicy: {outlierDetection: {consecutive5xxErrors: 1}}}"),
			`DestinationRule shop/x: spec.trafficPolicy.outlierDetection.maxEjectionPercent: "10": Envoy never ejects an endpoint: 10% of the 2 endpoints of reviews.shop.svc.cluster.local is less than one (set maxEjectionPercent to 50 or more`},
		"a VirtualService for an alias": {alias + traffic("VirtualService", "v", "{hosts: [other], http: [{route: [{destination: {host: other}}]}]}"),
			`VirtualService shop/v: spec.hosts[0]: "other": the host is an alias of reviews.shop.svc.cluster.local: for calls by either name, sidecars use the rules of that service`},
		"a DestinationRule for an alias": {alias + traffic("DestinationRule", "v", "{host: other.shop, trafficPolicy: {tls: {mode: DISABLE}}}"),
			`DestinationRule shop/v: spec.host: "other.shop": the host is an alias of reviews.shop.svc.cluster.local`},
		"a port that the service of an alias lacks": {alias + traffic("VirtualService", "v", "{hosts: [x.example], http: [{route: [{destination: {host: other, port: {number: 1}}}]}]}"),
			`VirtualService shop/v: spec.http[0].route[0].destination.port.number: "1": reviews.shop.svc.cluster.local has no port 1`},
		"an alias that is kept from who leads to it": {strings.Replace(document("v1", "Service", "other", "far", "{type: ExternalName, externalName: reviews.shop.svc.cluster.local}"), "namespace: far", `namespace: far, annotations: {networking.istio.io/exportTo: "."}`, 1) +
			traffic("VirtualService", "v", "{hosts: [x.example], http: [{route: [{destination: {host: other.far}}]}]}"),
			`VirtualService shop/v: spec.http[0].route[0].destination.host: "other.far": other.far.svc.cluster.local is not exported to the namespace shop`},
		"an alias in a cycle": {document("v1", "Service", "other", "shop", "{type: ExternalName, externalName: other.shop.svc.cluster.local}"),
			`Service shop/other: spec.externalName: "other.shop.svc.cluster.local": the name is part of a cycle`},
		"two services of one address": {traffic("ServiceEntry", "a", `{hosts: [a.example.com], addresses: [10.9.9.9], ports: [{number: 1, name: tcp, protocol: TCP}], resolution: DNS}`) +
			traffic("ServiceEntry", "b", `{hosts: [b.example.com], addresses: [10.9.9.9], ports: [{number: 1, name: tcp, protocol: TCP}], resolution: DNS}`),
			`ServiceEntry shop/b: spec.addresses[0]: "10.9.9.9": a.example.com has the same address 10.9.9.9 and port 1`},
	} {
		t.Run(name, func(t *testing.T) {
			m := newTestMesh(t, nil, shop+tc.documents)
			if got := m.check(); len(got) != 1 || !strings.Contains(got[0].String(), tc.want) {
				t.Errorf("problems:\n%s\nnot:\n%s", problems(m), tc.want)
			}
		})
	}
}

// TestValidDocumentsAreNotReported: wrong warnings teach users to ignore warnings.
func TestValidDocumentsAreNotReported(t *testing.T) {
	for name, documents := range map[string]string{
		"nothing":                         "",
		"a shorter prefix behind":         virtualService("{match: [{uri: {prefix: /ab}}], " + toReviews + "}, {match: [{uri: {prefix: /a}}], " + toReviews + "}, {" + toReviews + "}"),
		"the same path by another method": virtualService("{match: [{method: {exact: GET}, uri: {prefix: /a}}], " + toReviews + "}, {match: [{uri: {prefix: /a}}], " + toReviews + "}"),
		"the same path for others":        virtualService("{match: [{sourceLabels: {app: a}}], " + toReviews + "}, {match: [{sourceLabels: {app: b}}], " + toReviews + "}"),
		"another case":                    virtualService("{match: [{uri: {prefix: /a}}], " + toReviews + "}, {match: [{uri: {prefix: /a}, ignoreUriCase: true}], " + toReviews + "}"),
		"what must not be there":          virtualService("{match: [{withoutHeaders: {x: {}}}], " + toReviews + "}, {match: [{headers: {x: {}}}], " + toReviews + "}"),
		"a policy for the gateway":        policy("AuthorizationPolicy", "x", "{selector: {matchLabels: {istio: edge}}}"),
		"a port of one of two hosts":      traffic("VirtualService", "x", "{hosts: [reviews, db], http: [{match: [{port: 5432}], "+toReviews+"}]}"),
		"a port of hosts outside":         traffic("VirtualService", "x", `{hosts: ["*.example.org"], http: [{match: [{port: 8443}], `+toReviews+"}]}"),
		"a match for one of two gateways": traffic("VirtualService", "x", "{hosts: [reviews.example.com], gateways: [edge, mesh], http: [{match: [{gateways: [shop/edge], port: 80}], "+toReviews+"}]}"),
		"a Sidecar's TLS in the place of the mesh's": policy("PeerAuthentication", "x", "{selector: {matchLabels: {version: v1}}, portLevelMtls: {8080: {mode: DISABLE}}}") +
			traffic("Sidecar", "x", "{workloadSelector: {labels: {app: reviews}}, ingress: [{port: {number: 8080, protocol: HTTPS, name: https}, defaultEndpoint: '127.0.0.1:80', tls: {mode: SIMPLE, serverCertificate: /c, privateKey: /k}}]}"),
		"two hosts of one address, served alike": traffic("ServiceEntry", "a", `{hosts: [a.example.com, b.example.com], addresses: [10.9.9.9], ports: [{number: 1, name: tcp, protocol: TCP}], resolution: STATIC, endpoints: [{address: 10.1.1.1}]}`) +
			traffic("DestinationRule", "both", "{host: '*.example.com', trafficPolicy: {connectionPool: {tcp: {maxConnections: 1}}}}"),
		"hosts of one address, of the caller's choice": traffic("ServiceEntry", "a", `{hosts: [a.example.com, b.example.com], addresses: [10.9.9.9], ports: [{number: 1, name: tcp, protocol: TCP}], resolution: NONE}`),
		"a listener for a port of one service":         traffic("Sidecar", "x", "{egress: [{port: {number: 5432, protocol: TCP, name: tcp}, hosts: [./*]}, {port: {number: 81, protocol: HTTP, name: http}, hosts: [~/*]}]}"),
		"mutual TLS to a gateway": document("v1", "Service", "edge", "shop", "{selector: {istio: edge}, ports: [{port: 80, name: http}]}") +
			traffic("WorkloadEntry", "edge-2", "{address: 10.0.0.5, serviceAccount: edge, labels: {istio: edge, security.istio.io/tlsMode: disabled}}") +
			traffic("DestinationRule", "edge", "{host: edge, trafficPolicy: {tls: {mode: ISTIO_MUTUAL}}}"),
		"plaintext to a gateway under STRICT": policy("PeerAuthentication", "default", "{selector: {matchLabels: {istio: edge}}, mtls: {mode: STRICT}}") +
			document("v1", "Service", "edge", "shop", "{selector: {istio: edge}, ports: [{port: 80, name: http}]}") +
			traffic("WorkloadEntry", "edge-2", "{address: 10.0.0.5, serviceAccount: edge, labels: {istio: edge}}") +
			traffic("DestinationRule", "edge", "{host: edge, trafficPolicy: {tls: {mode: DISABLE}}}"),
		"hosts of the workloads' own namespaces, for all":     document("networking.istio.io/v1", "Sidecar", "x", "istio-system", "{egress: [{hosts: [./reviews.shop.svc.cluster.local]}]}"),
		"a host that some of all see":                         traffic("ServiceEntry", "a", `{hosts: [a.example.com], exportTo: ["."], ports: [{number: 80, name: http, protocol: HTTP}], resolution: DNS}`) + document("networking.istio.io/v1", "Sidecar", "x", "istio-system", "{egress: [{hosts: [shop/a.example.com]}]}"),
		"a listener for the host of a rule":                   traffic("VirtualService", "x", "{hosts: [shop.internal], http: [{"+toReviews+"}]}") + traffic("Sidecar", "x", "{egress: [{hosts: [./shop.internal, ./reviews.shop.svc.cluster.local]}]}"),
		"the PROXY protocol for a workload without a sidecar": traffic("DestinationRule", "x", "{host: db, trafficPolicy: {proxyProtocol: {}}}"),
		"an alias, and a rule and a Sidecar that lead there":  alias + traffic("VirtualService", "v", "{hosts: [x.example], http: [{route: [{destination: {host: other}}]}]}") + traffic("Sidecar", "s", "{egress: [{hosts: [./other.shop.svc.cluster.local]}]}"),
		"an external name outside":                            document("v1", "Service", "other", "shop", "{type: ExternalName, externalName: a.example.com, ports: [{port: 80, name: http}]}"),
		"outlier detection of halves":                         traffic("WorkloadEntry", "reviews-2", "{address: 10.0.0.3, serviceAccount: reviews, labels: {app: reviews, version: v2, security.istio.io/tlsMode: istio}}") + traffic("DestinationRule", "x", "{host: reviews, trafficPolicy: {outlierDetection: {consecutive5xxErrors: 1, maxEjectionPercent: 50}}}"),
		"outlier detection of one":                            traffic("DestinationRule", "x", "{host: reviews, trafficPolicy: {outlierDetection: {consecutive5xxErrors: 1}}}"),
		"subsets in two rules": traffic("DestinationRule", "a", "{host: reviews, subsets: [{name: v1, labels: {version: v1}}]}") +
			traffic("DestinationRule", "b", "{host: reviews, trafficPolicy: {}}"),
		"permissive and plaintext": traffic("DestinationRule", "x", "{host: reviews, trafficPolicy: {tls: {mode: DISABLE}}}"),
		"another gateway's port":   traffic("WorkloadEntry", "other-1", "{address: 10.0.0.6, labels: {istio: other}}") + traffic("Gateway", "z", `{selector: {istio: other}, servers: [{port: {number: 80, name: tcp, protocol: TCP}, hosts: ["*"]}]}`),
		"accepted by the document": "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: x, namespace: shop, annotations: {pilotfish.dev/suppress: \"PF0101, pf0202\"}}\nspec: {hosts: [reviews], http: [{" + toReviews + "}, {" + toReviews + "}]}\n",
	} {
		t.Run(name, func(t *testing.T) {
			if p := problems(newTestMesh(t, nil, shop+documents)); p != "" {
				t.Errorf("problems of what is right:\n%s", p)
			}
		})
	}
}

func TestEveryCodeOfAProblemIsExplained(t *testing.T) {
	seen := map[config.Code]bool{}
	for _, c := range config.Codes() {
		if seen[c.Code] || c.Name == "" || c.Meaning == "" || c.Remedy == "" {
			t.Errorf("the code %s is twice in the list, or not explained", c.Code)
		}
		seen[c.Code] = true
	}
	if _, ok := config.ExplainCode("pf0101"); !ok {
		t.Error("a code in lower case is not known")
	}
}

func TestHTTPAuthorizerOnTCPPortsIsReported(t *testing.T) {
	provider := &meshconfig.MeshConfig{ExtensionProviders: []*meshconfig.MeshConfig_ExtensionProvider{{
		Name: "provider", Provider: &meshconfig.MeshConfig_ExtensionProvider_EnvoyExtAuthzHttp{
			EnvoyExtAuthzHttp: &meshconfig.MeshConfig_ExtensionProvider_EnvoyExternalAuthorizationHttpProvider{Service: "reviews.shop.svc.cluster.local", Port: 80},
		},
	}}}
	for rules, want := range map[string]bool{`{}`: true, `{to: [{operation: {ports: ["5432"]}}]}`: true, `{to: [{operation: {ports: ["8080"]}}]}`: false} {
		m := newTestMesh(t, provider, shop+policy("AuthorizationPolicy", "x", `{selector: {matchLabels: {app: db}}, action: CUSTOM, provider: {name: provider}, rules: [`+rules+`]}`))
		if got := strings.Contains(problems(m), "the provider checks only HTTP requests, but these ports do not use HTTP: db.shop.svc.cluster.local:5432: connections that match the rule are denied"); got != want {
			t.Errorf("%s: reported: %v, want %v:\n%s", rules, got, want, problems(m))
		}
	}
}
