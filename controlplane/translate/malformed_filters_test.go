package translate_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/controlplane/translate"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

const oddBase = `
apiVersion: v1
kind: Service
metadata: {name: a, namespace: default}
spec: {selector: {app: a}, ports: [{name: http, port: 80, targetPort: 8080}, {name: tcp, port: 3306}]}
---
apiVersion: v1
kind: Service
metadata: {name: edge, namespace: default}
spec: {selector: {istio: edge}, ports: [{name: http, port: 80, targetPort: 8080}, {name: https, port: 443, targetPort: 8443}]}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: a, namespace: default}
spec: {address: 127.203.40.1, serviceAccount: a, labels: {app: a, security.istio.io/tlsMode: istio}}
`

func oddRule(hosts, gateways, http string) string {
	return fmt.Sprintf("\napiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: odd, namespace: default}\nspec: {hosts: [%s], gateways: [%s], http: [%s]}\n", hosts, gateways, http)
}

func oddDocument(kind, spec string) string {
	group := "networking"
	if strings.HasSuffix(kind, "Authentication") || strings.HasSuffix(kind, "Policy") {
		group = "security"
	}
	return fmt.Sprintf("\napiVersion: %s.istio.io/v1\nkind: %s\nmetadata: {name: odd, namespace: default}\nspec: %s\n", group, kind, spec)
}

const toA = "route: [{destination: {host: a, port: {number: 80}}}]"

