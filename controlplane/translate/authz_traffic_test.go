package translate_test

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	authv3 "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protojson"
	meshconfig "istio.io/api/mesh/v1alpha1"
)

// checker is an external authorizer that allows requests with a password.
type checker struct {
	authv3.UnimplementedAuthorizationServer
}

func (checker) Check(_ context.Context, req *authv3.CheckRequest) (*authv3.CheckResponse, error) {
	request := req.GetAttributes().GetRequest().GetHttp()
	source := req.GetAttributes().GetSource()
	if request.GetHeaders()["x-password"] == "sesame" || request.GetMethod() == "" && strings.Contains(source.GetPrincipal(), "front") {
		return &authv3.CheckResponse{Status: &rpcstatus.Status{}, HttpResponse: &authv3.CheckResponse_OkResponse{OkResponse: &authv3.OkHttpResponse{
			Headers: []*corev3.HeaderValueOption{{Header: &corev3.HeaderValue{Key: "x-checked", Value: "grpc"}}},
		}}}, nil
	}
	return &authv3.CheckResponse{Status: &rpcstatus.Status{Code: 7}, HttpResponse: &authv3.CheckResponse_DeniedResponse{
		DeniedResponse: &authv3.DeniedHttpResponse{Body: "no password"},
	}}, nil
}

const authorizers = `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: authorizers, namespace: back}
spec:
  hosts: [authz.example]
  location: MESH_EXTERNAL
  resolution: STATIC
  ports: [{number: 9000, name: grpc, protocol: GRPC}, {number: 8000, name: http, protocol: HTTP}, {number: 9001, name: grpc-gone, protocol: GRPC}]
  endpoints: [{address: NET.3.1}]
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: default, namespace: back}
spec: {egress: [{hosts: ["./server.back.svc.cluster.local"]}]}
`

const authorizerProviders = `{"extensionProviders": [
 {"name": "over-grpc", "envoyExtAuthzGrpc": {"service": "authz.example", "port": 9000, "timeout": "2s"}},
 {"name": "over-http", "envoyExtAuthzHttp": {"service": "back/authz.example", "port": 8000, "timeout": "2s", "pathPrefix": "/check",
   "includeRequestHeadersInCheck": ["x-pass*"], "includeAdditionalHeadersInCheck": {"x-asked-by": "mesh"},
   "headersToUpstreamOnAllow": ["x-checked"], "headersToDownstreamOnDeny": ["x-why"], "headersToDownstreamOnAllow": ["x-fine"],
   "includeRequestBodyInCheck": {"maxRequestBytes": 100, "allowPartialMessage": true}}},
 {"name": "gone", "envoyExtAuthzGrpc": {"service": "authz.example", "port": 9001, "timeout": "0.5s", "statusOnError": "503"}},
 {"name": "gone-open", "envoyExtAuthzGrpc": {"service": "authz.example", "port": 9001, "timeout": "0.5s", "failOpen": true}},
 {"name": "nowhere", "envoyExtAuthzGrpc": {"service": "nowhere.example", "port": 9001}}]}`

func (w *testEnv) setMesh(text string) {
	w.t.Helper()
	w.mesh = &meshconfig.MeshConfig{}
	if err := protojson.Unmarshal([]byte(text), w.mesh); err != nil {
		w.t.Fatal(err)
	}
	w.pushed(w.rebuild(nil))
}

func custom(name, provider, rules string) string {
	return fmt.Sprintf(`
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: %s, namespace: back}
spec: {action: CUSTOM, provider: {name: %s}, rules: [%s]}
---`, name, provider, rules)
}

