package api

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// edgeAddress is the address of a port of the gateway.
func (w *testMesh) edgeAddress(port int) string {
	return net.JoinHostPort(w.instance("gateway").Proxy.String(), fmt.Sprint(port))
}

// getAtEdge requests a host from the gateway, as a client outside the mesh. Ports from 8443 use TLS.
func (w *testMesh) getAtEdge(port int, host string, certificates ...tls.Certificate) (reply, error) {
	settings := &tls.Config{ServerName: host, RootCAs: w.ca.Pool()}
	if len(certificates) > 0 { // sent even if the gateway does not list its issuer
		settings.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &certificates[0], nil }
	}
	dial := func(ctx context.Context, network, _ string) (net.Conn, error) {
		return w.Dial(ctx, "", network, w.edgeAddress(port))
	}
	c := &http.Client{
		Timeout: requestTimeout, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{DisableKeepAlives: true, DialContext: dial, DialTLSContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := dial(ctx, network, address)
			if err != nil {
				return nil, err
			}
			secured := tls.Client(conn, settings)
			return secured, secured.HandshakeContext(ctx)
		}},
	}
	scheme := "http"
	if port >= 8443 {
		scheme = "https"
	}
	res, err := c.Get(scheme + "://" + host + "/x")
	if err != nil {
		return reply{}, err
	}
	defer res.Body.Close()
	got := reply{Status: res.StatusCode, Header: res.Header}
	_ = json.NewDecoder(res.Body).Decode(&got.Echo) // a redirect has none
	return got, nil
}

// checkServed fails unless a server of the row answered.
func checkServed(got reply, err error) error {
	if err == nil && (got.Status != http.StatusOK || got.Server == "") {
		err = errors.New(toJSON(got))
	}
	return err
}

// checkRefused fails if the request was answered.
func checkRefused(got reply, err error) error {
	if err == nil {
		return fmt.Errorf("it is let in: %s", toJSON(got))
	}
	return nil
}

const edgeGateway = `
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: $HOST}
spec: {selector: {istio: ingressgateway}, servers: [SERVERS]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: $HOST}
spec: {hosts: ["*"], gateways: [$HOST], RULES}
`

func edgeDocs(servers, rules string) string {
	return strings.NewReplacer("SERVERS", servers, "RULES", rules).Replace(edgeGateway)
}

const toHost = `http: [{route: [{destination: {host: $HOST, port: {number: 80}}}]}]`

