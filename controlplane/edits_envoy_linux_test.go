package controlplane_test

import (
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/controlplane"
	"github.com/pilotfish-mesh/pilotfish/internal/envoytest"
	"github.com/pilotfish-mesh/pilotfish/internal/meshfuzz"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// edits is the number of random edits per test. For more: go test ./controlplane -run RequestFails -edits 1000
var edits = flag.Int("edits", 100, "random edits under traffic")

const keptServices = 4

// editedMesh is a mesh that is edited under traffic: what it serves, its documents, and a caller's Envoy.
type editedMesh struct {
	t       *testing.T
	network string // "127.177.1"
	dir     string
	config  string // MeshConfig file without mutual TLS, because the caller has no certificate
	mesh    *meshfuzz.Mesh
	last    atomic.Value // the last edit, for the failure message
	answers atomic.Int64
	failed  chan string
}

func newEdited(t *testing.T, network string) *editedMesh {
	e := &editedMesh{t: t, network: network, dir: t.TempDir(), failed: make(chan string, 1)}
	e.mesh = meshfuzz.New(11, meshfuzz.Options{Permanent: keptServices, Port: 9080, Address: func(service, instance int) string {
		return fmt.Sprintf("%s.%d", network, 10+service%30*4+instance)
	}})
	e.config = filepath.Join(t.TempDir(), "mesh.yaml")
	write(t, e.config, "enableAutoMtls: false\n")
	for service := range keptServices {
		for instance := range 4 {
			e.serve(fmt.Sprintf("%s.%d", network, 10+service*4+instance))
		}
	}
	for _, document := range e.mesh.Documents() {
		e.apply(document)
	}
	return e
}

func (e *editedMesh) serve(address string) {
	e.t.Helper()
	l, err := net.Listen("tcp", address+":9080")
	if err != nil {
		e.t.Fatal(err)
	}
	s := &httptest.Server{Listener: l, Config: &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "ok")
	})}}
	s.Start()
	e.t.Cleanup(s.Close)
}

func (e *editedMesh) apply(edit meshfuzz.Edit) {
	e.t.Helper()
	path := filepath.Join(e.dir, edit.File())
	e.last.Store(edit.Key.String() + " " + string(edit.Document))
	if edit.Document == nil {
		_ = os.Remove(path)
		return
	}
	write(e.t, path, string(edit.Document))
}

func (e *editedMesh) startEnvoy(version string, host string, port int) *envoytest.Envoy {
	e.t.Helper()
	return envoytest.Start(e.t, testenv.EnvoyOf(e.t, version), e.t.TempDir(),
		fmt.Sprintf(bootstrap, e.network+".2", e.network+".3", host, port))
}

// traffic sends requests to the kept services through the caller's Envoy, on persistent connections, until stop is
// closed.
func (e *editedMesh) traffic(stop chan struct{}) *sync.WaitGroup {
	var callers sync.WaitGroup
	sidecar := &url.URL{Scheme: "http", Host: e.network + ".2:15080"}
	for caller := range 4 {
		client := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{Proxy: http.ProxyURL(sidecar)}}
		callers.Go(func() {
			defer client.CloseIdleConnections()
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				host := e.mesh.Host((caller + n) % keptServices)
				if err := e.call(client, host, n); err != nil {
					select {
					case e.failed <- fmt.Sprintf("%s: %v, after %d answers; the last edit was %s", host, err, e.answers.Load(), e.last.Load()):
					default:
					}
					return
				}
				e.answers.Add(1)
			}
		})
	}
	return &callers
}

func (e *editedMesh) call(client http.Client, host string, n int) error {
	request, err := http.NewRequest(http.MethodGet, fmt.Sprintf("http://%s/p%d", host, n%7), nil)
	if err != nil {
		return err
	}
	request.Header.Set("X-User", fmt.Sprintf("u%d", n%5))
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && (response.StatusCode != http.StatusOK || string(body) != "ok") {
		err = fmt.Errorf("status %d, %q", response.StatusCode, body)
	}
	return err
}

