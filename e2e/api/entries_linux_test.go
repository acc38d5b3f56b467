package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
)

// TestServicesOfServiceEntries by each way to find their endpoints.
func TestServicesOfServiceEntries(t *testing.T) {
	runRows(t, []row{
		{name: "names are looked up", ports: []string{"http"}, docs: `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: $HOST}
spec:
  hosts: [$HOST.example]
  location: MESH_EXTERNAL
  resolution: DNS
  ports: [{number: 80, name: http, protocol: HTTP, targetPort: $OUTSIDE_HTTP}]
  endpoints: [{address: host.pilotfish.internal}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: $HOST-turns}
spec:
  hosts: [$HOST.turns.example]
  location: MESH_EXTERNAL
  resolution: DNS_ROUND_ROBIN
  ports: [{number: 9000, name: tcp, targetPort: $OUTSIDE_TCP}]
  endpoints: [{address: host.pilotfish.internal}]
`, check: func(w *testMesh, host string) error {
			got, err := w.expectStatus(200, "client", "http://"+host+".example/")
			if err != nil || got.Server != "outside" {
				return fmt.Errorf("%s %w", toJSON(got), err)
			}
			received, err := w.sendLine("client", host+".turns.example:9000", "hello", 1)
			return checkf(err == nil && received[0] == "outside heard hello", "%q %v", received, err)
		}},
		{name: "where callers want to go", ports: []string{"http"}, docs: `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: $HOST}
spec:
  hosts: [$HOST.example]
  location: MESH_EXTERNAL
  resolution: NONE
  ports: [{number: $OUTSIDE_HTTP, name: http, protocol: HTTP}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: $HOST}
spec: {hosts: [$HOST.example], http: [{headers: {request: {set: {x-seen: "yes"}}}, route: [{destination: {host: $HOST.example}}]}]}
`, check: func(w *testMesh, host string) error {
			got, err := w.send("client", request{URL: "http://" + w.outsideAddress() + ":" + w.outside[portHTTP] + "/", Host: host + ".example"})
			return checkf(err == nil && got.Server == "outside" && got.Echo.Header.Get("X-Seen") == "yes", "%s %v", toJSON(got), err)
		}},
		{name: "blocks of addresses", ports: []string{"http"}, docs: `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: $HOST}
spec:
  hosts: [$HOST.example]
  addresses: [240.66.0.0/16, 240.67.0.1]
  location: MESH_EXTERNAL
  resolution: STATIC
  ports: [{number: 9100, name: tcp, protocol: TCP, targetPort: 9000}, {number: 9101, name: any, targetPort: 8081}]
  endpoints: [{address: $V1}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: $HOST-narrow}
spec:
  hosts: [$HOST.narrow.example]
  addresses: [240.66.7.0/24]
  location: MESH_EXTERNAL
  resolution: STATIC
  ports: [{number: 9100, name: tcp, protocol: TCP, targetPort: 9000}]
  endpoints: [{address: $V2}]
`, check: func(w *testMesh, host string) error {
			for address, server := range map[string]string{"240.66.1.9": "v1", "240.67.0.1": "v1", "240.66.7.9": "v2"} {
				received, err := w.sendLine("client", address+":9100", "hello", 1)
				if err != nil || received[0] != server+" heard hello" {
					return fmt.Errorf("%s: %q %w", address, received, err)
				}
			}
			for _, address := range []string{"240.66.1.9", "240.67.0.1"} {
				got, err := w.send("client", request{URL: "http://" + address + ":9101/", Host: host + ".example:9101"})
				if err != nil || got.Server != "v1" {
					return fmt.Errorf("%s: %s %w", address, toJSON(got), err)
				}
			}
			return nil
		}},
		{name: "hosts of one address that are served alike", ports: []string{"http"}, docs: `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: $HOST}
spec:
  hosts: [$HOST.one.example, $HOST.two.example]
  addresses: [240.68.0.1]
  location: MESH_EXTERNAL
  resolution: STATIC
  ports: [{number: 9100, name: tcp, protocol: TCP, targetPort: 9000}]
  endpoints: [{address: $V2}]
`, check: func(w *testMesh, host string) error {
			for _, name := range []string{host + ".one.example", host + ".two.example", "240.68.0.1"} {
				if received, err := w.sendLine("client", name+":9100", "hello", 1); err != nil || received[0] != "v2 heard hello" {
					return fmt.Errorf("%s: %q %w", name, received, err)
				}
			}
			return nil
		}},
		{name: "addresses given out by the mesh", ports: []string{"http"}, docs: `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: $HOST-1}
spec: {hosts: [$HOST.one.example], location: MESH_INTERNAL, resolution: STATIC, ports: [{number: 9000, name: tcp}], endpoints: [{address: $V1, serviceAccount: server}]}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: $HOST-2}
spec: {hosts: [$HOST.two.example], location: MESH_INTERNAL, resolution: STATIC, ports: [{number: 9000, name: tcp}], endpoints: [{address: $V2, serviceAccount: server}]}
`, check: func(w *testMesh, host string) error {
			for name, server := range map[string]string{"one": "v1", "two": "v2"} {
				if received, err := w.sendLine("client", host+"."+name+".example:9000", "hello", 1); err != nil || received[0] != server+" heard hello" {
					return fmt.Errorf("%s: %q %w", name, received, err)
				}
			}
			return nil
		}},
		{name: "workloads that register themselves", ports: []string{"http"}, exclusive: []string{"other"}, docs: `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: $HOST, namespace: other}
spec:
  hosts: [$HOST.example]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP, targetPort: 8080}]
  workloadSelector: {labels: {guest: "yes"}}
`, check: func(w *testMesh, host string) error {
			// The workload receives requests while its probe succeeds, none while it fails, and receives them again
			// afterwards.
			if _, err := w.expectStatus(200, "client", "http://"+host+".example/"); err != nil {
				return err
			}
			_, sick := w.expectStatus(200, "other", "http://127.0.0.1:8080/health/bad")
			_, away := eventually(func() (reply, error) { return w.expectStatus(503, "client", "http://"+host+".example/") })
			_, well := w.expectStatus(200, "other", "http://127.0.0.1:8080/health/good")
			got, back := eventually(func() (reply, error) { return w.expectStatus(200, "client", "http://"+host+".example/") })
			if err := errors.Join(sick, away, well, back); err != nil {
				return err
			}
			return checkf(got.Server == "other" && strings.Contains(got.Echo.Header.Get("X-Forwarded-Client-Cert"), "sa/client"), "%s", toJSON(got))
		}},
	})
}

