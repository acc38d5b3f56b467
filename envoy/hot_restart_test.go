package envoy

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// helloBootstrap configures an Envoy with one HTTP listener that responds with a fixed text, and an admin interface.
const helloBootstrap = `
admin: {address: {socket_address: {address: %[1]s, port_value: 15000}}}
static_resources:
  listeners:
  - name: hello
    address: {socket_address: {address: %[1]s, port_value: 8080}}
    filter_chains: [{filters: [{name: hcm, typed_config: {
      "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager,
      stat_prefix: hello, http_filters: [{name: router, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}],
      route_config: {virtual_hosts: [{name: all, domains: ["*"], routes: [{match: {prefix: /}, direct_response: {status: 200, body: {inline_string: hello}}}]}]}}}]}]
`

// unavailableADSBootstrap configures an Envoy that waits for an unavailable control plane and therefore never becomes
// ready.
const unavailableADSBootstrap = `
node: {id: a, cluster: b}
admin: {address: {socket_address: {address: %[1]s, port_value: 15000}}}
dynamic_resources:
  cds_config: {resource_api_version: V3, initial_fetch_timeout: 0s, api_config_source: {api_type: GRPC, transport_api_version: V3, grpc_services: [{envoy_grpc: {cluster_name: x}}]}}
static_resources:
  clusters: [{name: x, type: STATIC, load_assignment: {cluster_name: x, endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: %[1]s, port_value: 1}}}}]}]},
    typed_extension_protocol_options: {envoy.extensions.upstreams.http.v3.HttpProtocolOptions: {"@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions, explicit_http_config: {http2_protocol_options: {}}}}}]
`

// hotRestartChain is a series of Envoys that replace each other.
type hotRestartChain struct {
	t       *testing.T
	dir     string
	address string
	HotRestart
}