func TestGateways(t *testing.T) {
	runRows(t, []row{
		{name: "gateway shows the certificate of a secret", ports: []string{"http"}, docs: `
apiVersion: v1
kind: Secret
metadata: {name: $HOST, namespace: istio-system}
type: kubernetes.io/tls
data: {tls.crt: $SERVER_CRT, tls.key: $SERVER_KEY}
---` + edgeDocs(`{port: {number: 8443, name: https, protocol: HTTPS}, hosts: [one.tls.example], tls: {mode: SIMPLE, credentialName: $HOST}}`, toHost),
			check: func(w *testMesh, _ string) error { return checkServed(w.getAtEdge(8443, "one.tls.example")) }},
		{name: "gateway asks clients for certificates", ports: []string{"http"}, docs: `
apiVersion: v1
kind: Secret
metadata: {name: $HOST, namespace: istio-system}
data: {tls.crt: $SERVER_CRT, tls.key: $SERVER_KEY, ca.crt: $CA_CRT}
---` + edgeDocs(`{port: {number: 8444, name: https, protocol: HTTPS}, hosts: [two.tls.example], tls: {mode: MUTUAL, credentialName: $HOST}}`, toHost),
			check: func(w *testMesh, _ string) error {
				if err := checkServed(w.getAtEdge(8444, "two.tls.example", w.trustedClient)); err != nil {
					return err
				}
				return checkRefused(w.getAtEdge(8444, "two.tls.example"))
			}},
		{name: "gateway passes tls on by name", ports: []string{"tls"}, docs: edgeDocs(
			`{port: {number: 8445, name: tls, protocol: TLS}, hosts: ["*.tls.example"], tls: {mode: PASSTHROUGH}}`,
			`tls: [{match: [{sniHosts: [three.tls.example]}], route: [{destination: {host: $HOST, port: {number: 443}}}]}]`),
			check: func(w *testMesh, _ string) error {
				if err := checkServed(w.getAtEdge(8445, "three.tls.example")); err != nil {
					return err
				}
				return checkRefused(w.getAtEdge(8445, "four.tls.example"))
			}},
		{name: "gateway passes the tls of the mesh on", ports: []string{"http"}, docs: `
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: $HOST}
spec: {selector: {istio: ingressgateway}, servers: [{port: {number: 8446, name: tls, protocol: TLS}, hosts: ["*.local"], tls: {mode: AUTO_PASSTHROUGH}}]}
`, check: func(w *testMesh, host string) error {
			conn, err := w.Dial(w.ctx, "", "tcp", w.edgeAddress(8446))
			if err != nil {
				return err
			}
			defer conn.Close()
			var shown string
			secured := tls.Client(conn, &tls.Config{
				ServerName: "outbound_.80_._." + host + ".default.svc.cluster.local", NextProtos: []string{"istio-h2", "istio", "h2"}, InsecureSkipVerify: true,
				VerifyConnection: func(s tls.ConnectionState) error {
					shown = s.PeerCertificates[0].URIs[0].String()
					return nil
				},
			})
			_ = conn.SetDeadline(time.Now().Add(requestTimeout))
			if err := secured.Handshake(); err != nil && shown == "" {
				return err
			}
			if !strings.HasSuffix(shown, "/ns/default/sa/server") {
				return fmt.Errorf("who answers is %s", shown)
			}
			return nil
		}},
		{name: "gateway hosts of several documents share a port", ports: []string{"http"}, docs: edgeDocs(
			`{port: {number: 8090, name: http, protocol: HTTP}, hosts: [first.example]}`, toHost) + `
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: $HOST-2}
spec:
  selector: {istio: ingressgateway}
  servers:
  - {port: {number: 8090, name: http, protocol: HTTP}, hosts: [second.example]}
  - {port: {number: 8090, name: redirect, protocol: HTTP}, hosts: [third.example], tls: {httpsRedirect: true}}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: $HOST-2}
spec: {hosts: [second.example], gateways: [$HOST-2], http: [{directResponse: {status: 299}}]}
`, check: func(w *testMesh, _ string) error {
			if err := checkServed(w.getAtEdge(8090, "first.example")); err != nil {
				return err
			}
			for host, want := range map[string]int{"second.example": 299, "third.example": 301, "fourth.example": 404} {
				if got, err := w.getAtEdge(8090, host); err != nil || got.Status != want {
					return fmt.Errorf("%s: %s, %w", host, toJSON(got), err)
				}
			}
			return nil
		}},
	})
}