// TestExternalAuthorizers: Envoy sends the authorizer exactly those requests that the rules match.
func TestExternalAuthorizers(t *testing.T) {
	forEachEnvoyVersion(t, 173003, func(t *testing.T, version string, network int) {
		w := newTestEnv(t, version, network, pair, authorizers)
		w.serveApp("NET.2.2:8080", "server", func(rw http.ResponseWriter, r *http.Request) {
			fmt.Fprintf(rw, "served checked=%s", r.Header.Get("X-Checked"))
		})
		g := grpc.NewServer()
		authv3.RegisterAuthorizationServer(g, checker{})
		go func() { _ = g.Serve(w.listen("NET.3.1:9000")) }()
		t.Cleanup(g.Stop)
		w.serveApp("NET.3.1:8000", "", func(rw http.ResponseWriter, r *http.Request) {
			if r.Header.Get("X-Password") != "sesame" || r.Header.Get("X-Asked-By") != "mesh" || !strings.HasPrefix(r.URL.Path, "/check/http") || r.Header.Get("X-Other") != "" {
				rw.Header().Set("X-Why", "because")
				rw.WriteHeader(http.StatusForbidden)
				return
			}
			rw.Header().Set("X-Checked", "http")
		})
		w.proxy(serverNode, "back/server")
		ask := func(path string, headers ...string) func() httpResult {
			return func() httpResult { return w.request("", "http://NET.2.1:8080"+path, headers...) }
		}
		w.expect(200, "served", ask("/grpc"))
		// This connection stays open during the test.
		open := w.dialHTTP("NET.2.1:8080")
		defer open.Close()
		if code := open.get("/grpc"); code != 200 {
			t.Fatalf("status without policies: %d, want 200", code)
		}
		policies := custom("one", "over-grpc", `{to: [{operation: {paths: [/grpc*]}}]}`) + custom("two", "over-http", `{to: [{operation: {paths: [/http*]}}]}`) +
			custom("three", "gone", `{to: [{operation: {paths: [/gone]}}]}`) + custom("four", "gone-open", `{to: [{operation: {paths: [/open]}}]}`) +
			custom("five", "nowhere", `{to: [{operation: {paths: [/nowhere]}}]}`) + custom("six", "unknown", `{to: [{operation: {paths: [/unknown]}}]}`)
		w.change(policies)
		for _, path := range []string{"/grpc", "/http", "/gone", "/open", "/nowhere", "/unknown"} {
			w.expect(403, "RBAC", ask(path, "X-Password=sesame")) // the authorizer does not exist
		}
		w.expect(200, "served", ask("/other"))
		w.setMesh(authorizerProviders)
		w.expect(403, "no password", ask("/grpc"))
		w.expect(200, "checked=grpc", ask("/grpc", "X-Password=sesame"))
		w.expect(403, "", ask("/http"))
		w.expect(200, "checked=http", ask("/http", "X-Password=sesame", "X-Other=secret"))
		w.expect(503, "", ask("/gone", "X-Password=sesame"))
		w.expect(200, "served", ask("/open"))
		w.expect(403, "RBAC", ask("/nowhere", "X-Password=sesame"))
		w.expect(403, "RBAC", ask("/unknown", "X-Password=sesame"))
		w.expect(200, "served checked=", ask("/other"))
		// The connection was opened before the provider existed, so it has no filter for it. Requests that require a
		// check are denied, others pass.
		if code := open.get("/grpc"); code != 403 && code != 0 {
			t.Errorf("status on a connection that was opened before the authorizer existed: %d", code)
		}
		// A new policy applies to an open connection.
		fresh := w.dialHTTP("NET.2.1:8080")
		defer fresh.Close()
		if code := fresh.get("/other"); code != 200 {
			t.Errorf("/other: %d", code)
		}
		w.change(custom("seven", "over-grpc", `{to: [{operation: {paths: [/other]}}]}`))
		w.expect(403, "no password", ask("/other"))
		if code := fresh.get("/other"); code != 403 {
			t.Errorf("status of /other on an open connection: %d", code)
		}
	})
}

// TestPolicyMatchesTrustDomainOfCaller covers the condition source.trustDomain.
func TestPolicyMatchesTrustDomainOfCaller(t *testing.T) {
	forEachEnvoyVersion(t, 173013, func(t *testing.T, version string, network int) {
		w := newTestEnv(t, version, network, pair, `
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: domains, namespace: back}
spec:
  action: DENY
  rules:
  - {to: [{operation: {paths: [/own]}}], when: [{key: source.trustDomain, values: [other.example, "cluster.*"]}]}
  - {to: [{operation: {paths: [/other]}}], when: [{key: source.trustDomain, values: [other.example, cluster]}]}
  - {to: [{operation: {paths: [/not-own]}}], when: [{key: source.trustDomain, notValues: [cluster.local]}]}
`)
		w.serveApp("NET.2.2:8080", "server", nil)
		w.proxy(clientNode, "front/client")
		w.proxy(serverNode, "back/server")
		for path, want := range map[string]int{"/own": 403, "/other": 200, "/not-own": 200} {
			w.expect(want, "", func() httpResult { return w.request(clientPort, "http://server.back"+path) })
		}
	})
}