// awaitReady waits until all kept services respond.
func (e *editedMesh) awaitReady() {
	e.t.Helper()
	client := http.Client{Timeout: time.Second, Transport: &http.Transport{
		Proxy: http.ProxyURL(&url.URL{Scheme: "http", Host: e.network + ".2:15080"}), DisableKeepAlives: true}}
	for service := range keptServices {
		testenv.Eventually(e.t, "service answers", func() error { return e.call(client, e.mesh.Host(service), 0) })
	}
}

// run applies the edits a few milliseconds apart, during traffic. It calls each with the number of each edit.
func (e *editedMesh) run(each func(n int)) {
	e.t.Helper()
	stop := make(chan struct{})
	callers := e.traffic(stop)
	defer callers.Wait()
	defer close(stop)
	pace := time.NewTicker(10 * time.Millisecond)
	defer pace.Stop()
	for n := range *edits {
		e.apply(e.mesh.Edit())
		each(n)
		select {
		case failure := <-e.failed:
			e.t.Fatalf("edit %d: %s", n, failure)
		case <-pace.C:
		}
	}
	testenv.Eventually(e.t, "there is a request for each edit", func() error {
		e.check()
		if made := e.answers.Load(); made < int64(*edits) {
			return fmt.Errorf("only %d were made", made)
		}
		return nil
	})
}

// check ends the test when a request failed.
func (e *editedMesh) check() {
	e.t.Helper()
	select {
	case failure := <-e.failed:
		e.t.Fatal(failure)
	default:
	}
}

// checkFinal checks that no request failed after the edits.
func (e *editedMesh) checkFinal() {
	e.t.Helper()
	e.check()
	e.t.Logf("%d edits, %d requests, none failed", *edits, e.answers.Load())
}

func TestNoRequestFailsUnderRandomEdits(t *testing.T) {
	for i, version := range testenv.EnvoyVersions() {
		t.Run(version, func(t *testing.T) {
			e := newEdited(t, fmt.Sprintf("127.177.%d", 30+i))
			p := start(t, controlplane.Config{ConfigDirs: []string{e.dir}, MeshConfigFile: e.config, Address: e.network + ".1"})
			e.startEnvoy(version, e.network+".1", int(p.PlainAddr().Port()))
			e.awaitReady()
			e.run(func(int) {})
			testenv.Eventually(t, "Envoy is in sync", func() error {
				st := p.Status()
				if len(st.Clients) == 1 && st.Clients[0].InSync && !st.Pending {
					return nil
				}
				return fmt.Errorf("clients are %+v", st.Clients)
			})
			e.awaitReady()
			e.checkFinal()
		})
	}
}

// killableServer returns the command of a control plane in a separate process.
func (e *editedMesh) killableServer(state, port string) *exec.Cmd {
	e.t.Helper()
	cmd := exec.Command(testenv.Bin(e.t, "pilotfish"), "control-plane", "--config-dir", e.dir, "--mesh-config", e.config, "--state-dir", state, "--log-level", "error",
		"--address", e.network+".1", "--port", port, "--allow-local-endpoints", "127.0.0.0/8", "--secure-port", "-2", "--monitoring-port", "-2", "--token-port", "-2")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	exited := make(chan struct{})
	go func() { // Pdeathsig kills the child when the thread that started it exits, so that thread must not exit
		runtime.LockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait()
		}
		close(exited)
	}()
	if err := <-started; err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() { _ = cmd.Process.Kill(); <-exited })
	return cmd
}

func TestNoRequestFailsWhenTheControlPlaneIsKilled(t *testing.T) {
	for i, version := range []string{testenv.EnvoyVersion, testenv.OldEnvoyVersion} {
		t.Run(version, func(t *testing.T) {
			e := newEdited(t, fmt.Sprintf("127.177.%d", 40+i))
			state := filepath.Join(t.TempDir(), "state")
			plane := e.killableServer(state, "15010")
			e.startEnvoy(version, e.network+".1", 15010)
			e.awaitReady()
			kills := 0
			e.run(func(n int) {
				if n%50 == 25 {
					_ = plane.Process.Kill()
					kills++
				}
				if n%50 == 35 {
					plane = e.killableServer(state, "15010")
				}
			})
			e.awaitReady()
			e.checkFinal()
			t.Logf("the control plane was killed %d times", kills)
		})
	}
}