// oddDocuments are unusual, but valid. If Envoy rejected one resource for them, it would reject the whole response.
var oddDocuments = map[string]string{
	"header values with percent signs":   oddRule("a", "mesh", `{headers: {request: {set: {a: "100%", b: "%%", c: "%FOO%", d: "%REQ(x)%", e: "%REQ()%", f: "50% of %PROTOCOL%", g: "%START_TIME(%s)%", h: "%DYNAMIC_METADATA(a)%"}}}, `+toA+`}`),
	"header of all sorts":                oddRule("a", "mesh", `{headers: {request: {set: {Host: x, ":authority": y, a: ""}, remove: [host]}, response: {add: {content-length: "1"}}}, `+toA+`}`),
	"path without slash":                 oddRule("a", "mesh", `{match: [{uri: {exact: x}}, {uri: {prefix: x}}], `+toA+`}`),
	"empty matches":                      oddRule("a", "mesh", `{match: [{}], `+toA+`}`),
	"empty string match":                 oddRule("a", "mesh", `{match: [{uri: {}, headers: {a: {}}, queryParams: {b: {}}, method: {}}], `+toA+`}`),
	"regular expressions":                oddRule("a", "mesh", `{match: [{uri: {regex: ".*"}, ignoreUriCase: true, headers: {a: {regex: ".*"}}}], `+toA+`}`),
	"rewrite to nothing but a slash":     oddRule("a", "mesh", `{match: [{uri: {exact: /x}}, {uri: {regex: "/y.*"}}], rewrite: {uri: /}, `+toA+`}`),
	"rewrite without slash":              oddRule("a", "mesh", `{rewrite: {uri: x}, `+toA+`}`),
	"rewritten by expression":            oddRule("a", "mesh", `{rewrite: {uriRegexRewrite: {match: "(a)", rewrite: "\\9"}}, `+toA+`}`),
	"large weights":                      oddRule("a", "mesh", `{route: [{weight: 2147483647, destination: {host: a, port: {number: 80}}}, {weight: 1, destination: {host: b}}]}`),
	"retry on anything":                  oddRule("a", "mesh", `{retries: {attempts: 100000, perTryTimeout: 1h, retryOn: "503, 5xx , reset"}, timeout: 1s, `+toA+`}`),
	"redirect with a query":              oddRule("a", "mesh", `{match: [{uri: {regex: "/a"}}], redirect: {uri: "/x?y#z", authority: "h:80", port: 65535}}`),
	"redirect by prefix":                 oddRule("a", "mesh", `{match: [{uri: {prefix: /a}}], redirect: {uri: "%PREFIX()%/b", derivePort: FROM_REQUEST_PORT}}`),
	"redirect of everything":             oddRule("a", "mesh", `{redirect: {scheme: https}}`),
	"answers of all sorts":               oddRule("a", "mesh", `{match: [{uri: {prefix: /a}}], directResponse: {status: 200, body: {string: "%FOO% 100%"}}}, {directResponse: {status: 599}}`),
	"fault and delay of nothing":         oddRule("a", "mesh", `{fault: {delay: {fixedDelay: 1h, percentage: {value: 0}}, abort: {httpStatus: 200, percentage: {value: 0.00001}}}, `+toA+`}`),
	"cors with everything":               oddRule("a", "mesh", `{corsPolicy: {allowOrigins: [{exact: "*"}, {prefix: "h"}, {regex: ".*"}], maxAge: 0s}, `+toA+`}`),
	"cors with nothing":                  oddRule("a", "mesh", `{corsPolicy: {}, `+toA+`}`),
	"mirror to nowhere":                  oddRule("a", "mesh", `{mirror: {host: nowhere}, mirrorPercentage: {value: 0.00001}, `+toA+`}`),
	"hosts that overlap":                 oddRule(`a, a.default.svc.cluster.local, "*.default.svc.cluster.local", "*", A.example.com, a.example.com, 127.0.0.1`, "mesh", `{`+toA+`}`),
	"very long name":                     oddRule(strings.Repeat("abcdefgh.", 25)+"com", "mesh", `{name: `+strings.Repeat("x", 500)+`, `+toA+`}`),
	"hash of nothing":                    oddDocument("DestinationRule", `{host: a, trafficPolicy: {loadBalancer: {consistentHash: {httpCookie: {name: x, path: "/", ttl: 0s}}}}}`),
	"hash by source":                     oddDocument("DestinationRule", `{host: a, trafficPolicy: {loadBalancer: {consistentHash: {useSourceIp: false, maglev: {tableSize: 65537}}}}}`),
	"maglev of four":                     oddDocument("DestinationRule", `{host: a, trafficPolicy: {loadBalancer: {consistentHash: {useSourceIp: true, maglev: {tableSize: 4}}}}}`),
	"ring of four":                       oddDocument("DestinationRule", `{host: a, trafficPolicy: {loadBalancer: {consistentHash: {httpQueryParameterName: x, minimumRingSize: 4}}}}`),
	"warm-up":                            oddDocument("DestinationRule", `{host: a, trafficPolicy: {loadBalancer: {simple: LEAST_CONN, warmup: {duration: 1s, minimumPercent: 100, aggression: 1}}}}`),
	"passthrough of an address":          oddDocument("DestinationRule", `{host: a, trafficPolicy: {loadBalancer: {simple: PASSTHROUGH}, outlierDetection: {}}}`),
	"outliers at the limits":             oddDocument("DestinationRule", `{host: a, trafficPolicy: {outlierDetection: {consecutive5xxErrors: 0, consecutiveGatewayErrors: 4294967295, interval: 1ms, baseEjectionTime: 1ms, maxEjectionPercent: 100, minHealthPercent: 100, splitExternalLocalOriginErrors: true, consecutiveLocalOriginFailures: 0}}}`),
	"outliers with a long first time":    oddDocument("DestinationRule", `{host: a, trafficPolicy: {outlierDetection: {baseEjectionTime: 10h}}}`),
	"pool at the limits":                 oddDocument("DestinationRule", `{host: a, trafficPolicy: {connectionPool: {tcp: {maxConnections: 2147483647, connectTimeout: 1ms, maxConnectionDuration: 1ms, tcpKeepalive: {probes: 4294967295, time: 1s, interval: 1s}}, http: {maxRequestsPerConnection: 1, idleTimeout: 1ms, useClientProtocol: true, maxConcurrentStreams: 2147483647, http2KeepAlive: {interval: 1s, timeout: 1s}}}}}`),
	"http2 keepalive, half":              oddDocument("DestinationRule", `{host: a, trafficPolicy: {connectionPool: {http: {h2UpgradePolicy: UPGRADE, http2KeepAlive: {interval: 1s}}}}}`),
	"TLS without names":                  oddDocument("DestinationRule", `{host: a, trafficPolicy: {tls: {mode: SIMPLE, insecureSkipVerify: true}}}`),
	"mutual TLS without a certificate":   oddDocument("DestinationRule", `{host: a, trafficPolicy: {tls: {mode: MUTUAL, credentialName: x}}}`),
	"policy with values of all sorts":    oddDocument("AuthorizationPolicy", `{rules: [{from: [{source: {principals: ["*", "a*", "*a", "[("], namespaces: ["*", "[a*"], ipBlocks: ["0.0.0.0/0", "::/0", "::1", "10.0.0.1/8"]}}], to: [{operation: {paths: ["*", "/[(*", "/{**}", "/a/{*}", "/{*}/{**}"], hosts: ["*", "[a*", "*:80"], methods: ["*"]}}], when: [{key: "request.headers[:path]", values: ["[*"]}, {key: source.ip, notValues: ["::/0"]}]}]}`),
	"templates at the limits":            oddDocument("AuthorizationPolicy", `{action: DENY, rules: [{to: [{operation: {paths: ["/{**}/a", "/-._~%!$&'()+,;:@=/{*}", "/{**}/a/b/c", "/`+strings.Repeat("{*}/", 125)+`{**}/x", "/{*}/`+strings.Repeat("a", 253)+`"], notPaths: ["/a/{*}/%zz"]}}]}]}`),
	"policy with long values":            oddDocument("AuthorizationPolicy", `{rules: [{from: [{source: {principals: ["*/`+strings.Repeat("a", 2040)+`"], notNamespaces: [`+strings.Repeat("b", 2048)+`]}}], to: [{operation: {hosts: [`+strings.Repeat("a", 255)+`]}}], when: [{key: "request.headers[x]", values: [`+strings.Repeat("a", 2047)+`]}]}]}`),
	"large answer":                       oddRule("a", "mesh", `{directResponse: {status: 200, body: {string: `+strings.Repeat("x", config.MaxDirectResponse)+`}}}`),
	"header at the limit":                oddRule("a", "mesh", `{headers: {request: {set: {a: `+strings.Repeat("x", 16384)+`, b: "`+strings.Repeat("%", 8192)+`"}}}, `+toA+`}`),
	"line breaks where they may be":      oddRule("a", "mesh", `{name: "a\nb", match: [{name: "c\nd", statPrefix: "e\nf", uri: {exact: "/a\r\nb"}, headers: {a: {exact: "b\nc"}}, queryParams: {"d\ne": {exact: "f\ng"}}}, {uri: {prefix: "/a\r\nb"}}, {uri: {regex: "/a\nb"}}, {authority: {exact: "a\nb"}}], `+toA+`}`),
	"expressions at the limits":          oddRule("a", "mesh", `{match: [{uri: {regex: '/[^/]{1000}'}}, {uri: {regex: '.{1000}'}}, {uri: {regex: '\pL{5}'}}, {uri: {regex: '[äöü-ÿ]{400}'}}, {uri: {regex: '\\x{100}[\x{80}-\x{ff}]{1000}\377'}}, {uri: {regex: '[acegikmoqsuwyACEGIKMOQSUWY0]{1000}'}}, {uri: {regex: '(?i)[a-z]\p{Greek}.*'}}], `+toA+`}`),
	"ports of all sorts":                 oddDocument("PeerAuthentication", `{selector: {matchLabels: {app: a}}, mtls: {}, portLevelMtls: {8080: {mode: UNSET}, 1: {mode: STRICT}}}`),
	"ServiceEntry of addresses":          oddDocument("ServiceEntry", `{hosts: ["a.b.c", "*.b.c"], addresses: [10.0.0.0/8, 1.2.3.4, "::1"], resolution: NONE, ports: [{number: 80, name: http, protocol: HTTP}, {number: 443, name: tls, protocol: TLS}, {number: 53, name: udp, protocol: UDP}]}`),
	"ServiceEntry of names":              oddDocument("ServiceEntry", `{hosts: ["a.b.c"], resolution: DNS_ROUND_ROBIN, ports: [{number: 80, name: http, protocol: HTTP}], endpoints: [{address: a.example.com, weight: 4294967295}]}`),
	"ServiceEntry of an IPv6 name":       oddDocument("ServiceEntry", `{hosts: ["a.b.c"], resolution: DNS, ports: [{number: 80, name: http, protocol: HTTP}], endpoints: [{address: "::1"}, {address: b.example.com, locality: a/b/c}]}`),
	"ServiceEntry of a socket":           oddDocument("ServiceEntry", `{hosts: ["a.b.c"], resolution: STATIC, ports: [{number: 80, name: http, protocol: HTTP}], endpoints: [{address: "unix:///tmp/x.sock"}, {address: "10.0.0.1", weight: 4294967295}, {address: "10.0.0.2", weight: 4294967295}]}`),
	"ServiceEntry twice":                 oddDocument("ServiceEntry", `{hosts: [a.default.svc.cluster.local, A.default], resolution: STATIC, ports: [{number: 80, name: http, protocol: HTTP}], endpoints: [{address: 10.0.0.1}, {address: 10.0.0.1}]}`),
	"Gateway with everything twice":      oddDocument("Gateway", `{selector: {istio: edge}, servers: [{port: {number: 80, name: a, protocol: HTTP}, hosts: ["*", "*.com", A.com, a.com, "./b.com", "*/b.com"]}, {port: {number: 80, name: b, protocol: HTTP}, hosts: ["*"]}, {port: {number: 80, name: c, protocol: TCP}, hosts: ["*"]}]}`) + "---" + oddRule(`"*", "*.com", a.com, A.com`, "odd", `{`+toA+`}`),
	"Gateway with one name of two certs": oddDocument("Gateway", `{selector: {istio: edge}, servers: [{port: {number: 443, name: a, protocol: HTTPS}, hosts: [a.com, "*.com"], tls: {mode: SIMPLE, serverCertificate: /a, privateKey: /b}}, {port: {number: 443, name: b, protocol: HTTPS}, hosts: [a.com, "*"], tls: {mode: OPTIONAL_MUTUAL, serverCertificate: /c, privateKey: /d, caCertificates: /e}}, {port: {number: 443, name: c, protocol: HTTPS}, hosts: ["*"], tls: {mode: ISTIO_MUTUAL}}, {port: {number: 443, name: d, protocol: TLS}, hosts: [a.com, b.com], tls: {mode: PASSTHROUGH}}, {port: {number: 443, name: e, protocol: HTTP}, hosts: ["*"]}]}`) + "---" + oddDocument("VirtualService", `{hosts: [a.com, b.com], gateways: [odd], tls: [{match: [{sniHosts: [a.com, b.com]}, {sniHosts: [b.com]}], route: [{destination: {host: a, port: {number: 3306}}}]}]}`),
	"Gateway with the older TLS":         oddDocument("Gateway", `{selector: {istio: edge}, servers: [{port: {number: 443, name: a, protocol: HTTPS}, hosts: [a.com], tls: {mode: SIMPLE, serverCertificate: /a, privateKey: /b, minProtocolVersion: TLSV1_0, maxProtocolVersion: TLSV1_1, cipherSuites: [ECDHE-RSA-AES256-GCM-SHA384]}}]}`),
	"Gateway at an address":              oddDocument("Gateway", `{selector: {istio: edge}, servers: [{bind: 127.203.42.9, port: {number: 80, name: a, protocol: HTTP2}, hosts: ["*"]}]}`),
}