// persistentConn is an HTTP/1.1 connection for several requests.
type persistentConn struct {
	net.Conn
	r *bufio.Reader
}

func (w *testEnv) dialHTTP(address string) *persistentConn {
	w.t.Helper()
	c, err := net.DialTimeout("tcp", w.expandNetwork(address), 5*time.Second)
	if err != nil {
		w.t.Fatal(err)
	}
	return &persistentConn{c, bufio.NewReader(c)}
}

// get returns the status code, or 0 if the connection is closed.
func (k *persistentConn) get(path string) int {
	_ = k.SetDeadline(time.Now().Add(5 * time.Second))
	fmt.Fprintf(k, "GET %s HTTP/1.1\r\nHost: kept\r\n\r\n", path)
	resp, err := http.ReadResponse(k.r, nil)
	if err != nil {
		return 0
	}
	defer resp.Body.Close()
	if _, err := bufio.NewReader(resp.Body).WriteTo(discardWriter{}); err != nil {
		return 0
	}
	return resp.StatusCode
}

type discardWriter struct{}

func (discardWriter) Write(p []byte) (int, error) { return len(p), nil }

// TestDryRunAndAuditPolicies covers HTTP requests and TCP connections.
func TestDryRunAndAuditPolicies(t *testing.T) {
	forEachEnvoyVersion(t, 173005, func(t *testing.T, version string, network int) {
		w := newTestEnv(t, version, network, pair, `
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: tried, namespace: back, annotations: {istio.io/dry-run: "true"}}
spec: {action: DENY, rules: [{to: [{operation: {paths: [/tried]}}]}]}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: allow-tried, namespace: back, annotations: {istio.io/dry-run: "true"}}
spec: {rules: [{to: [{operation: {paths: [/never]}}]}]}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: watched, namespace: back}
spec: {action: AUDIT, rules: [{to: [{operation: {paths: [/watched], ports: ["8080"]}}]}, {from: [{source: {principals: ["*"]}}], to: [{operation: {ports: ["3306"]}}]}]}
`)
		w.serveApp("NET.2.2:8080", "server", nil)
		w.tcp("NET.2.2:3306", "hello\n")
		w.proxy(clientNode, "front/client")
		server := w.proxy(serverNode, "back/server")
		w.expect(200, "", func() httpResult { return w.request(clientPort, "http://server.back/tried") })
		w.expect(200, "", func() httpResult { return w.request(clientPort, "http://server.back/watched") })
		w.expect(200, "", func() httpResult { return w.request(clientPort, "http://server.back/unwatched") })
		w.expect(200, "hello", func() httpResult { return w.firstLine("NET.1.16:3306") })
		eventually(t, func() string {
			stats := server.get("/stats?filter=dry_run&usedonly")
			for _, want := range []string{"http.inbound_8080;.rbac.istio_dry_run_deny_.shadow_denied: 1\n", "http.inbound_8080;.rbac.istio_dry_run_allow_.shadow_denied: 3\n"} {
				if !strings.Contains(stats, want) {
					return want + ", which should be in the log, is missing in " + stats
				}
			}
			log := server.log.String()
			for _, want := range []string{`"audit_policy":"ns[back]-policy[watched]-rule[0]"`, `"audit_policy":"ns[back]-policy[watched]-rule[1]"`, `"source_principal":"spiffe://cluster.local/ns/front/sa/client"`} {
				if !strings.Contains(log, want) {
					return want + " is not in the log"
				}
			}
			if strings.Contains(log, "/unwatched") {
				t.Error("the log contains a request that no policy audits")
			}
			return ""
		})
	})
}

// tcp starts a server that sends first.
func (w *testEnv) tcp(address, greeting string) {
	w.t.Helper()
	l := w.listen(address)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = c.Write([]byte(greeting))
				_ = c.SetReadDeadline(time.Now().Add(5 * time.Second))
				_, _ = bufio.NewReader(c).ReadByte()
			}()
		}
	}()
}