func TestEnvoyFilters(t *testing.T) {
	runRows(t, []row{
		{name: "envoyfilter puts a script into a sidecar", ports: []string{"http"}, exclusive: []string{"guarded"}, docs: `
apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: $HOST}
spec:
  workloadSelector: {labels: {app: guarded}}
  configPatches:
  - applyTo: HTTP_FILTER
    match: {context: SIDECAR_INBOUND, listener: {filterChain: {filter: {name: envoy.filters.network.http_connection_manager, subFilter: {name: envoy.filters.http.router}}}}}
    patch:
      operation: INSERT_BEFORE
      value:
        name: $HOST
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua
          default_source_code: {inline_string: "function envoy_on_response(handle) handle:headers():add('x-script', 'ran') end"}
`, check: func(w *testMesh, _ string) error {
			got, err := w.expectStatus(200, "client", "http://guarded/")
			if err == nil && got.Header.Get("X-Script") != "ran" {
				err = errors.New(toJSON(got))
			}
			return err
		}},
		{name: "envoyfilter changes the routes of one caller", ports: []string{"http"}, exclusive: []string{"other"}, docs: `
apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: $HOST, namespace: other}
spec:
  configPatches:
  - applyTo: HTTP_ROUTE
    match: {context: SIDECAR_OUTBOUND, routeConfiguration: {vhost: {name: "$HOST.default.svc.cluster.local:80"}}}
    patch: {operation: INSERT_FIRST, value: {name: patched, match: {path: /patched}, direct_response: {status: 299}}}
  - applyTo: VIRTUAL_HOST
    match: {context: SIDECAR_OUTBOUND, routeConfiguration: {name: "80"}}
    patch: {operation: ADD, value: {name: added, domains: [added.example], routes: [{match: {prefix: /}, direct_response: {status: 298}}]}}
  - applyTo: VIRTUAL_HOST
    match: {context: SIDECAR_OUTBOUND, routeConfiguration: {vhost: {name: "$HOST.default.svc.cluster.local:80"}}}
    patch: {operation: MERGE, value: {response_headers_to_add: [{header: {key: x-merged, value: "yes"}}]}}
`, check: func(w *testMesh, host string) error {
			if _, err := w.expectStatus(299, "other", "http://"+host+".default/patched"); err != nil {
				return err
			}
			got, err := w.expectStatus(200, "other", "http://"+host+".default/other")
			if err == nil && got.Header.Get("X-Merged") != "yes" {
				err = errors.New(toJSON(got))
			}
			if err != nil {
				return err
			}
			if got, err := w.send("other", request{URL: "http://" + host + ".default/", Host: "added.example"}); err != nil || got.Status != 298 {
				return fmt.Errorf("%s, %w", toJSON(got), err)
			}
			_, err = w.expectStatus(200, "client", "http://"+host+"/patched")
			return err
		}},
		{name: "envoyfilter gives a filter its configuration by name", ports: []string{"http"}, exclusive: []string{"guarded"}, docs: `
apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: $HOST}
spec:
  workloadSelector: {labels: {app: guarded}}
  configPatches:
  - applyTo: EXTENSION_CONFIG
    patch:
      operation: ADD
      value:
        name: $HOST
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua
          default_source_code: {inline_string: "function envoy_on_response(handle) handle:headers():add('x-extension', 'ran') end"}
  - applyTo: HTTP_FILTER
    match: {context: SIDECAR_INBOUND, listener: {filterChain: {filter: {name: envoy.filters.network.http_connection_manager, subFilter: {name: envoy.filters.http.router}}}}}
    patch:
      operation: INSERT_BEFORE
      value:
        name: $HOST
        config_discovery:
          config_source: {ads: {}, resource_api_version: V3}
          type_urls: [type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua]
`, check: func(w *testMesh, _ string) error {
			got, err := w.expectStatus(200, "client", "http://guarded/")
			if err == nil && got.Header.Get("X-Extension") != "ran" {
				err = errors.New(toJSON(got))
			}
			return err
		}},
		{name: "envoyfilter adds and removes clusters listeners and chains", exclusive: []string{"guarded", "other"}, ports: []string{"http", "http2"}, docs: `
apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: $HOST, namespace: other}
spec:
  configPatches:
  - applyTo: CLUSTER
    match: {context: SIDECAR_OUTBOUND, cluster: {service: $HOST.default.svc.cluster.local, portNumber: 82}}
    patch: {operation: REMOVE}
  - applyTo: CLUSTER
    match: {context: SIDECAR_OUTBOUND, cluster: {service: $HOST.default.svc.cluster.local, portNumber: 80}}
    patch: {operation: MERGE, value: {alt_stat_name: "outbound|merged|$HOST"}}
  - applyTo: CLUSTER
    match: {context: SIDECAR_OUTBOUND}
    patch:
      operation: ADD
      value:
        name: $HOST-added
        type: STATIC
        connect_timeout: 5s
        load_assignment: {cluster_name: $HOST-added, endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: 8080}}}}]}]}
  - applyTo: LISTENER
    match: {context: SIDECAR_OUTBOUND}
    patch:
      operation: ADD
      value:
        name: $HOST-added
        address: {socket_address: {address: 127.0.0.1, port_value: 18999}}
        filter_chains:
        - filters:
          - name: envoy.filters.network.tcp_proxy
            typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy, stat_prefix: added, cluster: $HOST-added}
---
apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: $HOST}
spec:
  workloadSelector: {labels: {app: guarded}}
  configPatches:
  - applyTo: FILTER_CHAIN
    match: {context: SIDECAR_INBOUND, listener: {name: virtualInbound}}
    patch:
      operation: ADD
      value:
        name: $HOST-added
        filter_chain_match: {destination_port: 18998}
        filters:
        - name: envoy.filters.network.http_connection_manager
          typed_config:
            "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
            stat_prefix: added
            route_config: {virtual_hosts: [{name: all, domains: ["*"], routes: [{match: {prefix: /}, direct_response: {status: 297}}]}]}
            http_filters: [{name: router, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}]
`, check: func(w *testMesh, host string) error {
			if _, err := w.expectStatus(503, "other", "http://"+host+".default:82/"); err != nil {
				return fmt.Errorf("a cluster that is removed: %w", err)
			}
			if _, err := w.expectStatus(200, "other", "http://"+host+".default/"); err != nil {
				return err
			}
			if merged, err := w.stats("other", "cluster.outbound|merged|"+host); err != nil || merged["upstream_rq_total"] == 0 {
				return fmt.Errorf("a cluster that is changed: %v %w", merged, err)
			}
			if got, err := w.expectStatus(200, "other", "http://127.0.0.1:18999/"); err != nil || got.Server != "other" {
				return fmt.Errorf("a listener that is added: %s %w", toJSON(got), err)
			}
			_, err := w.expectStatus(297, "", "http://"+w.guardedAt(18998)+"/")
			return err
		}},
		{name: "envoyfilter that would break a listener is left out", ports: []string{"http"}, exclusive: []string{"guarded"}, docs: `
apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: $HOST}
spec:
  workloadSelector: {labels: {app: guarded}}
  configPatches:
  - applyTo: HTTP_FILTER
    match: {context: SIDECAR_INBOUND, listener: {filterChain: {filter: {name: envoy.filters.network.http_connection_manager, subFilter: {name: envoy.filters.http.router}}}}}
    patch: {operation: REMOVE}
  - applyTo: NETWORK_FILTER
    match: {context: SIDECAR_INBOUND, listener: {filterChain: {filter: {name: envoy.filters.network.http_connection_manager}}}}
    patch:
      operation: MERGE
      value: {typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager, server_name: patched}}
`, wantProblem: "the control plane skips the patch", check: func(w *testMesh, _ string) error {
			got, err := w.expectStatus(200, "client", "http://guarded/")
			if err == nil && got.Header.Get("Server") == "" {
				err = errors.New(toJSON(got))
			}
			return err
		}},
		{name: "envoyfilter of what stock envoy has not is refused", ports: []string{"http"}, wantProblem: "no extension of Envoy has this type", docs: `
apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: $HOST}
spec:
  configPatches:
  - {applyTo: HTTP_FILTER, patch: {operation: INSERT_FIRST, value: {name: x, typed_config: {"@type": type.googleapis.com/stats.PluginConfig}}}}
`, check: func(w *testMesh, host string) error {
			_, err := w.expectStatus(200, "client", "http://"+host+"/")
			return err
		}},
	})
}