// TestEnvoyAcceptsUnusualDocuments: Envoy accepts all resources of documents that pass validation.
func TestEnvoyAcceptsUnusualDocuments(t *testing.T) {
	for _, version := range []string{testenv.EnvoyVersion, testenv.OldEnvoyVersion} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			plane := newTestControlPlane(t)
			plane.push(pushState{snap: newTestMesh(t, nil).snap}, snapshot.Change{Full: true})
			e := plane.startEnvoy(version, "sidecar taster.default 127.203.251.1", "spiffe://cluster.local/ns/default/sa/taster")
			plane.inSync(1)
			for _, name := range slices.Sorted(maps.Keys(oddDocuments)) {
				document := oddDocuments[name]
				if version == testenv.OldEnvoyVersion {
					document = strings.ReplaceAll(document, "127.203.42.9", "127.204.42.9")
				}
				if complaint := e.checkDocument(plane, version, document); complaint != "" {
					t.Errorf("%s: %s", name, complaint)
				}
			}
		})
	}
}

// checkDocument sends Envoy the resources of each proxy in a mesh with the document. It returns Envoy's error message,
// or "".
func (e *envoy) checkDocument(p *testControlPlane, version, document string) (complaint string) {
	e.t.Helper()
	if _, problems := config.Parse("odd.yaml", []byte(document)); refused(problems) {
		return fmt.Sprintf("validation refuses the document; move it to the tests of validation: %v", problems)
	}
	return e.checkMesh(p, version, newTestMesh(e.t, nil, oddBase, document))
}

