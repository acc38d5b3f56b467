package mesh

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
	"github.com/pilotfish-mesh/pilotfish/mesh/topology"
)

// testMesh is a mesh under test, with all of its events.
type testMesh struct {
	*Mesh
	t      *testing.T
	cancel context.CancelFunc
	ended  chan struct{}
	err    error

	mu     sync.Mutex
	events []Event
}

func testConfig(t testing.TB, top *topology.Topology) Config {
	return Config{
		Topology: top, Environ: os.Environ(), RuntimeDir: shortDir(t), EnvoyPath: testenv.Envoy(t),
		AgentCommand: []string{os.Args[0], "fake-agent"}, GuardCommand: []string{os.Args[0], "guard"},
	}
}

// startMesh runs a mesh until the end of the test.
func startMesh(t *testing.T, cfg Config) *testMesh {
	t.Helper()
	m, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r := &testMesh{Mesh: m, t: t, cancel: cancel, ended: make(chan struct{})}
	sub := m.Events()
	followed := make(chan struct{})
	go func() {
		defer close(followed)
		for {
			events, ok := sub.Next(nil)
			if !ok {
				return
			}
			r.mu.Lock()
			r.events = append(r.events, events...)
			r.mu.Unlock()
		}
	}()
	go func() {
		defer close(r.ended)
		r.err = m.Run(ctx)
		<-followed
	}()
	t.Cleanup(func() { r.stop() })
	return r
}

// stop stops the mesh and checks that it removed everything.
func (r *testMesh) stop() {
	r.cancel()
	<-r.ended
	if pids := processesWithVariable(runVariable + "=" + r.runID); len(pids) > 0 {
		r.t.Errorf("processes %v still run after the stop", pids)
	}
	if _, err := os.Stat(r.RuntimePath()); !errors.Is(err, os.ErrNotExist) {
		r.t.Errorf("the runtime directory still exists after the stop: %v", err)
	}
}

func (r *testMesh) waitReady() {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if err := r.WaitReady(ctx); err != nil {
		r.dump()
		if errors.Is(err, ErrEnded) {
			<-r.ended
			err = errors.Join(err, r.err)
		}
		r.t.Fatal(err)
	}
}

func (r *testMesh) dump() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.events {
		r.t.Logf("%s %s %s: %s%s", e.Kind, e.Instance, e.Origin, e.Message, e.Line)
	}
}

// find waits for an event for which match returns true.
func (r *testMesh) find(what string, is func(Event) bool) Event {
	r.t.Helper()
	var found Event
	eventually(r.t, what, func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		n := slices.IndexFunc(r.events, is)
		if n >= 0 {
			found = r.events[n]
		}
		return n >= 0
	})
	return found
}

func (r *testMesh) instance(name string) InstanceStatus {
	r.t.Helper()
	for _, i := range r.Status(context.Background()).Instances {
		if i.Name == name {
			return i
		}
	}
	r.t.Fatalf("status has no %s", name)
	return InstanceStatus{}
}

func eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for !is() {
		if time.Now().After(deadline) {
			t.Fatalf("timed out waiting for: %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

const appPort = "ports: [{name: http, port: 9080, protocol: http}]"

func TestMeshStartsReportsStatusAndCleansUp(t *testing.T) {
	m := startMesh(t, testConfig(t, testTopology(t, `
  workloads:
  - {name: a, command: ["${PILOTFISH}", app], replicas: 2, `+appPort+`}
  - {name: gate, namespace: edge, type: gateway, serviceAccount: door}
`)))
	m.waitReady()
	s := m.Status(context.Background())
	if !s.Ready || s.PID != os.Getpid() || len(s.Instances) != 3 || !s.Control.Running {
		t.Errorf("status is %+v", s)
	}
	a1, gate := m.instance("a-1"), m.instance("gate")
	if !a1.Ready || a1.App == nil || a1.App.State != ProcessRunning || a1.Agent.State != ProcessRunning || a1.App.PID == a1.Agent.PID {
		t.Errorf("a-1 is %+v", a1)
	}
	if !gate.Ready || gate.App != nil || gate.Namespace != "edge" || gate.ServiceAccount != "door" {
		t.Errorf("gate is %+v", gate)
	}
	var entries []string
	for _, e := range m.registry.List(config.WorkloadEntry) {
		entries = append(entries, e.Namespace+"/"+e.Name+" "+e.Labels["security.istio.io/tlsMode"])
	}
	if want := []string{"default/a-1 istio", "default/a-2 istio", "edge/gate disabled"}; !slices.Equal(entries, want) {
		t.Errorf("the registry has %q, want %q", entries, want)
	}
	ready := m.find("a-1 ready", func(e Event) bool { return e.Kind == Ready && e.Instance == "a-1" })
	if ready.Took <= 0 {
		t.Error("the Ready event has no duration")
	}
	m.find("the output of the application", func(e Event) bool {
		return e.Kind == Log && e.Instance == "a-2" && e.Origin == OriginWorkload && strings.Contains(e.Line, "my name is a-2")
	})
	m.find("all ready", func(e Event) bool { return e.Kind == MeshReady })
	m.stop()
	if m.err != nil {
		t.Error(m.err)
	}
	if len(m.registry.List(config.WorkloadEntry)) != 0 {
		t.Error("the registry still has workloads")
	}
}

func TestMeshWarnsOnceOfVulnerableEnvoy(t *testing.T) {
	cfg := testConfig(t, testTopology(t, `
  workloads:
  - {name: a, command: ["${PILOTFISH}", app], `+appPort+`}
`))
	cfg.EnvoyPath = testenv.EnvoyOf(t, testenv.OldEnvoyVersion)
	m := startMesh(t, cfg)
	m.find("the warning", func(e Event) bool {
		return e.Kind == Log && e.Origin == OriginMesh && strings.HasPrefix(e.Line, "warning: Envoy 1.36.4 has known vulnerabilities (CVE-2026-47774: ")
	})
	m.waitReady()
	env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", m.instance("a").Agent.PID))
	if err != nil || !strings.Contains(string(env), "\x00ENVOY_ADVISORY_WARNING=false\x00") {
		t.Errorf("the workload's agent repeats the warning (%v)", err)
	}
}

func TestAgentFilesFollowIstioLayout(t *testing.T) {
	m := startMesh(t, testConfig(t, testTopology(t, `
  mesh: {accessLogFile: /dev/stdout}
  workloads:
  - {name: a, labels: {version: v1}, annotations: {"b": "x\"y"}, command: ["${PILOTFISH}", app], `+appPort+`}
`)))
	m.waitReady()
	dir := filepath.Join(m.RuntimePath(), workloadsDir, "a")
	for path, want := range map[string]string{
		labelsPath: "app=\"a\"\nversion=\"v1\"\n", annotationsPath: "b=\"x\\\"y\"\n", tokenPath: "", rootCertPath: "", meshConfigPath: "accessLogFile",
	} {
		data, err := os.ReadFile(filepath.Join(dir, path))
		if err != nil || !strings.Contains(string(data), want) {
			t.Errorf("%s is %q (%v), want %q in it", path, data, err, want)
		}
		if info, err := os.Stat(filepath.Join(dir, path)); err == nil && info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %s", path, info.Mode())
		}
	}
	if info, err := os.Stat(m.RuntimePath()); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the runtime directory: %v %v", info, err)
	}
	if info, err := os.Stat(filepath.Join(m.RuntimePath(), socketFile)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the control socket: %v %v", info, err)
	}
}

func TestApplicationExitIsReportedWithLastLines(t *testing.T) {
	m := startMesh(t, testConfig(t, testTopology(t, `
  workloads:
  - {name: ok, command: ["${PILOTFISH}", app], `+appPort+`}
  - {name: bad, restart: never, command: ["${PILOTFISH}", say, "3", first line, "no such database"], `+appPort+`}
`)))
	failed := m.find("the failure", func(e Event) bool { return e.Kind == Failed })
	if failed.Instance != "bad" || failed.Exit.Code != 3 || !slices.Equal(failed.Exit.Tail, []string{"first line", "no such database"}) {
		t.Errorf("got the event %+v with the exit %+v", failed, failed.Exit)
	}
	err := m.WaitReady(context.Background())
	if err == nil || !strings.Contains(err.Error(), "exited with status 3") || !strings.Contains(err.Error(), "no such database") {
		t.Errorf("WaitReady returns %v", err)
	}
	eventually(t, "the other workload ready", func() bool { return m.instance("ok").Ready })
	if s := m.Status(context.Background()); s.Ready {
		t.Error("the mesh reports that it is ready although a workload failed")
	}
}

func TestFailingApplicationIsRestartedUntilItWorks(t *testing.T) {
	obstacle := filepath.Join(t.TempDir(), "obstacle")
	if err := os.WriteFile(obstacle, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	m := startMesh(t, testConfig(t, testTopology(t, `
  workloads:
  - {name: a, command: ["${PILOTFISH}", app, "exit-while=`+obstacle+`"], `+appPort+`}
`)))
	exited := m.find("an exit", func(e Event) bool { return e.Kind == Exited })
	if exited.Exit.Code != 4 || !strings.Contains(exited.Message, "pilotfish restarts it") {
		t.Errorf("got %+v", exited)
	}
	if err := os.Remove(obstacle); err != nil {
		t.Fatal(err)
	}
	m.waitReady()
	if app := m.instance("a").App; app.Restarts == 0 || app.LastExit == nil {
		t.Errorf("status has %+v", app)
	}
}

func TestFinishedTaskIsReady(t *testing.T) {
	m := startMesh(t, testConfig(t, testTopology(t, `
  workloads:
  - {name: task, restart: on-failure, command: ["${PILOTFISH}", say, "0", done]}
`)))
	m.waitReady()
	if app := m.instance("task").App; app.State != ProcessEnded && app.State != ProcessRunning {
		t.Errorf("the task is %+v", app)
	}
}

func TestExitingApplicationWithoutPortsIsNeverReady(t *testing.T) {
	m := startMesh(t, testConfig(t, testTopology(t, `
  workloads:
  - {name: a, startupTimeout: 2s, command: ["${PILOTFISH}", say, "3", no licence]}
`)))
	err := m.WaitReady(context.Background())
	if err == nil || !strings.Contains(err.Error(), "a: application exited with status 3") {
		t.Errorf("WaitReady returns %v", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if slices.ContainsFunc(m.events, func(e Event) bool { return e.Kind == Ready || e.Kind == MeshReady }) {
		t.Error("the failed workload was reported as ready")
	}
}

func TestApplicationWithoutPortsIsReadyAfterDelay(t *testing.T) {
	m := startMesh(t, testConfig(t, testTopology(t, `
  workloads:
  - {name: a, command: [sleep, "60"]}
`)))
	m.waitReady()
	if app := m.instance("a").App; time.Since(app.Started) < steadyAfter {
		t.Errorf("the application is ready after %s", time.Since(app.Started))
	}
	now := time.Now()
	for unsteady, want := range map[bool]time.Duration{false: steadyAfter, true: steadyAfterExit} {
		if got := (ProcessStatus{Started: now, unsteady: unsteady}).unsteadyFor(now); got != want {
			t.Errorf("unsteady %v: the process must run for %s, want %s", unsteady, got, want)
		}
	}
}

func TestPortConflictWithSidecarReportsRemedy(t *testing.T) {
	m := startMesh(t, testConfig(t, testTopology(t, `
  workloads:
  - {name: a, command: ["${PILOTFISH}", say, "1", "listen tcp :9080: bind: Address already in use"], `+appPort+`}
`)))
	exited := m.find("an exit", func(e Event) bool { return e.Kind == Exited })
	address := "${APP_ADDRESS} (here " + m.Instances()[0].App.String()
	if !strings.Contains(exited.Message, address) || !strings.Contains(exited.Exit.Remedy, address) {
		t.Errorf("got %q with the remedy %q", exited.Message, exited.Exit.Remedy)
	}
	eventually(t, "the reason in the status", func() bool {
		i := m.instance("a")
		return len(i.Reasons) > 0 && strings.Contains(i.Reasons[0], "PILOTFISH_APP_ADDRESS")
	})
}

func TestMeshWithoutWorkloadsIsReadyWithControlPlane(t *testing.T) {
	m := startMesh(t, testConfig(t, testTopology(t, "  workloads: []\n")))
	m.waitReady()
	if s := m.Status(context.Background()); !s.Ready || !s.Control.Running {
		t.Errorf("status is %+v", s)
	}
}

func TestTLSPolicyVariableRestrictsControlPlane(t *testing.T) {
	top := testTopology(t, "  workloads: []\n")
	for policy, refused := range map[string]bool{"": false, "fips-140-2": true} {
		cfg := testConfig(t, top)
		cfg.Environ = append(cfg.Environ, "COMPLIANCE_POLICY="+policy)
		m := startMesh(t, cfg)
		m.waitReady()
		m.controlPlane.mu.Lock()
		at := m.controlPlane.server.SecureAddr().String()
		m.controlPlane.mu.Unlock()
		conn, err := tls.Dial("tcp", at, &tls.Config{MinVersion: tls.VersionTLS13, InsecureSkipVerify: true})
		if err == nil {
			_ = conn.Close()
		}
		if (err != nil) != refused {
			t.Errorf("COMPLIANCE_POLICY=%s: a client that offers only TLS 1.3 got %v", policy, err)
		}
		m.stop()
	}
}

func TestFailedControlPlaneIsRestarted(t *testing.T) {
	m := startMesh(t, testConfig(t, testTopology(t, "  workloads: []\n")))
	m.waitReady()
	m.controlPlane.cancel() // simulates a failure, because this call bypasses controlPlane.stop
	m.find("the exit of the control plane", func(e Event) bool { return e.Kind == ControlPlaneDown })
	eventually(t, "the control plane", func() bool { return m.Status(context.Background()).Control.Running })
}

func TestKilledAgentIsRestarted(t *testing.T) {
	m := startMesh(t, testConfig(t, testTopology(t, `
  workloads:
  - {name: a, command: ["${PILOTFISH}", app], `+appPort+`}
`)))
	m.waitReady()
	app, agent := m.instance("a").App.PID, m.instance("a").Agent.PID
	if err := syscall.Kill(agent, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	exited := m.find("the end of the agent", func(e Event) bool { return e.Kind == Exited && e.Origin == OriginSidecar })
	if !strings.Contains(exited.Exit.Signal, "SIGKILL") {
		t.Errorf("got %+v", exited.Exit)
	}
	eventually(t, "ready again", func() bool {
		i := m.instance("a")
		return i.Ready && i.Agent.PID != agent && i.Agent.Restarts == 1
	})
	if now := m.instance("a").App.PID; now != app {
		t.Error("the application was restarted too")
	}
}

func TestUnreadyWorkloadGetsNoTraffic(t *testing.T) {
	m := startMesh(t, testConfig(t, testTopology(t, `
  workloads:
  - {name: a, command: ["${PILOTFISH}", app], `+appPort+`}
`)))
	m.waitReady()
	mark := filepath.Join(m.RuntimePath(), workloadsDir, "a", "unready")
	if err := os.WriteFile(mark, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	event := m.find("not ready", func(e Event) bool { return e.Kind == NotReady })
	if !strings.Contains(event.Message, "envoy: no listeners yet") {
		t.Errorf("got %q", event.Message)
	}
	if entries := m.registry.List(config.WorkloadEntry); len(entries) != 0 {
		t.Errorf("the registry still has %d entries", len(entries))
	}
	if err := os.Remove(mark); err != nil {
		t.Fatal(err)
	}
	m.waitReady()
	eventually(t, "the registry entry", func() bool { return len(m.registry.List(config.WorkloadEntry)) == 1 })
}

func TestLateWorkloadIsReported(t *testing.T) {
	for remedy, network := range map[string]Network{"the application must listen on ${APP_ADDRESS}:${PORT}": Loopback{}, "listen on this port, at any address": Captured{}} {
		t.Run(fmt.Sprintf("%T", network), func(t *testing.T) {
			if _, captured := network.(Captured); captured {
				needNamespaces(t)
			}
			cfg := testConfig(t, testTopology(t, `
  workloads:
  - {name: slow, startupTimeout: 300ms, command: [sleep, "60"], `+appPort+`}
`))
			cfg.Network = network
			m := startMesh(t, cfg)
			err := m.WaitReady(context.Background())
			if err == nil || !strings.Contains(err.Error(), "does not listen on") || !strings.Contains(err.Error(), remedy) {
				t.Errorf("WaitReady returns %v", err)
			}
			m.find("late", func(e Event) bool { return e.Kind == NotReady && strings.Contains(e.Message, "startupTimeout") })
		})
	}
}

func TestDescendantsOfApplicationsAreKilled(t *testing.T) {
	m := startMesh(t, testConfig(t, testTopology(t, `
  workloads:
  - {name: a, command: ["${PILOTFISH}", app, "child=300", "runaway=300"], `+appPort+`}
`)))
	m.waitReady()
	if pids := processesWithVariable(runVariable + "=" + m.runID); len(pids) != 4 {
		t.Fatalf("%d processes run, want agent, application and two children", len(pids))
	}
	m.stop()
	m.find("the log line about killed processes", func(e Event) bool {
		return e.Line == "killed processes that outlived their parent processes (1): sleep"
	})
}

func TestApplicationIgnoringSIGTERMIsKilled(t *testing.T) {
	cfg := testConfig(t, testTopology(t, `
  workloads:
  - {name: a, command: ["${PILOTFISH}", app, ignore-term], `+appPort+`}
`))
	cfg.StopTimeout = 200 * time.Millisecond
	m := startMesh(t, cfg)
	m.waitReady()
	m.stop()
}

func TestApplicationIsRestartedOnRequest(t *testing.T) {
	m := startMesh(t, testConfig(t, testTopology(t, `
  workloads:
  - {name: a, command: ["${PILOTFISH}", app], `+appPort+`}
`)))
	m.waitReady()
	before := m.instance("a").App.PID
	if err := m.Restart(context.Background(), "a"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "another process", func() bool {
		i := m.instance("a")
		return i.Ready && i.App.PID != before && i.App.PID != 0
	})
	if err := m.Restart(context.Background(), "b"); err == nil || !strings.Contains(err.Error(), `no workload "b"`) {
		t.Errorf("got %v", err)
	}
}

// playUp runs the mesh of a topology file as `pilotfish up` does.
func playUp(args []string) {
	top, err := topology.Load(args[0])
	fail(err)
	cfg := Config{
		Topology: top, Environ: os.Environ(), RuntimeDir: args[1], EnvoyPath: args[2], AgentCommand: []string{os.Args[0], args[4]},
	}
	if len(args) > 5 && args[5] == "captured" {
		cfg.Network = Captured{}
	}
	if args[3] == "guarded" {
		cfg.GuardCommand = []string{os.Args[0], "guard"}
	}
	m, err := New(cfg)
	fail(err)
	fmt.Println(m.runID)
	go func() {
		if m.WaitReady(context.Background()) == nil {
			fmt.Println("ready")
		}
	}()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	fail(m.Run(ctx))
}
