package mesh

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pilotfish-mesh/pilotfish/mesh/topology"
)

// The workloads strict and open have sidecars, and plain has none. plain has two instances.
const plainWorkloads = `
  config: istio
  workloads:
  - name: strict
    serviceAccount: alice
    command: ["${PILOTFISH}", caller]
    env: {PORT_TCP: "9000"}
    ports: [{name: http, port: 9080, protocol: HTTP}, {name: tcp, port: 9000}]
  - name: open
    serviceAccount: bob
    command: ["${PILOTFISH}", caller]
    env: {PORT_TCP: "9000"}
    ports: [{name: http, port: 9080, protocol: HTTP}, {name: tcp, port: 9000}]
  - name: plain
    sidecar: false
    replicas: 2
    command: ["${PILOTFISH}", caller]
    env: {PORT_TCP: "9000"}
    ports: [{name: http, port: 9080, protocol: HTTP}, {name: tcp, port: 9000}]
    upstreams:
    - {name: strict-http, host: strict, port: 80}
    - {name: open-http, host: open, port: 80}
    - {name: open-tcp, host: open, port: 9000}
`

const plainServices = `
apiVersion: v1
kind: Service
metadata: {name: strict}
spec:
  selector: {app: strict}
  ports: [{name: http, port: 80, targetPort: 9080}, {name: tcp, port: 9000}]
---
apiVersion: v1
kind: Service
metadata: {name: open}
spec:
  selector: {app: open}
  ports: [{name: http, port: 80, targetPort: 9080}, {name: tcp, port: 9000}]
---
apiVersion: v1
kind: Service
metadata: {name: plain}
spec:
  selector: {app: plain}
  ports: [{name: http, port: 80, targetPort: 9080}, {name: tcp, port: 9000}]
---
apiVersion: v1
kind: Service
metadata: {name: each-open}
spec:
  clusterIP: None
  selector: {app: open}
  ports: [{name: http, port: 9080}]
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: istio-system}
spec: {mtls: {mode: STRICT}}
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: open, namespace: default}
spec: {selector: {matchLabels: {app: open}}, mtls: {mode: PERMISSIVE}}
`

// call returns the body of a response of host, or the error, to an HTTP request of the instance's application.
func (r *testMesh) call(from *topology.Instance, host string) string {
	return getBody(r.client(from.Name), fmt.Sprintf("http://%s:9080/call/%s", from.App, host))
}

func startPlainMesh(t *testing.T, network Network, workloads string) *testMesh {
	t.Helper()
	cfg := testConfig(t, topologyWith(t, workloads, plainServices))
	cfg.Network, cfg.AgentCommand = network, []string{os.Args[0], "agent"}
	m := startMesh(t, cfg)
	m.waitReady()
	return m
}

func TestCapturedWorkloadWithoutSidecarIsOutsideTheMesh(t *testing.T) {
	needNamespaces(t)
	m := startPlainMesh(t, Captured{}, strings.ReplaceAll(plainWorkloads, `{PORT_TCP: "9000"}`, `{PILOTFISH_APP_ADDRESS: "", PORT_TCP: "9000"}`))
	strict, open, plain := m.Instances()[0], m.Instances()[1], m.Instances()[2]
	if answer := m.call(plain, "open"); answer != "200 open was called by " {
		t.Errorf("the first call after the mesh is ready: %s", answer)
	}
	m.callersReachPlainInstances(strict)

	for _, host := range []string{"open", "open.default", "open.default.svc.cluster.local", "each-open:9080", "open.each-open:9080"} {
		m.plaintextIsAccepted(plain, host)
	}
	m.plaintextIsRefused(plain, "strict", "strict:9000")
	tcp := fmt.Sprintf("http://%s:9080/tcp/open:9000", plain.App)
	if answer := getBody(m.client("plain-1"), tcp); answer != "200 open was called from 127.0.0.6" {
		t.Errorf("TCP to open: %s", answer)
	}
	if answer := getBody(m.client("plain-1"), fmt.Sprintf("http://%s:9080/tcp/nosuch:9000", plain.App)); !strings.Contains(answer, "no such host") {
		t.Errorf("an unknown name: %s", answer)
	}
	m.machineIsReached("plain-1")
	if got := m.call(open, "plain"); !strings.Contains(got, "was called by") {
		t.Errorf("a call of open: %s", got)
	}
	m.plainInstanceHasNoProxy()
	m.plainApplicationIsRestarted("plain-1")

	execed := exec.Command(os.Args[0], "exec", m.cfg.RuntimeDir, m.Name(), "plain-1", "sh", "-c", "readlink /proc/self/ns/net; cat /etc/resolv.conf")
	out, err := execed.Output()
	network, _ := os.Readlink(procFile(m.instance("plain-1").App.PID, "ns/net"))
	if err != nil || !strings.HasPrefix(string(out), network+"\n") || !strings.Contains(string(out), "default.svc.cluster.local") {
		t.Errorf("exec prints %s (%v); the application has %s", out, err, network)
	}
}