// checkMesh is like checkDocument, for an existing mesh.
func (e *envoy) checkMesh(p *testControlPlane, version string, m *testMesh) (complaint string) {
	e.t.Helper()
	for _, description := range oddProxies {
		if complaint := e.checkProxy(p, m, onOtherNetwork(proxy(e.t, description), version)); complaint != "" {
			return complaint
		}
	}
	return ""
}

// checkProxy is like checkMesh, for one proxy.
func (e *envoy) checkProxy(p *testControlPlane, m *testMesh, as *translate.Proxy) (complaint string) {
	e.t.Helper()
	p.push(pushState{snap: m.snap, as: as}, snapshot.Change{Full: true})
	eventually(e.t, func() (pending string) {
		if complaint, pending = p.state(1); complaint == "" && pending == "" {
			complaint, pending = e.state()
		}
		if complaint != "" {
			return ""
		}
		return pending
	})
	return complaint
}

var oddProxies = []string{
	"sidecar a.default 127.203.40.1 app=a UPSTREAM_LISTENERS=a:3306=127.203.40.16:3306,a:80=127.203.40.17:80,a.b.c:80=127.203.40.18:80",
	"router edge.default 127.203.42.1 istio=edge",
}

func refused(problems []config.Problem) bool {
	for _, p := range problems {
		if p.Severity == config.Error {
			return true
		}
	}
	return false
}
