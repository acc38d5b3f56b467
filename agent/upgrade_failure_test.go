package agent

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// stubEnvoy writes a fake Envoy that answers queries for version and compatibility like the real one, and otherwise
// runs the script.
func (r *agentProcess) stubEnvoy(t *testing.T, version, run string) string {
	t.Helper()
	path := filepath.Join(r.dir, "stub-envoy")
	text := fmt.Sprintf("#!/bin/sh\nreal=%s\ncase \"$*\" in --version|--hot-restart-version|*validate*) exec $real \"$@\";; esac\n%s\n",
		testenv.EnvoyOf(t, version), run)
	testenv.Program(t, path, []byte(text))
	return path
}

// checkUpgradeFails checks that an upgrade fails with the reason and without an effect on clients.
func (r *agentProcess) checkUpgradeFails(t *testing.T, why string, upgrade ...string) {
	t.Helper()
	load := startTraffic(t, r.address)
	u := r.upgrade(t, upgrade...)
	if code := u.waitExit(); code != 1 || !strings.Contains(u.out.String(), why) {
		t.Errorf("upgrade: %d: %s; want 1 and %q", code, u.out, why)
	}
	load.checkLossless()
}

// neverReadyEnvoy runs an Envoy that opens the admin listener and then waits for clusters forever.
const neverReadyEnvoy = `cat > never.yaml <<'E'
node: {id: a, cluster: b}
admin: {address: {socket_address: {address: ADDRESS, port_value: 15000}}}
dynamic_resources: {cds_config: {resource_api_version: V3, initial_fetch_timeout: 0s, path_config_source: {path: /dev/null}}}
static_resources: {clusters: [{name: a, type: EDS, connect_timeout: 1s, eds_cluster_config: {eds_config: {resource_api_version: V3, initial_fetch_timeout: 0s, api_config_source: {api_type: GRPC, transport_api_version: V3, grpc_services: [{envoy_grpc: {cluster_name: x}}]}}}}, {name: x, type: STATIC}]}
E
shift 2; exec $real -c never.yaml "$@"`

func TestFailedUpgradeLosesNoRequest(t *testing.T) {
	t.Parallel()
	newest, oldest := testenv.EnvoyVersion, testenv.OldEnvoyVersion
	for name, c := range map[string]struct {
		address, way, run, why string
		within                 string // time for the new Envoy to open the admin listener on a busy machine
		epoch                  int
	}{
		"it ends at once":                {"127.88.31.1", HotRestart, "echo cannot go on >&2; exit 3", "cannot go on", "2s", 0},
		"it never asks for anything":     {"127.88.31.2", HotRestart, "exec sleep 1000", "not ready within", "2s", 0},
		"it never becomes ready":         {"127.88.31.3", HotRestart, neverReadyEnvoy, "serves again", "8s", 2},
		"it ends at once, side by side":  {"127.88.31.4", HandOver, "exit 3", "continues unchanged", "2s", 0},
		"it never answers, side by side": {"127.88.31.5", HandOver, "exec sleep 1000", "continues unchanged", "2s", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := upgradable(t, c.address, oldest, "--restart")
			stub := r.stubEnvoy(t, newest, strings.ReplaceAll(c.run, "ADDRESS", c.address))
			r.checkUpgradeFails(t, c.why, "--envoy-path", stub, "--way", c.way, "--ready-within", c.within, "--keep", "3s")
			r.results(`result="went-back"} 1`)
			r.checkServes(oldest, c.epoch)
			// A failed upgrade does not affect the next one.
			r.eventually("the next upgrade", func() error {
				if u := r.upgrade(t, "--envoy-path", testenv.EnvoyOf(t, newest), "--way", c.way, "--keep", "2s", "--wait"); u.waitExit() != 0 {
					return errors.New(u.out.String())
				}
				return nil
			})
			r.waitOnlyEnvoy(r.envoy())
			r.checkServes(newest, len(r.startedEnvoys())-1)
			r.stopCleanly()
		})
	}
}

// stopCleanly stops the agent, and checks that no Envoy has left anything.
func (r *agentProcess) stopCleanly() {
	r.t.Helper()
	r.signal(syscall.SIGTERM)
	if code := r.waitExit(); code != 0 {
		r.t.Errorf("exit code %d, want 0", code)
	}
	r.waitOnlyEnvoy(0)
	r.checkNoSharedMemory()
	if left, _ := filepath.Glob(filepath.Join(r.dir, "etc/istio/proxy/hot/*")); len(left) > 0 {
		r.t.Errorf("left behind: %v", left)
	}
}

var baseID = regexp.MustCompile(`--base-id (\d+)`)