func TestSidecars(t *testing.T) {
	runRows(t, []row{
		{name: "sidecar says where the workload serves a port", ports: []string{"http"}, exclusive: []string{"guarded"}, docs: `
apiVersion: v1
kind: Service
metadata: {name: $HOST-in}
spec: {selector: {app: guarded}, ports: [{name: http-in, port: 80, targetPort: 9999}]}
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: $HOST}
spec:
  workloadSelector: {labels: {app: guarded}}
  ingress:
  - {port: {number: 9999, protocol: HTTP, name: web}, defaultEndpoint: "127.0.0.1:8080", connectionPool: {http: {http1MaxPendingRequests: 10}}}
`, check: func(w *testMesh, host string) error {
			got, err := w.expectStatus(200, "client", "http://"+host+"-in/")
			if err == nil && got.Server != "guarded" {
				err = errors.New(toJSON(got))
			}
			return err
		}},
		{name: "sidecar limits what a workload calls and where", ports: []string{"http"}, exclusive: []string{"other"}, docs: `
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: $HOST, namespace: other}
spec:
  outboundTrafficPolicy: {mode: REGISTRY_ONLY}
  egress:
  - {port: {number: 80, protocol: HTTP, name: http}, hosts: ["default/$HOST.default.svc.cluster.local"]}
  - {port: {number: 8888, protocol: TCP, name: tcp}, bind: 127.0.0.1, captureMode: NONE, hosts: ["default/$HOST-bound.default.svc.cluster.local"]}
  - {hosts: ["default/server.default.svc.cluster.local"]}
---
apiVersion: v1
kind: Service
metadata: {name: $HOST-bound}
spec: {selector: {app: server}, ports: [{name: tcp, port: 8888, targetPort: 9000}]}
`, check: func(w *testMesh, host string) error {
			if _, err := w.expectStatus(200, "other", "http://"+host+".default/"); err != nil {
				return err
			}
			if got, err := w.get("other", "http://server.default/"); err == nil && got.Status == 200 {
				return fmt.Errorf("what is not seen at the port answers: %s", toJSON(got))
			}
			if _, err := w.sendLine("other", "server.default:9000", "hello", 1); err != nil {
				return fmt.Errorf("what is seen at other ports: %w", err)
			}
			if received, err := w.sendLine("other", "127.0.0.1:8888", "hello", 1); err != nil || !strings.HasSuffix(received[0], "heard hello") {
				return fmt.Errorf("the listener of its own: %q, %w", received, err)
			}
			return nil
		}},
	})
}
