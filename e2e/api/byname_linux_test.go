package api

import (
	"fmt"
	"net/http"
	"testing"
)

// anyOutside is a ServiceEntry for every host of this machine's domain in the mesh.
const anyOutside = `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: $HOST, namespace: default}
spec:
  hosts: ["*.pilotfish.internal"]
  location: MESH_EXTERNAL
  resolution: DYNAMIC_DNS
  ports: [{number: 8181, name: http, protocol: HTTP, targetPort: $OUTSIDE_HTTP}, {number: 8182, name: tls, protocol: TLS, targetPort: $OUTSIDE_TLS}]
`

// unusedAddress is an address without a host.
const unusedAddress = "192.0.2.99"

func TestHostsResolvedByName(t *testing.T) {
	runRows(t, []row{{name: "hosts that callers name", ports: []string{"http"}, docs: edgeDocs(
		`{port: {number: 8095, name: http, protocol: HTTP}, hosts: ["*"]}, {port: {number: 8495, name: tls, protocol: TLS}, hosts: ["*"], tls: {mode: PASSTHROUGH}}`, `http: [{route: [{destination: {host: "*.pilotfish.internal", port: {number: 8181}}}]}], tls: [
  {match: [{sniHosts: [host.pilotfish.internal]}], route: [{destination: {host: "*.pilotfish.internal", port: {number: 8182}}}]},
  {match: [{sniHosts: [$HOST.example]}], route: [{destination: {host: "*.pilotfish.internal", port: {number: 8182}}}]}]`) + "\n---" + anyOutside,
		check: func(w *testMesh, host string) error {
			const named = "host.pilotfish.internal"
			for from, at := range map[string]string{"client": unusedAddress + ":8181", "": w.edgeAddress(8095)} {
				// The request reaches the service's port, whatever port the Host header names.
				for _, hostHeader := range []string{named, named + ":8181", named + ":" + w.outside[portTCP], "HOST.pilotfish.internal"} {
					got, err := w.send(from, request{URL: "http://" + at + "/", Host: hostHeader})
					if err != nil || got.Status != http.StatusOK || got.Server != "outside" {
						return fmt.Errorf("%q from %q: %s %w", hostHeader, from, toJSON(got), err)
					}
				}
			}
			for _, hostHeader := range []string{"localhost:15000", w.instance("v1").Proxy.String() + ":8080", w.outsideAddress() + ":" + w.outside[portHTTP], "server.default.svc.cluster.local", "pilotfish.internal"} {
				if got, err := w.send("", request{URL: "http://" + w.edgeAddress(8095) + "/", Host: hostHeader}); err != nil || got.Status != http.StatusNotFound {
					return fmt.Errorf("the gateway is a proxy to %q: %s %w", hostHeader, toJSON(got), err)
				}
			}
			for from, at := range map[string]string{"client": unusedAddress + ":8182", "": w.edgeAddress(8495)} {
				if got, err := w.getTLS(from, at, named); err != nil || got.Server != "outside" {
					return fmt.Errorf("by TLS from %q: %s %w", from, toJSON(got), err)
				}
			}
			return checkRefused(w.getTLS("", w.edgeAddress(8495), host+".example"))
		}}, {name: "connections that name no host", ports: []string{"http"}, wantProblem: "proxies forward them to the address that the client resolved", docs: `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: $HOST}
spec:
  hosts: ["*.plain.example"]
  location: MESH_EXTERNAL
  resolution: DYNAMIC_DNS
  ports: [{number: $OUTSIDE_TCP, name: tcp, protocol: TCP}]
`, check: func(w *testMesh, _ string) error {
		received, err := w.sendLine("client", w.outsideAddress()+":"+w.outside[portTCP], "hello", 1)
		if err != nil || received[0] != "outside heard hello" {
			return fmt.Errorf("%q %w", received, err)
		}
		received, err = w.sendLine("client", unusedAddress+":"+w.outside[portTCP], "hello", 1)
		return checkf(err != nil, "an address that nobody has answers: %q", received)
	}}})
}
