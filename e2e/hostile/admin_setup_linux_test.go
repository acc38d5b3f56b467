package hostile

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
	"github.com/pilotfish-mesh/pilotfish/mesh"
)

// adminMesh is the mesh that the rows of adminAttacks share.
//
// Its gateways edge and spare each have a listener at port 8000 whose routes lead to their own agent's status port, as a
// tenant's ServiceEntry would.
var adminMesh = sharedMesh{
	name: "admin", topology: adminTopology, documents: fmt.Sprintf(adminFilter, "edge", edgeProxy) + fmt.Sprintf(adminFilter, "spare", spareProxy),
}

// sharedMesh is a local mesh without capture that runs while at least one test uses it.
type sharedMesh struct {
	name, topology, documents string

	mu    sync.Mutex
	users int
	dir   string
	up    *exec.Cmd
	log   testenv.Buffer
}

const (
	adminNetwork = "127.199"
	edgeProxy    = adminNetwork + ".1.1"
	spareProxy   = adminNetwork + ".2.1"
)

const adminTopology = `
apiVersion: pilotfish.dev/v1alpha1
kind: Mesh
metadata: {name: admin}
spec:
  network: ` + adminNetwork + `.0.0/16
  config: documents.yaml
  workloads:
  - {name: edge, type: gateway, namespace: edge}
  - {name: spare, type: gateway, namespace: spare}
`

const adminFilter = `
apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: way-in, namespace: %[1]s}
spec:
  configPatches:
  - applyTo: BOOTSTRAP
    patch:
      operation: MERGE
      value:
        static_resources:
          clusters:
          - name: own-agent
            type: STATIC
            connect_timeout: 1s
            load_assignment: {cluster_name: own-agent, endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: %[2]s, port_value: 15020}}}}]}]}
          listeners:
          - name: way-in
            address: {socket_address: {address: %[2]s, port_value: 8000}}
            filter_chains:
            - filters:
              - name: envoy.filters.network.http_connection_manager
                typed_config:
                  "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
                  stat_prefix: way-in
                  route_config: {virtual_hosts: [{name: all, domains: ["*"], routes: [{match: {prefix: /}, route: {cluster: own-agent, host_rewrite_literal: localhost}}]}]}
                  http_filters: [{name: envoy.filters.http.router, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}]
---
`

// use starts the mesh for its first user and stops it after its last.
func (m *sharedMesh) use(t *testing.T) {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.users == 0 {
		m.start(t)
	}
	m.users++
	t.Cleanup(func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.users--; m.users == 0 {
			m.stop(t)
		}
	})
}

func (m *sharedMesh) start(t *testing.T) {
	t.Helper()
	var err error
	if m.dir, err = os.MkdirTemp("", "hostile-"+m.name+"-"); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"mesh.yaml": m.topology, "documents.yaml": m.documents} {
		if err := os.WriteFile(filepath.Join(m.dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	m.up = m.pilotfish(t, "up", "-f", filepath.Join(m.dir, "mesh.yaml"), "--no-capture", "--envoy-path", testenv.Envoy(t))
	m.up.Stdout, m.up.Stderr = &m.log, &m.log
	if err := m.up.Start(); err != nil {
		t.Fatal(err)
	}
	ready := false
	defer func() {
		if !ready {
			m.stop(t)
		}
	}()
	testenv.Eventually(t, "the mesh is ready", func() error {
		status, err := m.status(t)
		if err == nil && !status.Ready {
			err = fmt.Errorf("not ready: %+v", status.Instances)
		}
		return err
	})
	ready = true
}

func (m *sharedMesh) stop(t *testing.T) {
	_ = m.up.Process.Signal(syscall.SIGTERM)
	if err := m.up.Wait(); err != nil || t.Failed() {
		t.Logf("the mesh ended (%v):\n%s", err, m.log.String())
	}
	_ = os.RemoveAll(m.dir)
}

func (m *sharedMesh) pilotfish(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(testenv.Bin(t, "pilotfish"), args...)
	cmd.Env = append(os.Environ(), "XDG_RUNTIME_DIR="+m.dir, "XDG_STATE_HOME="+filepath.Join(m.dir, "state"))
	return cmd
}

func (m *sharedMesh) status(t *testing.T) (mesh.Status, error) {
	t.Helper()
	var status mesh.Status
	out, err := m.pilotfish(t, "status", "--name", m.name, "-o", "json").Output()
	if len(out) > 0 { // a mesh that is not ready yet is an error of the command
		err = json.Unmarshal(out, &status)
	}
	return status, err
}

// instance returns what the mesh reports of an instance.
func (m *sharedMesh) instance(t *testing.T, name string) mesh.InstanceStatus {
	t.Helper()
	status, err := m.status(t)
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range status.Instances {
		if i.Name == name {
			return i
		}
	}
	t.Fatalf("the mesh has no instance %s", name)
	return mesh.InstanceStatus{}
}

// agentDir is the working directory of an instance's agent.
func (m *sharedMesh) agentDir(name string) string {
	return filepath.Join(m.dir, "pilotfish", m.name, "workloads", name)
}

// send sends a request and returns the answer. Header "Host" is that of the request.
func send(t *testing.T, method, url string, header ...string) (code int, body string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		if header[i] == "Host" {
			r.Host = header[i+1]
		}
		r.Header.Set(header[i], header[i+1])
	}
	client := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(text)
}

// anotherUser is neither the test's user nor root.
const anotherUser = 65534

// runAs runs a command as a user in a directory that the user can enter.
func runAs(t *testing.T, uid uint32, name string, args ...string) (output string, err error) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to start a process of another user")
	}
	cmd := exec.Command(name, args...)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err = cmd.Run()
	return strings.TrimSpace(out.String()), err
}
