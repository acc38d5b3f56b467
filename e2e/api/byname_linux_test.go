package api

import (
	"fmt"
	"net/http"
	"testing"
)

// anyOutside is a service of whatever host of the domain that this machine has a name in.
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

// nowhere is an address that nobody has.
const nowhere = "192.0.2.99"

func TestHostsThatAreLookedUp(t *testing.T) {
	runRows(t, []row{{name: "hosts that callers name", ports: []string{"http"}, docs: edgeDocs(
		`{port: {number: 8095, name: http, protocol: HTTP}, hosts: ["*"]}, {port: {number: 8495, name: tls, protocol: TLS}, hosts: ["*"], tls: {mode: PASSTHROUGH}}`, `http: [{route: [{destination: {host: "*.pilotfish.internal", port: {number: 8181}}}]}], tls: [
  {match: [{sniHosts: [host.pilotfish.internal]}], route: [{destination: {host: "*.pilotfish.internal", port: {number: 8182}}}]},
  {match: [{sniHosts: [$HOST.example]}], route: [{destination: {host: "*.pilotfish.internal", port: {number: 8182}}}]}]`) + "\n---" + anyOutside,
		check: func(w *world, host string) error {
			const named = "host.pilotfish.internal"
			for from, at := range map[string]string{"client": nowhere + ":8181", "": w.edge(8095)} {
				// The port is the service's whatever is asked for.
				for _, asked := range []string{named, named + ":8181", named + ":" + w.outside[portTCP], "HOST.pilotfish.internal"} {
					got, err := w.ask(from, request{URL: "http://" + at + "/", Host: asked})
					if err != nil || got.Status != http.StatusOK || got.Server != "outside" {
						return fmt.Errorf("%q from %q: %s %w", asked, from, toJSON(got), err)
					}
				}
			}
			for _, asked := range []string{"localhost:15000", w.instance("v1").Proxy.String() + ":8080", w.outsideAddress() + ":" + w.outside[portHTTP], "server.default.svc.cluster.local", "pilotfish.internal"} {
				if got, err := w.ask("", request{URL: "http://" + w.edge(8095) + "/", Host: asked}); err != nil || got.Status != http.StatusNotFound {
					return fmt.Errorf("the gateway is a proxy to %q: %s %w", asked, toJSON(got), err)
				}
			}
			for from, at := range map[string]string{"client": nowhere + ":8182", "": w.edge(8495)} {
				if got, err := w.getTLS(from, at, named); err != nil || got.Server != "outside" {
					return fmt.Errorf("by TLS from %q: %s %w", from, toJSON(got), err)
				}
			}
			return refused(w.getTLS("", w.edge(8495), host+".example"))
		}}, {name: "connections that name no host", ports: []string{"http"}, told: "callers reach what they resolve themselves", docs: `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: $HOST}
spec:
  hosts: ["*.plain.example"]
  location: MESH_EXTERNAL
  resolution: DYNAMIC_DNS
  ports: [{number: $OUTSIDE_TCP, name: tcp, protocol: TCP}]
`, check: func(w *world, _ string) error {
		heard, err := w.say("client", w.outsideAddress()+":"+w.outside[portTCP], "hello", 1)
		if err != nil || heard[0] != "outside heard hello" {
			return fmt.Errorf("%q %w", heard, err)
		}
		heard, err = w.say("client", nowhere+":"+w.outside[portTCP], "hello", 1)
		return is(err != nil, "an address that nobody has answers: %q", heard)
	}}})
}