func (r *agentProcess) checkNoSharedMemory() {
	r.t.Helper()
	for _, m := range baseID.FindAllStringSubmatch(r.out.String(), -1) {
		file := "/dev/shm/envoy_shared_memory_" + m[1] + "0"
		if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
			r.t.Errorf("left behind: %s (%v)", file, err)
		}
	}
}

func TestUpgradeIsRejectedWithReason(t *testing.T) {
	t.Parallel()
	r := upgradable(t, "127.88.32.1", testenv.EnvoyVersion)
	first := r.envoy()
	picky := r.program(t, "picky", "#!/bin/sh\ncase \"$*\" in *validate*) echo no such field; exit 1;; esac\nexec "+testenv.Envoy(t)+" \"$@\"\n")
	for want, args := range map[string][]string{
		"no such file":                {"--envoy-path", "/nowhere/envoy"},
		"cannot be used as Envoy":     {"--envoy-path", "/bin/true"},
		"is a directory":              {"--envoy-path", "."},
		"is not executable":           {"--envoy-path", "var/run/secrets/tokens/istio-token"},
		"started without hot restart": {"--envoy-path", testenv.Envoy(t), "--way", HotRestart},
		"no such field":               {"--envoy-path", picky},
	} {
		if u := r.upgrade(t, args...); u.waitExit() != 1 || !strings.Contains(u.out.String(), want) {
			t.Errorf("%v: %s; want %q", args, u.out, want)
		}
	}
	for _, args := range [][]string{nil, {"--envoy-path", "x", "--way", "by-magic"}} {
		if u := r.upgrade(t, args...); u.waitExit() != 2 {
			t.Errorf("%v: exit code %d, want 2: %s", args, u.waitExit(), u.out)
		}
	}
	if _, _, err := r.http("POST", "15020/drain"); err != nil {
		t.Fatal(err)
	}
	if u := r.upgrade(t, "--envoy-path", testenv.Envoy(t)); u.waitExit() != 1 || !strings.Contains(u.out.String(), "draining") {
		t.Errorf("while draining: %s", u.out)
	}
	if r.envoy() != first {
		t.Error("another Envoy was started")
	}
	r.stopCleanly()
	if u := r.upgrade(t, "--envoy-path", testenv.Envoy(t)); u.waitExit() != 1 || !strings.Contains(u.out.String(), "no agent responds") {
		t.Errorf("without an agent: %s", u.out)
	}
}

func TestUpgradeNeedsControlPlane(t *testing.T) {
	t.Parallel()
	s := newSetup(t, "127.88.32.2")
	stop := s.cp.start(t)
	r := s.start(t)
	r.waitReady()
	stop()
	r.eventually("the upgrade is refused", func() error {
		u := r.upgrade(t, "--envoy-path", testenv.Envoy(t), "--ready-within", "1s")
		if u.waitExit() != 1 || !strings.Contains(u.out.String(), "no connection to the control plane") {
			return errors.New(u.out.String())
		}
		return nil
	})
	r.waitReady()
}

func TestNewEnvoyCrashRestartsOldVersion(t *testing.T) {
	t.Parallel()
	for address, way := range map[string]string{"127.88.33.1": HotRestart, "127.88.33.2": HandOver} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			r := upgradable(t, address, testenv.OldEnvoyVersion, "--restart")
			streams := openStreams(t, r.address)
			if u := r.upgrade(t, "--envoy-path", testenv.EnvoyOf(t, testenv.EnvoyVersion), "--way", way, "--keep", "8s"); u.waitExit() != 0 {
				t.Fatalf("upgrade: %s", u.out)
			}
			killProcess(t, r.envoy(), syscall.SIGSEGV)
			r.eventually("the old version is started again", func() error {
				if n := len(r.startedEnvoys()); n != 3 {
					return fmt.Errorf("%d Envoys so far", n)
				}
				return nil
			})
			r.waitReady()
			streams.alive()
			streams.cancel()
			r.results(`result="went-back"} 1`)
			r.waitOnlyEnvoy(r.envoy())
			r.checkServes(testenv.OldEnvoyVersion, 2)
			r.stopCleanly()
		})
	}
}