func TestWorkloadWithoutSidecarAndCaptureUsesUpstreams(t *testing.T) {
	m := startPlainMesh(t, Loopback{}, plainWorkloads)
	strict, plain := m.Instances()[0], m.Instances()[2]
	m.callersReachPlainInstances(strict)

	m.plaintextIsAccepted(plain, plain.UpstreamAddress(1).String())
	m.plaintextIsRefused(plain, plain.UpstreamAddress(0).String(), "")
	tcp := fmt.Sprintf("http://%s:9080/tcp/%s", plain.App, plain.UpstreamAddress(2))
	if answer := getBody(m.client("plain-1"), tcp); !strings.HasPrefix(answer, "200 open was called from 127.") {
		t.Errorf("TCP to open: %s", answer)
	}
	for name, want := range map[string]string{
		"open": "200 open was called by ", "open.default.svc.cluster.local": "200 open was called by ",
		"plain.default.svc.cluster.local:9080": "was called by ", "nosuch.default.svc.cluster.local": "no such host",
	} {
		if got := getBody(m.client("plain-1"), fmt.Sprintf("http://%s:9080/dial/%s", plain.App, name)); !strings.Contains(got, want) {
			t.Errorf("a call of %s by DNS: %s", name, got)
		}
	}
	m.plainInstanceHasNoProxy()
	m.plainApplicationIsRestarted("plain-1")
}

// callersReachPlainInstances checks that a sidecar sends plaintext to both instances of plain.
func (r *testMesh) callersReachPlainInstances(from *topology.Instance) {
	r.t.Helper()
	answers := map[string]int{}
	eventually(r.t, "responses of both instances without sidecar", func() bool {
		answers[r.call(from, "plain")]++
		return answers["200 plain-1 was called by "] > 0 && answers["200 plain-2 was called by "] > 0
	})
}

func (r *testMesh) plaintextIsAccepted(from *topology.Instance, host string) {
	r.t.Helper()
	var answer string
	eventually(r.t, "a call of "+host, func() bool {
		answer = r.call(from, host)
		return strings.HasPrefix(answer, "200 ")
	})
	if answer != "200 open was called by " {
		r.t.Errorf("the call of %s: %s", host, answer)
	}
}

// plaintextIsRefused checks that the sidecar at an address, which requires mutual TLS, closes plaintext connections.
func (r *testMesh) plaintextIsRefused(from *topology.Instance, http, tcp string) {
	r.t.Helper()
	if answer := r.call(from, http); !strings.HasPrefix(answer, "502 ") || !strings.Contains(answer, "EOF") && !strings.Contains(answer, "reset") {
		r.t.Errorf("the plaintext call of %s: %s", http, answer)
	}
	if tcp == "" {
		return
	}
	if answer := getBody(r.client(from.Name), fmt.Sprintf("http://%s:9080/tcp/%s", from.App, tcp)); strings.Contains(answer, "was called") {
		r.t.Errorf("the plaintext connection to %s: %s", tcp, answer)
	}
}

// plainInstanceHasNoProxy checks that no agent and no Envoy runs for plain-1, and what the status reports.
func (r *testMesh) plainInstanceHasNoProxy() {
	r.t.Helper()
	i := r.instance("plain-1")
	if !i.Ready || i.App == nil || i.App.State != ProcessRunning || i.Agent != (ProcessStatus{State: ProcessNone}) || i.EnvoyPID != 0 ||
		i.Certificate != nil || i.Config.State != ConfigNone || i.ProxyAddress != i.AppAddress {
		r.t.Errorf("the status is %+v", i)
	}
	if _, err := os.Stat(r.agentDir(r.Instances()[2])); err == nil {
		r.t.Error("the instance has an agent's directory")
	}
	if pid := r.EnvoyPID("plain-1"); pid != 0 {
		r.t.Errorf("Envoy %d belongs to plain-1", pid)
	}
	for _, variable := range []string{"PILOTFISH_TOKEN_FILE", "PILOTFISH_TOKEN_URL"} {
		if env, err := os.ReadFile(procFile(i.App.PID, "environ")); err != nil || strings.Contains(string(env), variable) {
			r.t.Errorf("the application has %s (%v)", variable, err)
		}
	}
	client, err := Connect(r.cfg.RuntimeDir, r.Name())
	if err != nil {
		r.t.Fatal(err)
	}
	defer client.Close()
	res, err := client.HTTP().Get("http://mesh/workloads/plain-1/envoy/clusters")
	if err != nil {
		r.t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusNotFound {
		r.t.Errorf("the page of the missing Envoy has status %d", res.StatusCode)
	}
}

func (r *testMesh) plainApplicationIsRestarted(name string) {
	r.t.Helper()
	before := r.instance(name).App.PID
	if err := r.Restart(context.Background(), name); err != nil {
		r.t.Fatal(err)
	}
	eventually(r.t, "the restarted application", func() bool {
		i := r.instance(name)
		return i.Ready && i.App.PID != 0 && i.App.PID != before
	})
}

func TestStatusTableShowsThatSidecarIsMissing(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	s := Status{Mesh: "shop", Started: now, Network: "127.77.0.0/16", Control: ControlPlaneStatus{Running: true, Since: now}, Instances: []InstanceStatus{{
		Name: "plain", ProxyAddress: "127.77.1.1", Ready: true, App: &ProcessStatus{State: ProcessRunning, PID: 7},
		Agent: ProcessStatus{State: ProcessNone}, Config: ConfigStatus{State: ConfigNone},
	}}}
	var out strings.Builder
	if err := s.WriteTable(&out, now); err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(out.String(), "\n\n")
	want := `   WORKLOAD  ADDRESS     APPLICATION  SIDECAR  ENVOY  CERTIFICATE  CONFIG  REQ/S
✓  plain     127.77.1.1  pid 7        none     -      -            -       -
`
	if diff := cmp.Diff(want, table); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
