package traffic

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/meshfuzz"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
	"github.com/pilotfish-mesh/pilotfish/mesh"
	"github.com/pilotfish-mesh/pilotfish/mesh/topology"
)

const kept = 2

// topologyText has a client, and two services with two versions each. The servers wait for the client's first line. On a
// busy machine, the client's proxy may finish its handshake too late for a server that sends first.
const topologyText = `
apiVersion: pilotfish.dev/v1alpha1
kind: Mesh
metadata: {name: NAME}
spec:
  config: istio
  mesh: {protocolDetectionTimeout: 20s}
  workloads:
  - {name: gateway, type: gateway, namespace: ns0, labels: {istio: edge}, serviceAccount: gateway}
  - {name: client, namespace: ns2, serviceAccount: client, command: ["${PILOTFISH}", idle]}
  - {name: s0-v0, namespace: ns0, labels: {app: s0, version: v0}, serviceAccount: s0, PORTS}
  - {name: s0-v1, namespace: ns0, labels: {app: s0, version: v1}, serviceAccount: s0, PORTS}
  - {name: s1-v0, namespace: ns1, labels: {app: s1, version: v0}, serviceAccount: s1, PORTS}
  - {name: s1-v1, namespace: ns1, labels: {app: s1, version: v1}, serviceAccount: s1, PORTS}
`

const ports = `command: ["${PILOTFISH}", serve], ports: [{name: http, port: 8080, protocol: HTTP}, {name: tcp, port: 9000, protocol: TCP}]`

// constant is not edited: it requires client certificates unless an edit permits otherwise, and routes TCP at the
// gateway to one of the services.
const constant = `
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: istio-system}
spec: {mtls: {mode: STRICT}}
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: kept, namespace: ns0}
spec:
  selector: {istio: edge}
  servers:
  - {port: {number: 8000, name: http, protocol: HTTP}, hosts: [kept.example.com]}
  - {port: {number: 8001, name: tcp, protocol: TCP}, hosts: ["*"]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: kept-tcp, namespace: ns0}
spec:
  hosts: ["*"]
  gateways: [kept]
  tcp: [{match: [{port: 8001}], route: [{destination: {host: s1.ns1.svc.cluster.local, port: {number: 9000}}}]}]
`

// edge leads requests at the gateway to both services.
const edge = `
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: kept, namespace: ns0}
spec:
  hosts: [kept.example.com]
  gateways: [kept]
  http:
  - route:
    - {destination: {host: s0.ns0.svc.cluster.local, port: {number: 80}}, weight: %d}
    - {destination: {host: s1.ns1.svc.cluster.local, port: {number: 80}}, weight: %d}
`

// testMesh is a running mesh whose documents are edited.
type testMesh struct {
	*mesh.Mesh
	t     *testing.T
	name  string
	dir   string
	state string
	edits *meshfuzz.Mesh
	ctx   context.Context
	// onAddresses is called once the instances have their addresses, before they are awaited; it may be nil.
	onAddresses func()
	// marks counts the documents that were written only to detect that the control planes have read all earlier ones.
	marks int
}

// startMesh starts the mesh. more is added to the environment of its agents.
func startMesh(t *testing.T, envoy string, more ...string) *testMesh {
	t.Helper()
	w := layOut(t, "traffic-"+strings.ReplaceAll(envoy, ".", "-"), meshfuzz.Options{})
	w.newMesh(envoy, more...)
	w.run()
	return w
}

// layOut writes the documents of a mesh.
func layOut(t *testing.T, name string, services meshfuzz.Options) *testMesh {
	t.Helper()
	if err := mesh.CanCapture(); err != nil {
		t.Skip(err)
	}
	dir, err := os.MkdirTemp("/tmp", "pftr") // short enough for sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	services.Permanent, services.Port, services.TCPPort, services.Workloads = kept, portHTTP, portTCP, true
	w := &testMesh{t: t, name: name, dir: dir, state: filepath.Join(dir, "state"), edits: meshfuzz.New(23, services)}
	w.write("mesh.yaml", strings.NewReplacer("NAME", name, "PORTS", ports).Replace(topologyText))
	w.write("istio/constant.yaml", constant)
	w.write("istio/edge.yaml", fmt.Sprintf(edge, 50, 50))
	for _, document := range w.edits.Documents() {
		w.write("istio/"+document.File(), string(document.Document))
	}
	return w
}

// newMesh makes the mesh of the documents, without starting it.
func (w *testMesh) newMesh(envoy string, more ...string) {
	w.t.Helper()
	top, err := topology.Load(filepath.Join(w.dir, "mesh.yaml"))
	if err != nil {
		w.t.Fatal(err)
	}
	w.Mesh, err = mesh.New(mesh.Config{
		Topology: top, Environ: os.Environ(), RuntimeDir: filepath.Join(w.dir, "run"), StateDir: w.state, Network: mesh.Captured{},
		EnvoyPath: testenv.EnvoyOf(w.t, envoy), GuardCommand: []string{os.Args[0], "guard"},
		// They are renewed after a tenth of their life, and have much time left then.
		AgentCommand: slices.Concat([]string{"/usr/bin/env", "SECRET_TTL=" + life.String(), "SECRET_GRACE_PERIOD_RATIO=0.9"}, more, []string{testenv.Bin(w.t, "pilotfish-agent")}),
	})
	if err != nil {
		w.t.Fatal(err)
	}
}

// run runs the mesh until the test ends, and waits until it is ready.
func (w *testMesh) run() {
	w.t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	w.ctx = ctx
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	w.t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			w.t.Errorf("the mesh ended with %v", err)
		}
	})
	if w.onAddresses != nil {
		testenv.Eventually(w.t, "the instances have addresses", func() error {
			if len(w.Instances()) == 0 {
				return errors.New("they have none")
			}
			return nil
		})
		w.onAddresses()
	}
	patience, cancel := context.WithTimeout(ctx, 3*time.Minute) // a busy machine starts this many processes slowly
	defer cancel()
	if err := w.WaitReady(patience); err != nil {
		for _, i := range w.Status(ctx).Instances {
			w.t.Logf("%s: ready %v, %v", i.Name, i.Ready, i.Reasons)
		}
		w.t.Fatalf("the mesh is not ready: %v", err)
	}
}

// write puts a file in place whole; without content it removes it.
func (w *testMesh) write(name, content string) {
	w.t.Helper()
	path := filepath.Join(w.dir, name)
	if content == "" {
		_ = os.Remove(path)
		return
	}
	err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path+"~", []byte(content), 0o644), os.Rename(path+"~", path))
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *testMesh) instance(name string) *topology.Instance {
	for _, i := range w.Instances() {
		if i.Name == name {
			return i
		}
	}
	w.t.Fatalf("the mesh has no instance %s", name)
	return nil
}

// edgeAddress is the address of a port of the gateway.
func (w *testMesh) edgeAddress(port int) string {
	return net.JoinHostPort(w.instance("gateway").Proxy.String(), fmt.Sprint(port))
}