// TestUpgradeFailsIfOldEnvoyExits kills the old Envoy during an upgrade. The agent then restarts the old version, so
// the upgrade has to fail.
func TestUpgradeFailsIfOldEnvoyExits(t *testing.T) {
	for address, way := range map[string]string{"127.88.43.1": HotRestart, "127.88.43.2": HandOver} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			r := upgradable(t, address, testenv.OldEnvoyVersion, "--restart")
			late := r.stubEnvoy(t, testenv.EnvoyVersion, `cp $2 late.yaml; shift 2; touch begun; while [ ! -e go ]; do sleep 0.05; done; exec $real -c late.yaml "$@"`)
			u := r.upgrade(t, "--envoy-path", late, "--way", way, "--ready-within", "60s")
			r.eventually("the upgrade has begun", func() error {
				_, err := os.Stat(filepath.Join(r.dir, "begun"))
				return err
			})
			if err := syscall.Kill(r.startedEnvoys()[0], syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			r.eventually("another Envoy of the old version", func() error {
				if n := len(r.startedEnvoys()); n != 3 {
					return fmt.Errorf("%d Envoys so far", n)
				}
				return nil
			})
			again := r.startedEnvoys()[2]
			r.checkServes(testenv.OldEnvoyVersion, 2)
			r.write(t, "go", "")
			if code := u.waitExit(); code != 1 || !strings.Contains(u.out.String(), "the serving Envoy") {
				t.Errorf("upgrade: %d: %s", code, u.out)
			}
			r.results(`result="lost"} 1`)
			r.waitOnlyEnvoy(again)
			r.checkAnswers(30)
			r.stopCleanly()
		})
	}
}

func TestNewEnvoySurvivesCrashOfDrainingOldOne(t *testing.T) {
	t.Parallel()
	for address, way := range map[string]string{"127.88.37.1": HotRestart, "127.88.37.2": HandOver} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			r := upgradable(t, address, testenv.EnvoyVersion, "--restart")
			old := r.envoy()
			openStreams(t, r.address)
			if u := r.upgrade(t, "--envoy-path", testenv.EnvoyOf(t, testenv.MidEnvoyVersion), "--way", way, "--keep", "4s"); u.waitExit() != 0 {
				t.Fatalf("upgrade: %s", u.out)
			}
			load := startTraffic(t, r.address)
			if err := syscall.Kill(old, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			r.results(`result="done"} 1`)
			r.checkServes(testenv.MidEnvoyVersion, 1)
			r.eventually("enough load", func() error {
				if load.requests.Load() < 1500 { // some seconds, in which the new Envoy orders its parent to stop
					return errors.New("not yet")
				}
				return nil
			})
			load.stop()
			r.checkServes(testenv.MidEnvoyVersion, 1)
			r.stopCleanly()
		})
	}
}