func newHotRestartChain(t *testing.T, address string) *hotRestartChain {
	t.Helper()
	id, err := NewBaseID()
	if err != nil {
		t.Fatal(err)
	}
	e := &hotRestartChain{t: t, dir: t.TempDir(), address: address}
	for name, text := range map[string]string{"hello.yaml": helloBootstrap, "never.yaml": unavailableADSBootstrap} {
		if err := os.WriteFile(filepath.Join(e.dir, name), fmt.Appendf(nil, text, address), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	e.HotRestart = HotRestart{BaseID: id, Dir: e.dir, ParentShutdown: time.Second}
	if err := e.CheckSupport(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.RemoveFiles() })
	return e
}

func (e *hotRestartChain) start(version, config string) *Process {
	e.t.Helper()
	args := Options{ConfigPath: config, Concurrency: 1, DrainTime: time.Second, HotRestart: &e.HotRestart}.Args()
	log := &testenv.Buffer{}
	epoch := e.Epoch
	e.t.Cleanup(func() {
		if e.t.Failed() {
			e.t.Logf("epoch %d wrote:\n%s", epoch, log)
		}
	})
	output := func(line string) { _, _ = fmt.Fprintln(log, line) }
	return start(e.t, Config{Path: testenv.EnvoyOf(e.t, version), Args: args, Dir: e.dir, Output: output})
}

// admin waits until the admin interface reports the current epoch and this state.
func (e *hotRestartChain) admin(state string) {
	e.t.Helper()
	testenv.Eventually(e.t, fmt.Sprintf("epoch %d is %s", e.Epoch, state), func() error {
		a := NewAdmin(net.JoinHostPort(e.address, "15000"))
		defer a.Close()
		info, err := a.ServerInfo(e.t.Context())
		if err == nil && (info.State != state || info.RestartEpoch != e.Epoch || info.BaseID != e.BaseID) {
			err = fmt.Errorf("%+v", info)
		}
		return err
	})
}

func (e *hotRestartChain) hello() {
	e.t.Helper()
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	r, err := client.Get("http://" + e.address + ":8080/")
	if err != nil {
		e.t.Error(err)
		return
	}
	defer func() { _ = r.Body.Close() }()
	if body, err := io.ReadAll(r.Body); err != nil || string(body) != "hello" {
		e.t.Errorf("%q, %v", body, err)
	}
}

func (e *hotRestartChain) checkFilesRemoved() {
	e.t.Helper()
	if err := e.RemoveFiles(); err != nil {
		e.t.Error(err)
	}
	sockets, _ := filepath.Glob(e.socketPrefix() + "*")
	if _, err := os.Stat(e.sharedMemoryFile()); len(sockets) > 0 || !errors.Is(err, fs.ErrNotExist) {
		e.t.Errorf("left behind: %v, %s: %v", sockets, e.sharedMemoryFile(), err)
	}
}

func TestHotRestartVersionIsFoundAmongWarnings(t *testing.T) {
	dir := t.TempDir()
	warns := script(t, dir, "warns", `echo "[2026-11-22 06:28:04.272][350][warning][misc] control groups 1.2" >&2; echo 11.104 >&2; echo`)
	if v, err := HotRestartVersion(t.Context(), warns); err != nil || v != "11.104" {
		t.Errorf("%q, %v", v, err)
	}
	if v, err := HotRestartVersion(t.Context(), script(t, dir, "mute", `echo no; echo 1`)); err == nil || !strings.Contains(err.Error(), `"no"`) {
		t.Errorf("%q, %v", v, err)
	}
}

func TestHotRestartBetweenAllVersions(t *testing.T) {
	newest := testenv.EnvoyVersion
	for i, pair := range [][2]string{
		{newest, testenv.OldEnvoyVersion}, {testenv.OldEnvoyVersion, newest}, {newest, testenv.MidEnvoyVersion}, {testenv.MidEnvoyVersion, newest},
	} {
		t.Run(pair[0]+" to "+pair[1], func(t *testing.T) {
			t.Parallel()
			var versions [2]string
			for k, v := range pair {
				var err error
				if versions[k], err = HotRestartVersion(t.Context(), testenv.EnvoyOf(t, v)); err != nil {
					t.Fatal(err)
				}
			}
			if versions[0] != versions[1] {
				t.Fatalf("hot restart versions %q", versions)
			}
			e := newHotRestartChain(t, fmt.Sprintf("127.42.10.%d", 1+i))
			old := e.start(pair[0], "hello.yaml")
			e.admin("LIVE")
			e.hello()
			old.MarkReplaced()
			e.Epoch++
			young := e.start(pair[1], "hello.yaml")
			e.admin("LIVE")
			if exit := old.Exit(); exit.Reason != Stopped || exit.Code != 0 {
				t.Errorf("the old Envoy: %+v, want it stopped", exit)
			}
			e.hello()
			young.Stop(contextWithTimeout(t, 10*time.Second))
			e.checkFilesRemoved()
		})
	}
}

func TestHotRestartWorksAfterFailedHotRestart(t *testing.T) {
	for i, v := range []string{testenv.EnvoyVersion, testenv.OldEnvoyVersion} {
		t.Run(v, func(t *testing.T) {
			t.Parallel()
			e := newHotRestartChain(t, fmt.Sprintf("127.42.20.%d", 1+i))
			old := e.start(v, "hello.yaml")
			e.admin("LIVE")
			e.Epoch++
			failed := e.start(v, "never.yaml")
			e.admin("PRE_INITIALIZING")
			failed.Stop(expiredContext())
			e.hello()

			refused := e.start(v, "hello.yaml").Exit()
			if refused.Code == 0 || !strings.Contains(strings.Join(refused.Tail, " "), "still initializing") {
				t.Errorf("without clearing the flag: %+v", refused)
			}
			if err := e.ClearInitializingFlag(); err != nil {
				t.Fatal(err)
			}
			old.MarkReplaced()
			again := e.start(v, "hello.yaml")
			e.admin("LIVE")
			e.hello()
			if exit := old.Exit(); exit.Reason != Stopped {
				t.Errorf("the old Envoy: %+v", exit)
			}
			again.Stop(contextWithTimeout(t, 10*time.Second))
			e.checkFilesRemoved()
		})
	}
}

func TestUnknownSharedMemoryIsNotChanged(t *testing.T) {
	e := newHotRestartChain(t, "127.42.21.1")
	if err := e.ClearInitializingFlag(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without memory: %v", err)
	}
	for name, memory := range map[string][]byte{"short": make([]byte, 8), "another layout": make([]byte, 200)} {
		if err := os.WriteFile(e.sharedMemoryFile(), memory, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := e.ClearInitializingFlag(); err == nil {
			t.Errorf("%s: changed although its layout is unknown", name)
		}
	}
	if err := os.WriteFile(e.socketPrefix()+fmt.Sprintf("_parent_%d1", e.BaseID), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := RemoveHotRestartFiles(e.dir); err != nil {
		t.Error(err)
	}
	e.checkFilesRemoved()
	e.Dir = strings.Repeat("d", 100)
	if err := e.CheckSupport(); err == nil || !strings.Contains(err.Error(), "shorter configPath") {
		t.Errorf("with a directory of a long name: %v", err)
	}
}

func TestChildEnvoySurvivesDeathOfParent(t *testing.T) {
	e := newHotRestartChain(t, "127.42.22.1")
	e.ParentShutdown = 6 * time.Second // enough for the parent to die and its socket to be replaced on a busy machine
	old := e.start(testenv.EnvoyVersion, "hello.yaml")
	e.admin("LIVE")
	before := e.HotRestart
	e.Epoch++
	young := e.start(testenv.OldEnvoyVersion, "hello.yaml")
	e.admin("LIVE")
	old.Stop(expiredContext())
	end, err := before.AbsorbParentMessages()
	if err != nil {
		t.Fatal(err)
	}
	defer end()
	// After ParentShutdown, the child requests its parent to exit, and would abort if it noticed that the parent has
	// exited.
	for until := time.Now().Add(e.ParentShutdown + time.Second); time.Now().Before(until); {
		e.hello()
		e.admin("LIVE")
	}
	if exit := young.Stop(contextWithTimeout(t, 10*time.Second)); exit.Forced || exit.Reason != Stopped || strings.Contains(strings.Join(exit.Tail, " "), "refused") {
		t.Errorf("the new Envoy: %+v", exit)
	}
	e.checkFilesRemoved()
}
