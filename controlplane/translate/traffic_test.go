package translate_test

import (
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

const pair = `
apiVersion: v1
kind: Service
metadata: {name: server, namespace: back}
spec: {selector: {app: server}, ports: [{name: http, port: 80, targetPort: 8080}, {name: tcp, port: 3306}]}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: server-1, namespace: back}
spec: {address: NET.2.1, serviceAccount: server, labels: {app: server, version: v1, security.istio.io/tlsMode: istio}}
`

const (
	clientNode = "sidecar client.front NET.1.1 app=client UPSTREAM_LISTENERS=server.back.svc.cluster.local:3306=NET.1.16:3306"
	serverNode = "sidecar server-1.back NET.2.1 app=server version=v1"
	clientPort = "NET.1.1:15080"
	serverURL  = "http://server.back/x"
)

// TestSidecarsUseMutualTLSAndHTTP2 sends requests by host name through two sidecars, with the default configuration.
func TestSidecarsUseMutualTLSAndHTTP2(t *testing.T) {
	forEachEnvoyVersion(t, 206, func(t *testing.T, version string, network int) {
		w := newTestEnv(t, version, network, pair)
		w.serveApp("NET.2.2:8080", "server", nil)
		client, server := w.proxy(clientNode, "front/client"), w.proxy(serverNode, "back/server")
		call := func() httpResult { return w.request(clientPort, serverURL) }

		// The workload receives HTTP/1.1, because its port declares that, and the client's verified identity.
		w.expect(200, "server HTTP/1.1 /x host=server.back xfcc=By=spiffe://cluster.local/ns/back/sa/server", call)
		w.expect(200, "URI=spiffe://cluster.local/ns/front/sa/client", call)
		if s := client.get("/stats?filter=outbound.80.*server.*upstream_cx_http2_total"); strings.Contains(s, ": 0") || !strings.Contains(s, ":") {
			t.Errorf("the sidecars do not use HTTP/2 between each other: %s", s)
		}
		if s := server.get("/stats?filter=downstream_rq_http2_total"); !strings.Contains(s, "inbound_8080") {
			t.Errorf("the server's sidecar has no statistics with the expected name: %s", s)
		}

		// PERMISSIVE: plaintext works, without a client identity. STRICT: plaintext fails.
		plain := func() httpResult {
			return w.request("", "http://NET.2.1:8080/x", "X-Forwarded-Client-Cert=URI=spiffe://cluster.local/ns/front/sa/client")
		}
		w.expect(200, "xfcc=", plain)
		if a := plain(); strings.Contains(a.body, "spiffe://") {
			t.Errorf("the sidecar passed on the identity header of a plaintext client: %v", a)
		}
		w.change(strictEverywhere)
		w.expect(0, "", plain)
		w.expect(200, "URI=spiffe://cluster.local/ns/front/sa/client", call)

		// DISABLE: plaintext and HTTP/1.1 on both sides.
		w.change(strings.Replace(strictEverywhere, "STRICT", "DISABLE", 1))
		w.expect(200, "xfcc=", plain)
		eventually(t, func() string {
			if a := call(); a.code != 200 || strings.Contains(a.body, "spiffe") {
				return a.String()
			}
			return ""
		})
	})
}

const strictEverywhere = `
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: istio-system}
spec: {mtls: {mode: STRICT}}
`

func TestServerWithOtherIdentityIsRejected(t *testing.T) {
	forEachEnvoyVersion(t, 208, func(t *testing.T, version string, network int) {
		w := newTestEnv(t, version, network, pair)
		w.serveApp("NET.2.2:8080", "impostor", nil)
		w.proxy(clientNode, "front/client")
		w.proxy(serverNode, "back/impostor")
		w.expect(503, "", func() httpResult { return w.request(clientPort, serverURL) })
	})
}

func TestAuthorizationPoliciesAllowAndDeny(t *testing.T) {
	forEachEnvoyVersion(t, 210, func(t *testing.T, version string, network int) {
		w := newTestEnv(t, version, network, pair, strictEverywhere, `
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: nobody, namespace: back}
spec: {}
`)
		w.serveApp("NET.2.2:8080", "server", nil)
		w.proxy(clientNode, "front/client")
		w.proxy(serverNode, "back/server")
		call := func(path string) func() httpResult {
			return func() httpResult { return w.request(clientPort, "http://server.back"+path) }
		}
		w.expect(403, "RBAC", call("/x"))
		w.change(`
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: some, namespace: back}
spec:
  selector: {matchLabels: {app: server}}
  rules:
  - from: [{source: {principals: [cluster.local/ns/front/sa/client], namespaces: ["front*"]}}]
    to: [{operation: {methods: [GET], paths: [/x*, "/t/{*}/u"], hosts: [server.back], ports: ["8080"]}}]
`)
		w.expect(200, "server", call("/x/y"))
		w.expect(200, "server", call("/t/1/u"))
		w.expect(403, "RBAC", call("/y"))
		w.expect(403, "RBAC", call("/x/../y"))
		w.change(`
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: deny, namespace: istio-system}
spec: {action: DENY, rules: [{to: [{operation: {paths: ["*/secret"]}}]}]}
`)
		w.expect(403, "RBAC", call("/x/secret"))
		w.expect(200, "server", call("/x/y"))
	})
}

func TestRoutingRules(t *testing.T) {
	forEachEnvoyVersion(t, 212, func(t *testing.T, version string, network int) {
		w := newTestEnv(t, version, network, pair, `
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: server-2, namespace: back}
spec: {address: NET.3.1, serviceAccount: server, labels: {app: server, version: v2, security.istio.io/tlsMode: istio}}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: server, namespace: back}
spec: {host: server, subsets: [{name: v1, labels: {version: v1}}, {name: v2, labels: {version: v2}}]}
`, routingRules)
		tries := make(chan struct{}, 100)
		w.serveApp("NET.2.2:8080", "v1", func(rw http.ResponseWriter, r *http.Request) {
			switch r.URL.Path {
			case "/slow":
				select {
				case <-r.Context().Done():
				case <-time.After(5 * time.Second):
				}
			case "/flaky":
				tries <- struct{}{}
				if len(tries)%3 != 0 {
					rw.WriteHeader(503)
				}
			}
			fmt.Fprintf(rw, "v1 %s %s", r.URL.Path, r.Header.Get("X-Added"))
		})
		w.serveApp("NET.3.2:8080", "v2", nil)
		w.proxy(clientNode, "front/client")
		w.proxy(serverNode, "back/server")
		w.proxy("sidecar server-2.back NET.3.1 app=server version=v2", "back/server")
		call := func(path string, headers ...string) func() httpResult {
			return func() httpResult { return w.request(clientPort, "http://server.back"+path, headers...) }
		}
		w.expect(200, "v2", call("/", "x-user=ada"))
		w.expect(200, "v1 / yes", call("/", "x-user=bob"))
		w.expect(200, "v2 HTTP/1.1 /new/thing", call("/old/thing"))
		w.expect(302, "http://elsewhere.example/there", call("/moved"))
		w.expect(418, "teapot", call("/direct"))
		w.expect(555, "fault", call("/fault"))
		w.expect(504, "timeout", call("/slow"))
		w.expect(200, "v1 /flaky", call("/flaky"))

		// A changed document takes effect without a restart.
		w.change(strings.Replace(routingRules, "{exact: ada}", "{exact: bob}", 1))
		w.expect(200, "v2", call("/", "x-user=bob"))
		w.remove(config.Key{Kind: config.VirtualService, Namespace: "back", Name: "server"})
		w.expect(200, "v1 /fault", call("/fault"))
	})
}

const routingRules = `
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: server, namespace: back}
spec:
  hosts: [server]
  http:
  - match: [{headers: {x-user: {exact: ada}}}]
    route: [{destination: {host: server, subset: v2}}]
  - match: [{uri: {prefix: /old/}}]
    rewrite: {uri: /new/}
    route: [{destination: {host: server, subset: v2}}]
  - match: [{uri: {prefix: /moved}}]
    redirect: {uri: /there, authority: elsewhere.example, redirectCode: 302}
  - match: [{uri: {prefix: /direct}}]
    directResponse: {status: 418, body: {string: teapot}}
  - match: [{uri: {prefix: /fault}}]
    fault: {abort: {httpStatus: 555, percentage: {value: 100}}}
    route: [{destination: {host: server, subset: v1}}]
  - match: [{uri: {prefix: /slow}}]
    timeout: 0.2s
    route: [{destination: {host: server, subset: v1}}]
  - match: [{uri: {prefix: /flaky}}]
    retries: {attempts: 5, retryOn: 5xx}
    route: [{destination: {host: server, subset: v1}}]
  - headers: {request: {set: {x-added: "yes"}}}
    route: [{destination: {host: server, subset: v1}, weight: 100}, {destination: {host: server, subset: v2}, weight: 0}]
`

// TestHostsWithTrailingDot: a host name with a trailing dot bypasses neither mutual TLS nor policies.
func TestHostsWithTrailingDot(t *testing.T) {
	forEachEnvoyVersion(t, 226, func(t *testing.T, version string, network int) {
		w := newTestEnv(t, version, network, pair)
		w.serveApp("NET.2.2:8080", "server", nil)
		w.proxy(clientNode, "front/client")
		w.proxy(serverNode, "back/server")
		w.expect(200, "host=server.back.svc.cluster.local xfcc=By=spiffe://cluster.local/ns/back/sa/server", func() httpResult {
			return w.request(clientPort, "http://server.back.svc.cluster.local./x")
		})
		plain := func() httpResult { return w.request("", "http://NET.2.1:8080/x", "Host=server.back.:80") }
		w.expect(200, "server", plain)
		w.change(`
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: not-by-this-name, namespace: back}
spec: {action: DENY, rules: [{to: [{operation: {hosts: [server.back, "server.back:*"]}}]}]}
`)
		w.expect(403, "RBAC", plain)
	})
}

func TestUnknownHosts(t *testing.T) {
	forEachEnvoyVersion(t, 214, func(t *testing.T, version string, network int) {
		w := newTestEnv(t, version, network, pair)
		w.serveApp("NET.9.9:8888", "outside", nil)
		w.proxy(clientNode, "front/client")
		out := func() httpResult { return w.request(clientPort, "http://NET.9.9:8888/x") }
		w.expect(200, "outside HTTP/1.1 /x", out)
		w.change(`
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: closed, namespace: front}
spec: {outboundTrafficPolicy: {mode: REGISTRY_ONLY}, egress: [{hosts: ["*/*"]}]}
`)
		host := w.expandNetwork("NET.9.9:8888")
		if version == testenv.OldEnvoyVersion {
			host = "of this name" // this Envoy version ignores the format that contains the host
		}
		w.expect(502, "this workload sees no service "+host, out)
		// This service exists, but has no endpoint.
		w.expect(503, "", func() httpResult { return w.request(clientPort, serverURL) })
	})
}

func TestGatewayIngress(t *testing.T) {
	forEachEnvoyVersion(t, 216, func(t *testing.T, version string, network int) {
		w := newTestEnv(t, version, network, pair, strictEverywhere, `
apiVersion: v1
kind: Service
metadata: {name: ingress, namespace: edge}
spec: {selector: {istio: ingress}, ports: [{name: http, port: 80, targetPort: 8080}, {name: https, port: 443, targetPort: 8443}]}
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: edge, namespace: edge}
spec:
  selector: {istio: ingress}
  servers:
  - {port: {number: 80, name: http, protocol: HTTP}, hosts: [shop.example.com]}
  - {port: {number: 80, name: redirect, protocol: HTTP}, hosts: [secure.example.com], tls: {httpsRedirect: true}}
  - port: {number: 443, name: https, protocol: HTTPS}
    hosts: [shop.example.com]
    tls: {mode: SIMPLE, serverCertificate: /c/cert.pem, privateKey: /c/key.pem}
  - port: {number: 443, name: mutual, protocol: HTTPS}
    hosts: [mutual.example.com]
    tls: {mode: MUTUAL, serverCertificate: /c/cert.pem, privateKey: /c/key.pem, caCertificates: /c/ca.pem}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: shop, namespace: back}
spec:
  hosts: [shop.example.com, mutual.example.com]
  gateways: [edge/edge]
  http: [{route: [{destination: {host: server, port: {number: 80}}}]}]
`)
		w.serveApp("NET.2.2:8080", "server", nil)
		w.proxy("router ingress.edge NET.1.1 istio=ingress PUBLISH=8080=NET.1.9:18080", "edge/ingress")
		w.proxy(serverNode, "back/server")
		w.expect(200, "URI=spiffe://cluster.local/ns/edge/sa/ingress", func() httpResult {
			return w.request("", "http://NET.1.9:18080/x", "Host=shop.example.com:18080")
		})
		w.expect(404, "", func() httpResult { return w.request("", "http://NET.1.9:18080/x", "Host=other.example.com") })
		w.expect(301, "https://secure.example.com/x", func() httpResult { return w.request("", "http://NET.1.9:18080/x", "Host=secure.example.com") })
		w.expect(200, "server", func() httpResult { return w.https("shop.example.com", nil) })
		w.expect(0, "", func() httpResult { return w.https("mutual.example.com", nil) })
		cert, key := w.plane.ca.issue("spiffe://anyone/x")
		pairOf, err := tls.X509KeyPair(cert, key)
		if err != nil {
			t.Fatal(err)
		}
		w.expect(200, "server", func() httpResult { return w.https("mutual.example.com", []tls.Certificate{pairOf}) })
	})
}

// TestServerFirstConnections covers protocols such as MySQL, where the server sends first. A listener that waits for
// the client's first bytes would hang.
func TestServerFirstConnections(t *testing.T) {
	forEachEnvoyVersion(t, 218, func(t *testing.T, version string, network int) {
		w := newTestEnv(t, version, network, pair)
		l := w.listen("NET.2.2:3306")
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = io.WriteString(c, "greetings\n")
				_ = c.Close()
			}
		}()
		w.proxy(clientNode, "front/client")
		w.proxy(serverNode, "back/server")
		for _, mode := range []string{"PERMISSIVE", "STRICT", "DISABLE"} {
			w.change(strings.Replace(strictEverywhere, "STRICT", mode, 1))
			w.expect(200, "greetings", func() httpResult { return w.firstLine("NET.1.16:3306") })
		}
		w.change(strings.Replace(strictEverywhere, "STRICT", "PERMISSIVE", 1))
		w.expect(200, "greetings", func() httpResult { return w.firstLine("NET.2.1:3306") })
		w.change(`
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: deny, namespace: back}
spec: {action: DENY, rules: [{from: [{source: {principals: ["*/client"]}}], to: [{operation: {methods: [GET]}}]}]}
`)
		w.expect(200, "greetings", func() httpResult { return w.firstLine("NET.2.1:3306") })
	})
}

// TestUpgradedConnectionsPassBothSidecars: the connection is a WebSocket, which uses HTTP/2 between the sidecars.
func TestUpgradedConnectionsPassBothSidecars(t *testing.T) {
	forEachEnvoyVersion(t, 220, func(t *testing.T, version string, network int) {
		w := newTestEnv(t, version, network, pair)
		w.serveApp("NET.2.2:8080", "server", func(rw http.ResponseWriter, r *http.Request) {
			conn, buffer, err := rw.(http.Hijacker).Hijack()
			if err != nil {
				return
			}
			defer conn.Close()
			_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
			line, _ := buffer.ReadString('\n')
			_, _ = io.WriteString(conn, "echo "+line)
		})
		w.proxy(clientNode, "front/client")
		w.proxy(serverNode, "back/server")
		w.expect(101, "echo hello", func() httpResult { return w.upgrade("server.back", "hello\n") })
	})
}
