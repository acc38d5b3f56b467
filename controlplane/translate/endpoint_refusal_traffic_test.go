package translate_test

import (
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
)

// TestRequestsDoNotSelectReservedPorts: without capture, a sidecar is an HTTP proxy to any host. It does not connect to
// ports of proxies, which include its own admin interface.
func TestRequestsDoNotSelectReservedPorts(t *testing.T) {
	forEachEnvoyVersion(t, 196003, func(t *testing.T, version string, network int) {
		w := newTestEnv(t, version, network, pair)
		for _, port := range []string{"8081", "15000", "15020"} {
			w.serveApp("NET.3.1:"+port, "port "+port, nil)
		}
		w.proxy(clientNode, "front/client")
		w.expect(200, "port 8081", func() httpResult { return w.request(clientPort, "http://NET.3.1:8081/x") })
		for _, port := range []string{"15000", "15020", "015000"} {
			if got := w.request(clientPort, "http://NET.3.1:"+port+"/x"); got.code != 403 {
				t.Errorf("port %s in the URL: %v", port, got)
			}
		}
		for _, port := range []string{"15000", "0015000", "+15000"} {
			response := w.sendText(clientPort, "GET /x HTTP/1.1\r\nHost: NET.3.1:"+port+"\r\nConnection: close\r\n\r\n")
			if strings.Contains(response, "port 15000") || !strings.HasPrefix(response, "HTTP/1.1 4") {
				t.Errorf("port %s in the Host header: %s", port, response)
			}
		}
	})
}

// TestClientOfGatewayDoesNotSelectEndpoint: a header of the PROXY protocol has an original destination. With the load
// balancer PASSTHROUGH, a sidecar connects to the original destination, and a gateway to the service's endpoints.
func TestClientOfGatewayDoesNotSelectEndpoint(t *testing.T) {
	forEachEnvoyVersion(t, 196005, func(t *testing.T, version string, network int) {
		mesh := snapshot.WithDefaults(nil)
		mesh.DefaultConfig = &meshconfig.ProxyConfig{GatewayTopology: &meshconfig.Topology{ProxyProtocol: &meshconfig.Topology_ProxyProtocolConfiguration{}}}
		w := newTestEnvWithConfig(t, mesh, version, network, strings.Replace(pair, ", security.istio.io/tlsMode: istio", ", security.istio.io/tlsMode: disabled", 1), `
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: edge, namespace: back}
spec: {selector: {istio: edge}, servers: [{port: {number: 8080, name: http, protocol: HTTP}, hosts: ["*"]}]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: edge, namespace: back}
spec: {hosts: [shop.example.com], gateways: [edge], http: [{route: [{destination: {host: server, port: {number: 80}}}]}]}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: server, namespace: back}
spec: {host: server, trafficPolicy: {loadBalancer: {simple: PASSTHROUGH}}}
`)
		w.serveApp("NET.2.1:8080", "server", nil)
		w.serveApp("NET.3.1:15000", "admin", nil)
		w.proxy(edgeNode, "back/edge")
		w.expect(200, "server", func() httpResult {
			response := w.sendText("NET.4.1:8080", "PROXY TCP4 192.0.2.7 NET.3.1 1234 15000\r\nGET /x HTTP/1.1\r\nHost: shop.example.com\r\nConnection: close\r\n\r\n")
			if strings.Contains(response, "admin") {
				t.Fatalf("the client selects the endpoint: %s", response)
			}
			var code int
			_, _ = fmt.Sscanf(response, "HTTP/1.1 %d", &code)
			return httpResult{code: code, body: response}
		})
	})
}

// sendText sends a text to an address and returns the response up to the end of the connection.
func (w *testEnv) sendText(address, text string) string {
	w.t.Helper()
	conn, err := net.DialTimeout("tcp", w.expandNetwork(address), 10*time.Second)
	if err != nil {
		return err.Error()
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	_, err = io.WriteString(conn, w.expandNetwork(text))
	if err != nil {
		return err.Error()
	}
	response, _ := io.ReadAll(conn) // Envoy may reset the connection after the response
	return string(response)
}
