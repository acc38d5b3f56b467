package api

import (
	"fmt"
	"strings"
	"testing"
)

// TestPoliciesOfConnections covers connection settings per destination and caller. It observes them at the destination.
func TestPoliciesOfConnections(t *testing.T) {
	runRows(t, []row{
		{name: "rule for some callers", ports: []string{"http"}, docs: `
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: $HOST}
spec: {host: $HOST, workloadSelector: {matchLabels: {app: client}}, trafficPolicy: {tls: {mode: DISABLE}}}
`, check: func(w *testMesh, host string) error {
			for from, mutual := range map[string]bool{"client": false, "guarded": true, "other": true} {
				got, err := w.expectStatus(200, from, "http://"+host+".default/")
				if err != nil || (got.Echo.Header.Get("X-Forwarded-Client-Cert") != "") != mutual {
					return fmt.Errorf("from %s: %s %v", from, toJSON(got), err)
				}
			}
			return nil
		}},
		{name: "proxy protocol", ports: []string{"http"}, docs: `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: $HOST}
spec:
  hosts: [$HOST.example]
  addresses: [240.7.7.1]
  location: MESH_EXTERNAL
  resolution: STATIC
  ports: [{number: 9000, name: tcp, targetPort: $OUTSIDE_TCP}]
  endpoints: [{address: $OUTSIDE}]
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: $HOST}
spec: {host: $HOST.example, trafficPolicy: {proxyProtocol: {version: V1}}}
`, check: func(w *testMesh, host string) error {
			received, err := w.sendLine("client", host+".example:9000", "hello", 2)
			return checkf(err == nil && strings.HasPrefix(received[0], "outside heard PROXY TCP4 ") && received[1] == "outside heard hello", "%q %v", received, err)
		}},
		{name: "proxy protocol of version 2", ports: []string{"http"}, docs: `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: $HOST}
spec:
  hosts: [$HOST.example]
  addresses: [240.7.7.2]
  location: MESH_EXTERNAL
  resolution: STATIC
  ports: [{number: 9000, name: tcp, targetPort: $OUTSIDE_TCP}]
  endpoints: [{address: $OUTSIDE}]
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: $HOST}
spec: {host: $HOST.example, trafficPolicy: {proxyProtocol: {version: V2}}}
`, check: func(w *testMesh, host string) error {
			// The header is binary and contains line breaks.
			received, err := w.sendLine("client", host+".example:9000", "hello", 5)
			return checkf(err == nil && received[3] == "outside heard QUIT" && strings.HasPrefix(received[4], "outside heard !\x11"), "%q %v", received, err)
		}},
		{name: "headless", ports: []string{"http"}, docs: `
apiVersion: v1
kind: Service
metadata: {name: $HOST-each}
spec: {clusterIP: None, selector: {app: server}, ports: [{name: http, port: 8080}, {name: tcp, port: 9000}]}
`, check: func(w *testMesh, host string) error {
			if got, err := w.expectStatus(200, "client", "http://"+host+"-each:8080/"); err != nil || !strings.Contains(got.Echo.Header.Get("X-Forwarded-Client-Cert"), "sa/client") {
				return fmt.Errorf("%s %v", toJSON(got), err)
			}
			for _, instance := range []string{"v1", "v2"} {
				got, err := w.expectStatus(200, "client", "http://"+instance+"."+host+"-each:8080/")
				if err != nil || got.Server != instance || !strings.Contains(got.Echo.Header.Get("X-Forwarded-Client-Cert"), "sa/client") {
					return fmt.Errorf("%s: %s %v", instance, toJSON(got), err)
				}
			}
			received, err := w.sendLine("client", host+"-each:9000", "hello", 1)
			return checkf(err == nil && strings.HasSuffix(received[0], "heard hello"), "%q %v", received, err)
		}},
		{name: "rules of a namespace for itself", ports: []string{"http"}, docs: `
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: $HOST}
spec:
  hosts: [$HOST]
  exportTo: ["."]
  gateways: [mesh, $HOST]
  http:
  - {match: [{gateways: [$HOST]}], directResponse: {status: 298}}
  - directResponse: {status: 299}
`, check: func(w *testMesh, host string) error {
			if _, err := w.expectStatus(299, "client", "http://"+host+"/"); err != nil {
				return err
			}
			_, err := w.expectStatus(200, "other", "http://"+host+".default/")
			return err
		}, wantProblem: "no Gateway"},
		{name: "any name of a domain", ports: []string{"tls"}, docs: versions + `
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: $HOST}
spec:
  hosts: [$HOST]
  tls:
  - {match: [{port: 443, sniHosts: ["*.tls.example"]}], route: [{destination: {host: $HOST, subset: v2}}]}
  - {match: [{port: 443, sniHosts: [server.example]}], route: [{destination: {host: $HOST, subset: v1}}]}
`, check: func(w *testMesh, host string) error {
			for sni, server := range map[string]string{"x.tls.example": "v2", "y.tls.example": "v2", "server.example": "v1"} {
				if got, err := w.getTLS("client", host+":443", sni); err != nil || got.Server != server {
					return fmt.Errorf("%s: %s %v", sni, toJSON(got), err)
				}
			}
			return nil
		}},
		{name: "failover by labels", ports: []string{"http"}, docs: `
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: $HOST}
spec:
  host: $HOST
  trafficPolicy:
    loadBalancer: {localityLbSetting: {failoverPriority: ["version=v2"]}}
    outlierDetection: {consecutive5xxErrors: 100, maxEjectionPercent: 100}
`, check: func(w *testMesh, host string) error {
			seen, err := w.countByServer(12, "client", "http://"+host+"/")
			return checkf(err == nil && seen["v2"] == 12, "%v %v", seen, err)
		}},
	})
}
