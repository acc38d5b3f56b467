//go:build linux

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/pilotfish-mesh/pilotfish/bench/fleet"
)

// planeMesh writes and edits the configuration files of a mesh with many services. Each service has a ServiceEntry with
// endpoints, and a VirtualService. Every tenth service also has a DestinationRule.
type planeMesh struct {
	dir      string
	services int
	edits    int // number of edits so far; edits contain it, so that each is unique
}

const (
	planeEndpoints  = 10
	planeNamespaces = 10
)

func serviceHost(i int) string { return fmt.Sprintf("s%05d.mesh.example", i) }

// write writes all files.
func (m *planeMesh) write() error {
	if err := os.MkdirAll(m.dir, 0o755); err != nil {
		return err
	}
	for i := range m.services {
		files := map[string]string{
			"service": m.service(i, serviceHost(i), fmt.Sprintf("10.%d.%d.1", i/250, i%250)),
			"routes":  m.routes(i, "none"),
		}
		if i%10 == 0 {
			files["rule"] = m.rule(i, 10)
		}
		for kind, text := range files {
			if err := os.WriteFile(m.file(kind, i), []byte(text), 0o644); err != nil {
				return err
			}
		}
	}
	return nil
}

func (m *planeMesh) file(kind string, i int) string {
	return filepath.Join(m.dir, fmt.Sprintf("%s-%05d.yaml", kind, i))
}

func (m *planeMesh) service(i int, host, first string) string {
	var b strings.Builder
	fmt.Fprintf(&b, `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: s%d, namespace: ns%d}
spec:
  hosts: [%s]
  addresses: [240.%d.%d.%d]
  resolution: STATIC
  location: MESH_INTERNAL
  ports: [{number: 80, name: http, protocol: HTTP}]
  endpoints:
  - {address: %s, serviceAccount: sa%d, labels: {version: v0, security.istio.io/tlsMode: istio}}
`, i, i%planeNamespaces, host, 1+i/62500, i/250%250, i%250+1, first, i)
	for e := 1; e < planeEndpoints; e++ {
		fmt.Fprintf(&b, "  - {address: 10.%d.%d.%d, serviceAccount: sa%d, labels: {version: v%d, security.istio.io/tlsMode: istio}}\n",
			100+i/250%100, i%250, e+1, i, e%2)
	}
	return b.String()
}

func (m *planeMesh) routes(i int, mark string) string {
	return fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: s%d, namespace: ns%d}
spec: {hosts: [%s], http: [{timeout: 5s, headers: {request: {set: {x-mark: %s}}}, route: [{destination: {host: %[3]s}}]}]}
`, i, i%planeNamespaces, serviceHost(i), mark)
}

func (m *planeMesh) rule(i, seconds int) string {
	return fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: s%d, namespace: ns%d}
spec: {host: %s, trafficPolicy: {connectionPool: {tcp: {connectTimeout: %ds}}}}
`, i, i%planeNamespaces, serviceHost(i), seconds)
}

// planeEdit is a change of one file. Clients recognize its effect by a marker in the responses.
type planeEdit struct {
	file, text string // an empty text removes the file
	sign       fleet.Sign
	last       bool // measure until the last response, not until the response with the marker
	host       string
}

// planeEdits are the measured kinds of changes. Each round of a kind changes a different service.
var planeEdits = []struct {
	name string
	edit func(*planeMesh) planeEdit
}{
	{"endpoint", (*planeMesh).editEndpoint},
	{"VirtualService", (*planeMesh).editRoutes},
	{"DestinationRule", (*planeMesh).editRule},
	{"service added", (*planeMesh).addService},
	{"service removed", (*planeMesh).removeService},
}

func (m *planeMesh) next() int { m.edits++; return m.edits * 7 % m.services }

func (m *planeMesh) editEndpoint() planeEdit {
	i := m.next()
	address := fmt.Sprintf("10.250.%d.%d", m.edits/250, m.edits%250+1)
	return planeEdit{m.file("service", i), m.service(i, serviceHost(i), address), fleet.Sign{Text: address, Types: []string{"ClusterLoadAssignment"}}, false, serviceHost(i)}
}

func (m *planeMesh) editRoutes() planeEdit {
	i := m.next()
	mark := fmt.Sprintf("mark-%d-", m.edits)
	return planeEdit{m.file("routes", i), m.routes(i, mark), fleet.Sign{Text: mark, Types: []string{"RouteConfiguration", "VirtualHost"}}, false, serviceHost(i)}
}

func (m *planeMesh) editRule() planeEdit {
	i := m.next() / 10 * 10
	return planeEdit{m.file("rule", i), m.rule(i, 11+m.edits), fleet.Sign{Text: serviceHost(i), Types: []string{"Cluster"}}, false, serviceHost(i)}
}

func (m *planeMesh) addService() planeEdit {
	m.edits++
	host := fmt.Sprintf("added-%d.mesh.example", m.edits)
	return planeEdit{m.file("added", m.edits), m.service(60000+m.edits, host, fmt.Sprintf("10.251.%d.%d", m.edits/250, m.edits%250+1)),
		fleet.Sign{Text: host, Types: []string{"RouteConfiguration", "VirtualHost"}}, true, host}
}

// removeService removes the last added service.
func (m *planeMesh) removeService() planeEdit {
	return planeEdit{m.file("added", m.edits), "", fleet.Sign{Text: fmt.Sprintf("added-%d.mesh.example", m.edits), Types: []string{"Cluster"}}, true, fmt.Sprintf("added-%d.mesh.example", m.edits)}
}

// apply makes the change. since is the time immediately before the change, in nanoseconds since 1970.
func (e planeEdit) apply() (since int64, err error) {
	if e.text == "" {
		since = now()
		return since, os.Remove(e.file)
	}
	draft := e.file + ".tmp"
	if err := os.WriteFile(draft, []byte(e.text), 0o644); err != nil {
		return 0, err
	}
	since = now()
	return since, os.Rename(draft, e.file)
}
