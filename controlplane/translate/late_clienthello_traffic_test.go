package translate_test

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
)

// peerAuthentication returns services with a port without a protocol and a policy for them.
func peerAuthentication(mode string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: server, namespace: back}
spec: {selector: {app: server}, ports: [{name: any, port: 8081}]}
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: back}
spec: {mtls: {mode: %s}}
`, mode)
}

// TestLateClientHelloIsMutualTLSUnderStrict: where only mutual TLS is accepted, the timeout for the detection of the
// protocol does not apply. A request that begins after the timeout is processed as HTTP.
func TestLateClientHelloIsMutualTLSUnderStrict(t *testing.T) {
	const timeout = 20 * time.Millisecond
	forEachEnvoyVersion(t, 179011, func(t *testing.T, version string, network int) {
		mesh := snapshot.WithDefaults(nil)
		mesh.ProtocolDetectionTimeout = durationpb.New(timeout)
		w := newTestEnvWithConfig(t, mesh, version, network, peerAuthentication("STRICT"))
		w.serveApp("NET.2.2:8081", "server", nil)
		w.proxy(serverNode, "back/server")
		cert, key := w.plane.ca.issue("spiffe://cluster.local/ns/front/sa/client")
		pair, err := tls.X509KeyPair(cert, key)
		if err != nil {
			t.Fatal(err)
		}
		w.expect(200, ";URI=spiffe://cluster.local/ns/front/sa/client", func() httpResult {
			raw, err := net.DialTimeout("tcp", w.expandNetwork("NET.2.1:8081"), 10*time.Second)
			if err != nil {
				return httpResult{err: err}
			}
			defer raw.Close()
			_ = raw.SetDeadline(time.Now().Add(10 * time.Second))
			time.Sleep(10 * timeout) // the subject of the test
			conn := tls.Client(raw, &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{pair}, NextProtos: []string{"istio-http/1.1"}})
			if _, err := io.WriteString(conn, "GET /x HTTP/1.1\r\nHost: server.back\r\nConnection: close\r\n\r\n"); err != nil {
				return httpResult{err: err}
			}
			response, _ := io.ReadAll(conn)
			var code int
			_, _ = fmt.Sscanf(string(response), "HTTP/1.1 %d", &code)
			return httpResult{code: code, body: string(response)}
		})
	})
}

// TestInboundWaitIsLimitedWherePlaintextIsAccepted, on the listener for all captured ports.
func TestInboundWaitIsLimitedWherePlaintextIsAccepted(t *testing.T) {
	captured := proxy(t, "sidecar server-1.back 127.203.74.1 app=server INTERCEPTION_MODE=REDIRECT")
	for mode, limited := range map[string]bool{"STRICT": false, "PERMISSIVE": true, "DISABLE": true} {
		m := newTestMesh(t, nil, peerAuthentication(mode))
		listeners, err := generate(m.snap, captured, xds.ListenerType, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range listeners {
			var l listenerv3.Listener
			if err := r.Body.UnmarshalTo(&l); err != nil {
				t.Fatal(err)
			}
			if strings.HasPrefix(l.GetName(), "virtualInbound") && l.GetContinueOnListenerFiltersTimeout() != limited {
				t.Errorf("%s: the wait is limited: %v", mode, l.GetContinueOnListenerFiltersTimeout())
			}
		}
	}
}
