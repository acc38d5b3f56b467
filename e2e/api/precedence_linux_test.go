package api

import (
	"fmt"
	"testing"
)

// hostRule returns a VirtualService that routes the row's host to a subset.
func hostRule(name, namespace, exportTo, subset string) string {
	return fmt.Sprintf(`
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: %s, namespace: %s}
spec:
  hosts: [$HOST.default.svc.cluster.local]
  exportTo: [%q]
  http: [{route: [{destination: {host: $HOST.default.svc.cluster.local, subset: %s}}]}]
`, name, namespace, exportTo, subset)
}

// expectServer fails if another server answers one of several requests.
func (w *testMesh) expectServer(server, from, url string) error {
	seen, err := w.countByServer(4, from, url)
	return checkf(err == nil && seen[server] == 4, "from %s: %v %v, want only %s", from, seen, err, server)
}

func TestPrecedenceOfRules(t *testing.T) {
	runRows(t, []row{
		{name: "equals by name", ports: []string{"http"}, docs: versions + hostRule("$HOST-b", "default", "*", "v1") + hostRule("$HOST-a", "other", "*", "v2"),
			wantProblem: "because it comes first in name order",
			check:       func(w *testMesh, host string) error { return w.expectServer("v2", "client", "http://"+host+"/") }},
		{name: "private before public", ports: []string{"http"}, docs: versions + hostRule("$HOST-a", "other", "*", "v1") + hostRule("$HOST-b", "default", ".", "v2"),
			check: func(w *testMesh, host string) error {
				if err := w.expectServer("v2", "client", "http://"+host+"/"); err != nil {
					return err
				}
				return w.expectServer("v1", "other", "http://"+host+".default/")
			}},
		{name: "private in two namespaces", ports: []string{"http"}, docs: versions + hostRule("$HOST-a", "other", ".", "v1") + hostRule("$HOST-b", "default", ".", "v2"),
			check: func(w *testMesh, host string) error {
				if err := w.expectServer("v2", "client", "http://"+host+"/"); err != nil {
					return err
				}
				return w.expectServer("v1", "other", "http://"+host+".default/")
			}},
		{name: "gateway route without a port", exclusive: []string{"8093"}, ports: []string{"http2", "grpc"},
			docs:        edgeDocs(`{port: {number: 8093, name: http, protocol: HTTP}, hosts: ["*"]}`, `http: [{route: [{destination: {host: $HOST}}]}]`),
			wantProblem: "has no port 8093, at which the traffic arrives: requests to it are answered with 503",
			check: func(w *testMesh, host string) error {
				got, err := w.getAtEdge(8093, host+".example")
				return checkf(err == nil && got.Status == 503, "%d %v", got.Status, err)
			}},
		{name: "mirror to nowhere", ports: []string{"http"}, wantProblem: "nowhere.example: the copies of requests are dropped", docs: versions + `
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: $HOST}
spec: {hosts: [$HOST], http: [{mirror: {host: nowhere.example}, route: [{destination: {host: $HOST, subset: v2}}]}]}
`, check: func(w *testMesh, host string) error { return w.expectServer("v2", "client", "http://"+host+"/") }},
	})
}
