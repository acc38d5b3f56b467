package translate_test

import (
	"fmt"
	"testing"
)

// TestHTTP10IsAcceptedIfTheProxyRequestsIt: without that, Envoy refuses HTTP/1.0 at HTTP ports, and forwards it as TCP at
// ports without a protocol.
func TestHTTP10IsAcceptedIfTheProxyRequestsIt(t *testing.T) {
	const service = `
apiVersion: v1
kind: Service
metadata: {name: server, namespace: back}
spec: {selector: {app: server}, ports: [{name: http, port: 8080}, {name: any, port: 8081}]}
`
	for i, accepts := range []bool{false, true} {
		t.Run(fmt.Sprint(accepts), func(t *testing.T) {
			forEachEnvoyVersion(t, 179003+2*i, func(t *testing.T, version string, network int) {
				w := newTestEnv(t, version, network, service)
				w.serveApp("NET.2.2:8080", "server", nil)
				w.serveApp("NET.2.2:8081", "server", nil)
				node, declared, server := serverNode, 426, "HTTP/1.0 /x" // the server sees the version of the client
				if accepts {
					node, declared, server = node+" HTTP10=1", 200, "HTTP/1.1 /x" // Envoy uses HTTP/1.1
				}
				w.proxy(node, "back/server")
				ask := func(port int) func() httpResult {
					return func() httpResult {
						response := w.sendText(fmt.Sprintf("NET.2.1:%d", port), "GET /x HTTP/1.0\r\nHost: server.back\r\n\r\n")
						var code int
						var minor string
						_, _ = fmt.Sscanf(response, "HTTP/%s %d", &minor, &code)
						return httpResult{code: code, body: response}
					}
				}
				w.expect(declared, "", ask(8080))
				w.expect(200, "server "+server, ask(8081))
			})
		})
	}
}
