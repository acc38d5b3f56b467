package api

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
)

// secretOfServer is a Secret with the servers' own certificate and the CA of clients' certificates.
const secretOfServer = `
apiVersion: v1
kind: Secret
metadata: {name: $HOST, namespace: istio-system}
data: {tls.crt: $SERVER_CRT, tls.key: $SERVER_KEY, ca.crt: $CA_CRT}
---`

// protocolAtEdge returns the protocol that an HTTP/2 client uses with the gateway: over TLS on ports from 8443, and
// with prior knowledge on the others.
func (w *testMesh) protocolAtEdge(port int, host string) (string, error) {
	protocols := new(http.Protocols)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	dial := func(ctx context.Context, network, _ string) (net.Conn, error) {
		return w.Dial(ctx, "", network, w.edgeAddress(port))
	}
	t := &http.Transport{Protocols: protocols, DialContext: dial, TLSClientConfig: &tls.Config{ServerName: host, RootCAs: w.ca.Pool()}}
	defer t.CloseIdleConnections()
	scheme := "http"
	if port >= 8443 {
		scheme = "https"
	}
	res, err := (&http.Client{Timeout: requestTimeout, Transport: t}).Get(scheme + "://" + host + "/")
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	return res.Proto, checkf(res.StatusCode == http.StatusOK, "%s", res.Status)
}