func TestWorkloadMetadataOfSidecars(t *testing.T) {
	runRows(t, []row{
		{name: "unknown hosts by a proxy of the mesh", ports: []string{"http"}, exclusive: []string{"other"}, docs: outsideService(`{number: 9000, name: tcp, targetPort: $OUTSIDE_TCP}`) + `
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: $HOST, namespace: other}
spec:
  outboundTrafficPolicy: {mode: ALLOW_ANY, egressProxy: {host: $HOST.example, port: {number: 9000}}}
  egress: [{hosts: ["default/*"]}]
`, check: func(w *testMesh, host string) error {
			received, err := w.sendLine("other", "192.0.2.77:1234", "hello", 1)
			return checkf(err == nil && received[0] == "outside heard hello", "%q %v", received, err)
		}},
		{name: "unknown hosts not at all", ports: []string{"http"}, exclusive: []string{"other"}, docs: `
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: $HOST, namespace: other}
spec: {outboundTrafficPolicy: {mode: REGISTRY_ONLY}, egress: [{hosts: ["default/*"]}]}
`, check: func(w *testMesh, host string) error {
			if got, err := w.get("other", "http://"+w.outsideAddress()+":"+w.outside[portHTTP]+"/"); err == nil && got.Server != "" {
				return fmt.Errorf("what is not in the registry answers by HTTP: %s", toJSON(got))
			}
			if received, err := w.sendLine("other", w.outsideAddress()+":"+w.outside[portTCP], "hello", 1); err == nil {
				return fmt.Errorf("what is not in the registry answers: %q", received)
			}
			_, err := w.expectStatus(200, "other", "http://"+host+".default/")
			return err
		}},
		{name: "bootstrap as patches say", ports: []string{"http"}, check: func(w *testMesh, _ string) error {
			for from, patched := range map[string]bool{"other": true, "guarded": false} {
				got, err := w.expectStatus(200, from, "http://127.0.0.1:15000/clusters")
				if err != nil || strings.Contains(got.Body, "from-a-patch::") != patched || !strings.Contains(got.Body, "xds-grpc::") {
					return fmt.Errorf("%s: %s %w", from, got.Body, err)
				}
			}
			return nil
		}},
		{name: "proxyconfig when a sidecar starts", ports: []string{"http"}, check: func(w *testMesh, _ string) error {
			got, err := w.expectStatus(200, "other", "http://127.0.0.1:15000/server_info")
			if err != nil {
				return err
			}
			var info struct {
				Options struct {
					Concurrency int `json:"concurrency"`
				} `json:"command_line_options"`
				Node struct {
					Metadata map[string]any `json:"metadata"`
				} `json:"node"`
			}
			if err := json.Unmarshal([]byte(got.Body), &info); err != nil {
				return err
			}
			return checkf(info.Options.Concurrency == 1 && info.Node.Metadata["SAID_BY"] == "proxyconfig", "%d workers, %v", info.Options.Concurrency, info.Node.Metadata)
		}},
		{name: "ways into a workload", ports: []string{"http"}, exclusive: []string{"guarded"}, docs: `
apiVersion: v1
kind: Service
metadata: {name: $HOST-in}
spec: {selector: {app: guarded}, ports: [{name: http-in, port: 80, targetPort: 9997}]}
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: $HOST}
spec: {selector: {matchLabels: {app: guarded}}, mtls: {mode: STRICT}, portLevelMtls: {9443: {mode: DISABLE}, 9998: {mode: DISABLE}}}
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: $HOST}
spec:
  workloadSelector: {labels: {app: guarded}}
  ingress:
  - {port: {number: 9443, protocol: HTTPS, name: https}, defaultEndpoint: "127.0.0.1:8080", tls: {mode: SIMPLE, serverCertificate: $DIR/server.crt, privateKey: $DIR/server.key}}
  - {port: {number: 9997, protocol: HTTP, name: socket}, defaultEndpoint: "unix://$DIR/guarded.sock"}
  - {port: {number: 9998, protocol: HTTP, name: own}, bind: 127.0.0.1, captureMode: NONE, defaultEndpoint: "unix://$DIR/guarded.sock"}
`, check: func(w *testMesh, host string) error {
			if got, err := w.getTLS("", w.guardedAt(9443), "server.example"); err != nil || got.Server != "guarded" {
				return fmt.Errorf("by TLS: %s %w", toJSON(got), err)
			}
			for from, url := range map[string]string{"client": "http://" + host + "-in/", "guarded": "http://127.0.0.1:9998/"} {
				if got, err := w.expectStatus(200, from, url); err != nil || got.Server != "guarded" || got.Remote != "@" {
					return fmt.Errorf("from %s: %s %w", from, toJSON(got), err)
				}
			}
			return nil
		}},
	})
}