func TestTerminationDuringAnUpgradeEndsBothEnvoys(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ address, way, run string }{
		"before the new one serves, hot restart": {"127.88.34.1", HotRestart, "exec sleep 1000"},
		"before the new one serves, hand-over":   {"127.88.34.2", HandOver, "exec sleep 1000"},
		"while the old one drains, hot restart":  {"127.88.34.3", HotRestart, `exec $real "$@"`},
		"while the old one drains, hand-over":    {"127.88.34.4", HandOver, `exec $real "$@"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := upgradable(t, c.address, testenv.EnvoyVersion, "--restart")
			streams := openStreams(t, r.address)
			u := r.upgrade(t, "--envoy-path", r.stubEnvoy(t, testenv.EnvoyVersion, c.run), "--way", c.way, "--keep", "60s", "--ready-within", "60s", "--wait")
			r.eventually("two Envoys", func() error {
				if n := len(r.startedEnvoys()); n != 2 {
					return fmt.Errorf("%d", n)
				}
				return nil
			})
			if strings.Contains(name, "drains") {
				r.eventually("the new one serves", func() error {
					if !strings.Contains(r.out.String(), "the new Envoy serves") {
						return errors.New("not yet")
					}
					return nil
				})
			}
			streams.cancel()
			r.stopCleanly()
			u.waitExit()
		})
	}
}

func TestRequestInOldEnvoyFinishesDuringShutdown(t *testing.T) {
	t.Parallel()
	for address, way := range map[string]string{"127.141.21.1": HotRestart, "127.141.21.2": HandOver} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			s := newSlowSetup(t, address, "TERMINATION_GRACE_PERIOD=600")
			s.args = append(s.args, "--restart")
			r := s.start(t)
			r.waitReady()
			late := r.getSlowly(6 * time.Second)
			u := r.upgrade(t, "--envoy-path", testenv.EnvoyOf(t, testenv.OldEnvoyVersion), "--way", way)
			if u.waitExit() != 0 {
				t.Fatalf("upgrade: %s", u.out)
			}
			r.signal(syscall.SIGTERM)
			if got := <-late; got.code != http.StatusOK {
				t.Errorf("the request that the old Envoy had: %+v", got)
			}
			r.checkExit(0)
			r.checkNothingLeft()
			r.checkNoSharedMemory()
		})
	}
}

func TestIdleConnectionOfOldEnvoyLingers(t *testing.T) {
	t.Parallel()
	for n, c := range []struct{ way, from, to string }{
		{HotRestart, testenv.EnvoyVersion, testenv.OldEnvoyVersion},
		{HotRestart, testenv.OldEnvoyVersion, testenv.MidEnvoyVersion},
		{HandOver, testenv.MidEnvoyVersion, testenv.EnvoyVersion},
	} {
		t.Run(c.way+" from "+c.from, func(t *testing.T) {
			t.Parallel()
			s := newSlowSetup(t, fmt.Sprintf("127.165.21.%d", 1+n), "TERMINATION_GRACE_PERIOD=600", "ENVOY_PATH="+testenv.EnvoyOf(t, c.from))
			s.env = append(s.env, s.drainFor("0.7s"))
			s.args = append(s.args, "--restart")
			r := s.start(t)
			r.waitReady()
			idle, err := net.Dial("tcp", s.address+":8443")
			if err != nil {
				t.Fatal(err)
			}
			defer idle.Close()
			late := r.getSlowly(4 * time.Second)
			if u := r.upgrade(t, "--envoy-path", testenv.EnvoyOf(t, c.to), "--way", c.way, "--keep", "10m"); u.waitExit() != 0 {
				t.Fatalf("upgrade: %s", u.out)
			}
			r.signal(syscall.SIGTERM)
			if got := <-late; got.code != http.StatusOK {
				t.Errorf("the request that the old Envoy had: %+v", got)
			}
			r.checkExit(0, "no request is left, and the time limit for its ", " idle connections has passed") // the request's connection may be counted once more
			r.checkNothingLeft()
			r.checkNoSharedMemory()
		})
	}
}

func TestFrozenOldEnvoyDoesNotOutlastTheDeadline(t *testing.T) {
	t.Parallel()
	for address, way := range map[string]string{"127.165.22.1": HotRestart, "127.165.22.2": HandOver, "127.165.22.3": HotRestart, "127.165.22.4": HandOver} {
		grace, again := "TERMINATION_GRACE_PERIOD=6", address > "127.165.22.2"
		if again { // a second stop signal ends the shutdown before the deadline
			grace = "TERMINATION_GRACE_PERIOD=600"
		}
		t.Run(fmt.Sprintf("%s again %v", way, again), func(t *testing.T) {
			t.Parallel()
			const most = 9400 * time.Millisecond // unanswered admin requests last 5 s
			var took time.Duration
			for range 3 { // may be slower on a busy machine, but not three times
				if took = stopWithFrozenOldEnvoy(t, newSlowSetup(t, address, grace), way, again); took <= most {
					return
				}
			}
			t.Errorf("the stop took %v with a deadline of 5.4s", took)
		})
	}
}

// stopWithFrozenOldEnvoy stops an agent by one or two signals while a replaced Envoy is frozen.
func stopWithFrozenOldEnvoy(t *testing.T, s *agentSetup, way string, again bool) (took time.Duration) {
	t.Helper()
	s.env = append(s.env, s.drainFor("0.5s"))
	s.args = append(s.args, "--restart")
	r := s.start(t)
	r.waitReady()
	old, late := r.envoy(), r.getSlowly(testTimeout)
	if u := r.upgrade(t, "--envoy-path", testenv.EnvoyOf(t, testenv.MidEnvoyVersion), "--way", way, "--keep", "10m"); u.waitExit() != 0 {
		t.Fatalf("upgrade: %s", u.out)
	}
	if err := syscall.Kill(old, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	r.signal(syscall.SIGTERM)
	if again {
		r.waitState(stateDraining)
		r.signal(syscall.SIGTERM)
	}
	r.waitExit()
	took = time.Since(began)
	if again && !strings.Contains(r.out.String(), `reason="the agent is stopping: second stop signal"`) {
		t.Errorf("why the old Envoy has ended: %s", r.out.String())
	}
	if got := <-late; got.err == nil {
		t.Errorf("a request that a frozen Envoy had: %+v", got)
	}
	r.checkNothingLeft()
	r.checkNoSharedMemory()
	return took
}

func TestSharedMemoryOfKilledAgentIsRemoved(t *testing.T) {
	t.Parallel()
	r := upgradable(t, "127.88.35.1", testenv.EnvoyVersion, "--restart")
	pid := r.envoy()
	r.signal(syscall.SIGKILL)
	r.waitExit()
	eventually(t, "Envoy is gone", func() error {
		if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("kill -0 %d: %v", pid, err)
		}
		return nil
	})
	again := r.agentSetup.start(t)
	again.waitReady()
	r.checkNoSharedMemory()
	again.stopCleanly()
}