func TestEdges(t *testing.T) {
	runRows(t, []row{
		{name: "gateway speaks http2", ports: []string{"http"}, docs: edgeDocs(`{port: {number: 8447, name: https, protocol: HTTPS}, hosts: [seven.tls.example], tls: {mode: SIMPLE, serverCertificate: $DIR/server.crt, privateKey: $DIR/server.key}},
  {port: {number: 8091, name: http, protocol: HTTP}, hosts: [seven.example]}`, toHost),
			check: func(w *testMesh, _ string) error {
				for port, host := range map[int]string{8447: "seven.tls.example", 8091: "seven.example"} {
					if protocol, err := w.protocolAtEdge(port, host); err != nil || protocol != "HTTP/2.0" {
						return fmt.Errorf("at %d: %q %w", port, protocol, err)
					}
					if err := checkServed(w.getAtEdge(port, host)); err != nil { // and HTTP/1.1
						return fmt.Errorf("at %d: %w", port, err)
					}
				}
				return nil
			}},
		{name: "gateway asks for certificates without need", ports: []string{"http"}, docs: secretOfServer +
			edgeDocs(`{port: {number: 8448, name: https, protocol: HTTPS}, hosts: [eight.tls.example], tls: {mode: OPTIONAL_MUTUAL, credentialName: $HOST}}`, toHost),
			check: func(w *testMesh, host string) error {
				if err := errors.Join(checkServed(w.getAtEdge(8448, "eight.tls.example")), checkServed(w.getAtEdge(8448, "eight.tls.example", w.trustedClient))); err != nil {
					return err
				}
				return checkRefused(w.getAtEdge(8448, "eight.tls.example", w.untrustedClient))
			}},
		{name: "gateway speaks the tls of the mesh", ports: []string{"http"}, docs: edgeDocs(
			`{port: {number: 8449, name: https, protocol: HTTPS}, hosts: [nine.example], tls: {mode: ISTIO_MUTUAL}}`, toHost) + `
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: $HOST}
spec: {hosts: [nine.example], location: MESH_EXTERNAL, resolution: STATIC, ports: [{number: 80, name: http, protocol: HTTP, targetPort: 8449}], endpoints: [{address: $EDGE}]}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: $HOST}
spec: {host: nine.example, trafficPolicy: {tls: {mode: ISTIO_MUTUAL, sni: nine.example}}}
`, wantProblem: "supports the mesh's mutual TLS", check: func(w *testMesh, _ string) error {
			got, err := w.expectStatus(200, "client", "http://nine.example/")
			if err != nil || !strings.Contains(got.Echo.Header.Get("X-Forwarded-Client-Cert"), "sa/gateway") {
				return fmt.Errorf("%s %w", toJSON(got), err)
			}
			return checkRefused(w.getAtEdge(8449, "nine.example", w.trustedClient))
		}},
		{name: "gateway between sidecars", ports: []string{"http"}, docs: `
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: $HOST}
spec: {selector: {istio: ingressgateway}, servers: [{port: {number: 8450, name: tls, protocol: TLS}, hosts: ["*.local"], tls: {mode: AUTO_PASSTHROUGH}}]}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: $HOST}
spec: {hosts: [$HOST.far.example], location: MESH_EXTERNAL, resolution: STATIC, ports: [{number: 80, name: http, protocol: HTTP, targetPort: 8450}], endpoints: [{address: $EDGE}]}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: $HOST}
spec:
  host: $HOST.far.example
  trafficPolicy: {tls: {mode: ISTIO_MUTUAL, sni: outbound_.80_._.$HOST.default.svc.cluster.local, subjectAltNames: ["spiffe://cluster.local/ns/default/sa/server"]}}
`, wantProblem: "supports the mesh's mutual TLS", check: func(w *testMesh, host string) error {
			got, err := w.expectStatus(200, "client", "http://"+host+".far.example/")
			return checkf(err == nil && got.Server != "" && strings.Contains(got.Echo.Header.Get("X-Forwarded-Client-Cert"), "sa/client"), "%s %v", toJSON(got), err)
		}},
		{name: "rules for gateways and the mesh", ports: []string{"http"}, docs: `
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: $HOST}
spec: {selector: {istio: ingressgateway}, servers: [{port: {number: 8092, name: http, protocol: HTTP}, hosts: [$HOST.default.svc.cluster.local]}]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: $HOST}
spec:
  hosts: [$HOST.default.svc.cluster.local]
  gateways: [mesh, $HOST]
  http:
  - {match: [{gateways: [$HOST], uri: {prefix: /}}], directResponse: {status: 298}}
  - {match: [{gateways: [mesh]}], directResponse: {status: 299}}
`, check: func(w *testMesh, host string) error {
			got, err := w.getAtEdge(8092, host+".default.svc.cluster.local")
			if err != nil || got.Status != 298 {
				return fmt.Errorf("at the gateway: %s %w", toJSON(got), err)
			}
			_, err = w.expectStatus(299, "client", "http://"+host+"/")
			return err
		}},
		{name: "gateway of connections", ports: []string{"tcp"}, docs: edgeDocs(
			`{port: {number: 9100, name: tcp, protocol: TCP}, hosts: ["*"]}, {port: {number: 9143, name: tls, protocol: TLS}, hosts: [ten.tls.example], tls: {mode: SIMPLE, serverCertificate: $DIR/server.crt, privateKey: $DIR/server.key}}`,
			`tcp: [{route: [{destination: {host: $HOST, port: {number: 9000}}}]}]`),
			check: func(w *testMesh, _ string) error {
				if received, err := w.sendLine("", w.edgeAddress(9100), "hello", 1); err != nil || !strings.HasSuffix(received[0], "heard hello") {
					return fmt.Errorf("%q %w", received, err)
				}
				conn, err := w.Dial(w.ctx, "", "tcp", w.edgeAddress(9143))
				if err != nil {
					return err
				}
				defer conn.Close()
				received, err := exchangeLines(tls.Client(conn, &tls.Config{ServerName: "ten.tls.example", RootCAs: w.ca.Pool()}), "hello", 1)
				return checkf(err == nil && strings.HasSuffix(received[0], "heard hello"), "by TLS: %q %v", received, err)
			}},
		{name: "gateway with an application beside it", ports: []string{"http"}, docs: `
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: $HOST}
spec:
  selector: {istio: ingressgateway}
  servers:
  - {port: {number: 8096, name: http, protocol: HTTP}, hosts: [$HOST.example, $HOST.other.example], defaultEndpoint: "unix://$DIR/guarded.sock"}
  - {port: {number: 9196, name: tcp, protocol: TCP}, hosts: ["*"], defaultEndpoint: "unix://$DIR/guarded.sock"}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: $HOST}
spec: {hosts: [$HOST.example], gateways: [$HOST], http: [{match: [{uri: {prefix: /x}}], directResponse: {status: 299}}]}
`, check: func(w *testMesh, host string) error {
			for path, want := range map[string]int{"/x": 299, "/": 200} {
				got, err := w.send("", request{URL: "http://" + w.edgeAddress(8096) + path, Host: host + ".example"})
				if err != nil || got.Status != want || want == 200 && got.Server != "guarded" {
					return fmt.Errorf("%s: %s, want %d, %w", path, toJSON(got), want, err)
				}
			}
			if got, err := w.getAtEdge(8096, host+".other.example"); err != nil || got.Server != "guarded" {
				return fmt.Errorf("a host without rules: %s %w", toJSON(got), err)
			}
			got, err := w.get("", "http://"+w.edgeAddress(9196)+"/")
			return checkf(err == nil && got.Server == "guarded", "by TCP: %s %v", toJSON(got), err)
		}},
		{name: "callers behind trusted proxies", ports: []string{"http"}, docs: edgeDocs(`{port: {number: 8093, name: http, protocol: HTTP}, hosts: [$HOST.example]}`, toHost) + `
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: $HOST, namespace: istio-system}
spec:
  selector: {matchLabels: {istio: ingressgateway}}
  action: DENY
  rules:
  - {to: [{operation: {hosts: [$HOST.example], ports: ["8093"]}}], when: [{key: remote.ip, values: [203.0.113.7]}]}
  - {to: [{operation: {hosts: [$HOST.example], ports: ["8093"]}}], from: [{source: {remoteIpBlocks: [203.0.113.64/26]}}]}
`, check: func(w *testMesh, host string) error {
			for forwarded, status := range map[string]int{"203.0.113.7": 403, "203.0.113.8": 200, "203.0.113.7, 198.51.100.1": 200, "198.51.100.1, 203.0.113.77": 403, "": 200} {
				got, err := w.send("", request{URL: "http://" + w.edgeAddress(8093) + "/", Host: host + ".example", Headers: map[string]string{"X-Forwarded-For": forwarded}})
				if err != nil || got.Status != status {
					return fmt.Errorf("forwarded for %q: %s, want %d, %w", forwarded, toJSON(got), status, err)
				}
			}
			return nil
		}},
		{name: "envoyfilter at the gateway alone", ports: []string{"http"}, docs: edgeDocs(`{port: {number: 8094, name: http, protocol: HTTP}, hosts: [$HOST.example]}`, toHost) + `
---
apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: $HOST, namespace: istio-system}
spec:
  configPatches:
  - applyTo: VIRTUAL_HOST
    match: {context: GATEWAY, routeConfiguration: {name: http.8094}}
    patch: {operation: MERGE, value: {response_headers_to_add: [{header: {key: x-edge, value: "yes"}}]}}
  - applyTo: NETWORK_FILTER
    match: {context: GATEWAY, listener: {portNumber: 8094, filterChain: {filter: {name: envoy.filters.network.http_connection_manager}}}}
    patch:
      operation: MERGE
      value: {typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager, server_name: patched}}
`, check: func(w *testMesh, host string) error {
			got, err := w.getAtEdge(8094, host+".example")
			if err != nil || got.Header.Get("X-Edge") != "yes" || got.Header.Get("Server") != "patched" {
				return fmt.Errorf("%s %w", toJSON(got), err)
			}
			got, err = w.expectStatus(200, "client", "http://"+host+"/")
			return checkf(err == nil && got.Header.Get("X-Edge") == "", "at a sidecar: %s %v", toJSON(got), err)
		}},
	})
}
