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

// stub is a binary that answers every question as the Envoy does, and runs as the script says.
func (r *running) stub(t *testing.T, version, run string) string {
	t.Helper()
	path := filepath.Join(r.dir, "stub-envoy")
	text := fmt.Sprintf("#!/bin/sh\nreal=%s\ncase \"$*\" in --version|--hot-restart-version|*validate*) exec $real \"$@\";; esac\n%s\n",
		testenv.EnvoyOf(t, version), run)
	testenv.Program(t, path, []byte(text))
	return path
}

// goesOn checks that an upgrade fails with the reason and that nobody notices.
func (r *running) goesOn(t *testing.T, why string, upgrade ...string) {
	t.Helper()
	load := startTraffic(t, r.address)
	u := r.upgrade(t, upgrade...)
	if code := u.exit(); code != 1 || !strings.Contains(u.out.String(), why) {
		t.Errorf("upgrade: %d: %s; want 1 and %q", code, u.out, why)
	}
	load.lossless()
}

// neverReady is an Envoy that takes the admin interface and then waits for ever for clusters.
const neverReady = `cat > never.yaml <<'E'
node: {id: a, cluster: b}
admin: {address: {socket_address: {address: ADDRESS, port_value: 15000}}}
dynamic_resources: {cds_config: {resource_api_version: V3, initial_fetch_timeout: 0s, path_config_source: {path: /dev/null}}}
static_resources: {clusters: [{name: a, type: EDS, connect_timeout: 1s, eds_cluster_config: {eds_config: {resource_api_version: V3, initial_fetch_timeout: 0s, api_config_source: {api_type: GRPC, transport_api_version: V3, grpc_services: [{envoy_grpc: {cluster_name: x}}]}}}}, {name: x, type: STATIC}]}
E
shift 2; exec $real -c never.yaml "$@"`

func TestUpgradeThatFailsGoesBackWithoutALostRequest(t *testing.T) {
	t.Parallel()
	newest, oldest := testenv.EnvoyVersion, testenv.OldEnvoyVersion
	for name, c := range map[string]struct {
		address, way, run, why string
		within                 string // for the one that takes over the admin interface, time to do so on a busy machine
		epoch                  int
	}{
		"it ends at once":                {"127.88.31.1", hotRestart, "echo cannot go on >&2; exit 3", "cannot go on", "2s", 0},
		"it never asks for anything":     {"127.88.31.2", hotRestart, "exec sleep 1000", "not ready within", "2s", 0},
		"it never becomes ready":         {"127.88.31.3", hotRestart, neverReady, "serves again", "8s", 2},
		"it ends at once, side by side":  {"127.88.31.4", handOver, "exit 3", "goes on untouched", "2s", 0},
		"it never answers, side by side": {"127.88.31.5", handOver, "exec sleep 1000", "goes on untouched", "2s", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := upgradable(t, c.address, oldest, "--restart")
			stub := r.stub(t, newest, strings.ReplaceAll(c.run, "ADDRESS", c.address))
			r.goesOn(t, c.why, "--envoy-path", stub, "--way", c.way, "--ready-within", c.within, "--keep", "3s")
			r.results(`result="went-back"} 1`)
			r.serves(oldest, c.epoch)
			// What failed is no obstacle to the next attempt.
			r.eventually("the next upgrade", func() error {
				if u := r.upgrade(t, "--envoy-path", testenv.EnvoyOf(t, newest), "--way", c.way, "--keep", "2s", "--wait"); u.exit() != 0 {
					return errors.New(u.out.String())
				}
				return nil
			})
			r.alone(r.envoy())
			r.serves(newest, len(r.envoys())-1)
			r.end()
		})
	}
}

// end stops the agent, and checks that nothing is left of any Envoy.
func (r *running) end() {
	r.t.Helper()
	r.signal(syscall.SIGTERM)
	if code := r.exit(); code != 0 {
		r.t.Errorf("exit code %d, want 0", code)
	}
	r.alone(0)
	r.noSharedMemory()
	if left, _ := filepath.Glob(filepath.Join(r.dir, "etc/istio/proxy/hot/*")); len(left) > 0 {
		r.t.Errorf("left behind: %v", left)
	}
}

var baseID = regexp.MustCompile(`--base-id (\d+)`)

func (r *running) noSharedMemory() {
	r.t.Helper()
	for _, m := range baseID.FindAllStringSubmatch(r.out.String(), -1) {
		file := "/dev/shm/envoy_shared_memory_" + m[1] + "0"
		if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
			r.t.Errorf("left behind: %s (%v)", file, err)
		}
	}
}

func TestUpgradeIsRefusedWithTheReason(t *testing.T) {
	t.Parallel()
	r := upgradable(t, "127.88.32.1", testenv.EnvoyVersion)
	first := r.envoy()
	picky := r.program(t, "picky", "#!/bin/sh\ncase \"$*\" in *validate*) echo no such field; exit 1;; esac\nexec "+testenv.Envoy(t)+" \"$@\"\n")
	for want, args := range map[string][]string{
		"no such file":                {"--envoy-path", "/nowhere/envoy"},
		"cannot be used as Envoy":     {"--envoy-path", "/bin/true"},
		"is a directory":              {"--envoy-path", "."},
		"is not executable":           {"--envoy-path", "var/run/secrets/tokens/istio-token"},
		"started without hot restart": {"--envoy-path", testenv.Envoy(t), "--way", hotRestart},
		"no such field":               {"--envoy-path", picky},
	} {
		if u := r.upgrade(t, args...); u.exit() != 1 || !strings.Contains(u.out.String(), want) {
			t.Errorf("%v: %s; want %q", args, u.out, want)
		}
	}
	for _, args := range [][]string{nil, {"--envoy-path", "x", "--way", "by-magic"}} {
		if u := r.upgrade(t, args...); u.exit() != 2 {
			t.Errorf("%v: exit code %d, want 2: %s", args, u.exit(), u.out)
		}
	}
	if _, _, err := r.http("POST", "15020/drain"); err != nil {
		t.Fatal(err)
	}
	if u := r.upgrade(t, "--envoy-path", testenv.Envoy(t)); u.exit() != 1 || !strings.Contains(u.out.String(), "draining") {
		t.Errorf("while draining: %s", u.out)
	}
	if r.envoy() != first {
		t.Error("another Envoy was started")
	}
	r.end()
	if u := r.upgrade(t, "--envoy-path", testenv.Envoy(t)); u.exit() != 1 || !strings.Contains(u.out.String(), "no agent answers") {
		t.Errorf("without an agent: %s", u.out)
	}
}

func TestUpgradeIsRefusedWithoutAControlPlane(t *testing.T) {
	t.Parallel()
	s := newSetup(t, "127.88.32.2")
	stop := s.cp.start(t)
	r := s.start(t)
	r.waitReady()
	stop()
	r.eventually("the upgrade is refused", func() error {
		u := r.upgrade(t, "--envoy-path", testenv.Envoy(t), "--ready-within", "1s")
		if u.exit() != 1 || !strings.Contains(u.out.String(), "no connection to the control plane") {
			return errors.New(u.out.String())
		}
		return nil
	})
	r.waitReady()
}

func TestNewEnvoyThatDiesWhileTheOldOneDrainsIsFollowedByTheOldVersion(t *testing.T) {
	t.Parallel()
	for address, way := range map[string]string{"127.88.33.1": hotRestart, "127.88.33.2": handOver} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			r := upgradable(t, address, testenv.OldEnvoyVersion, "--restart")
			streams := openStreams(t, r.address)
			if u := r.upgrade(t, "--envoy-path", testenv.EnvoyOf(t, testenv.EnvoyVersion), "--way", way, "--keep", "8s"); u.exit() != 0 {
				t.Fatalf("upgrade: %s", u.out)
			}
			if err := syscall.Kill(r.envoy(), syscall.SIGSEGV); err != nil {
				t.Fatal(err)
			}
			r.eventually("the old version is started again", func() error {
				if n := len(r.envoys()); n != 3 {
					return fmt.Errorf("%d Envoys so far", n)
				}
				return nil
			})
			r.waitReady()
			streams.alive()
			streams.cancel()
			r.results(`result="went-back"} 1`)
			r.alone(r.envoy())
			r.serves(testenv.OldEnvoyVersion, 2)
			r.end()
		})
	}
}

// TestUpgradeEndsWithTheOldEnvoyThatServes: another is started in its place, beside which the new one would go on unnoticed.
func TestUpgradeEndsWithTheOldEnvoyThatServes(t *testing.T) {
	for address, way := range map[string]string{"127.88.43.1": hotRestart, "127.88.43.2": handOver} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			r := upgradable(t, address, testenv.OldEnvoyVersion, "--restart")
			late := r.stub(t, testenv.EnvoyVersion, `cp $2 late.yaml; shift 2; touch begun; while [ ! -e go ]; do sleep 0.05; done; exec $real -c late.yaml "$@"`)
			u := r.upgrade(t, "--envoy-path", late, "--way", way, "--ready-within", "60s")
			r.eventually("the upgrade has begun", func() error {
				_, err := os.Stat(filepath.Join(r.dir, "begun"))
				return err
			})
			if err := syscall.Kill(r.envoys()[0], syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			r.eventually("another Envoy of the old version", func() error {
				if n := len(r.envoys()); n != 3 {
					return fmt.Errorf("%d Envoys so far", n)
				}
				return nil
			})
			again := r.envoys()[2]
			r.serves(testenv.OldEnvoyVersion, 2)
			r.write(t, "go", "")
			if code := u.exit(); code != 1 || !strings.Contains(u.out.String(), "which served, has ended") {
				t.Errorf("upgrade: %d: %s", code, u.out)
			}
			r.results(`result="lost"} 1`)
			r.alone(again)
			r.answers(30)
			r.end()
		})
	}
}

func TestNewEnvoyOutlivesAnOldOneThatDiesWhileItDrains(t *testing.T) {
	t.Parallel()
	for address, way := range map[string]string{"127.88.37.1": hotRestart, "127.88.37.2": handOver} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			r := upgradable(t, address, testenv.EnvoyVersion, "--restart")
			old := r.envoy()
			openStreams(t, r.address)
			if u := r.upgrade(t, "--envoy-path", testenv.EnvoyOf(t, testenv.MidEnvoyVersion), "--way", way, "--keep", "4s"); u.exit() != 0 {
				t.Fatalf("upgrade: %s", u.out)
			}
			load := startTraffic(t, r.address)
			if err := syscall.Kill(old, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			r.results(`result="done"} 1`)
			r.serves(testenv.MidEnvoyVersion, 1)
			r.eventually("enough load", func() error {
				if load.asked.Load() < 1500 { // some seconds, in which the new one gives the old one its order to end
					return errors.New("not yet")
				}
				return nil
			})
			load.stop()
			r.serves(testenv.MidEnvoyVersion, 1)
			r.end()
		})
	}
}

func TestTerminationDuringAnUpgradeEndsBothEnvoys(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ address, way, run string }{
		"before the new one serves, hot restart": {"127.88.34.1", hotRestart, "exec sleep 1000"},
		"before the new one serves, hand-over":   {"127.88.34.2", handOver, "exec sleep 1000"},
		"while the old one drains, hot restart":  {"127.88.34.3", hotRestart, `exec $real "$@"`},
		"while the old one drains, hand-over":    {"127.88.34.4", handOver, `exec $real "$@"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := upgradable(t, c.address, testenv.EnvoyVersion, "--restart")
			streams := openStreams(t, r.address)
			u := r.upgrade(t, "--envoy-path", r.stub(t, testenv.EnvoyVersion, c.run), "--way", c.way, "--keep", "60s", "--ready-within", "60s", "--wait")
			r.eventually("two Envoys", func() error {
				if n := len(r.envoys()); n != 2 {
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
			r.end()
			u.exit()
		})
	}
}

func TestRequestInTheOldEnvoyIsFinishedThoughTheAgentEnds(t *testing.T) {
	t.Parallel()
	for address, way := range map[string]string{"127.141.21.1": hotRestart, "127.141.21.2": handOver} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			s := newSlowSetup(t, address, "TERMINATION_GRACE_PERIOD=600")
			s.args = append(s.args, "--restart")
			r := s.start(t)
			r.waitReady()
			late := r.getLate(6 * time.Second)
			u := r.upgrade(t, "--envoy-path", testenv.EnvoyOf(t, testenv.OldEnvoyVersion), "--way", way)
			if u.exit() != 0 {
				t.Fatalf("upgrade: %s", u.out)
			}
			r.signal(syscall.SIGTERM)
			if got := <-late; got.code != http.StatusOK {
				t.Errorf("the request that the old Envoy had: %+v", got)
			}
			r.endsWith(0)
			r.nothingLeft()
			r.noSharedMemory()
		})
	}
}

func TestIdleConnectionOfTheOldEnvoyHasItsTimeAndNoMore(t *testing.T) {
	t.Parallel()
	for n, c := range []struct{ way, from, to string }{
		{hotRestart, testenv.EnvoyVersion, testenv.OldEnvoyVersion},
		{hotRestart, testenv.OldEnvoyVersion, testenv.MidEnvoyVersion},
		{handOver, testenv.MidEnvoyVersion, testenv.EnvoyVersion},
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
			late := r.getLate(4 * time.Second)
			if u := r.upgrade(t, "--envoy-path", testenv.EnvoyOf(t, c.to), "--way", c.way, "--keep", "10m"); u.exit() != 0 {
				t.Fatalf("upgrade: %s", u.out)
			}
			r.signal(syscall.SIGTERM)
			if got := <-late; got.code != http.StatusOK {
				t.Errorf("the request that the old Envoy had: %+v", got)
			}
			r.endsWith(0, "no request is left, and its ", " connections had their time") // that of the request may be seen once more
			r.nothingLeft()
			r.noSharedMemory()
		})
	}
}

func TestFrozenOldEnvoyDoesNotOutlastTheDeadline(t *testing.T) {
	t.Parallel()
	for address, way := range map[string]string{"127.165.22.1": hotRestart, "127.165.22.2": handOver, "127.165.22.3": hotRestart, "127.165.22.4": handOver} {
		grace, again := "TERMINATION_GRACE_PERIOD=6", address > "127.165.22.2"
		if again { // and it does not last to the deadline when it is asked twice
			grace = "TERMINATION_GRACE_PERIOD=600"
		}
		t.Run(fmt.Sprintf("%s again %v", way, again), func(t *testing.T) {
			t.Parallel()
			const most = 9400 * time.Millisecond // the questions that it leaves open take 5 s
			var took time.Duration
			for range 3 { // a busy machine may take longer, and would not each time
				if took = endWithFrozenElder(t, newSlowSetup(t, address, grace), way, again); took <= most {
					return
				}
			}
			t.Errorf("the end took %v, and the deadline is after 5.4s", took)
		})
	}
}

// endWithFrozenElder ends an agent, asking it once or twice, while the Envoy that another has replaced is frozen.
func endWithFrozenElder(t *testing.T, s *setup, way string, again bool) (took time.Duration) {
	t.Helper()
	s.env = append(s.env, s.drainFor("0.5s"))
	s.args = append(s.args, "--restart")
	r := s.start(t)
	r.waitReady()
	old, late := r.envoy(), r.getLate(patience)
	if u := r.upgrade(t, "--envoy-path", testenv.EnvoyOf(t, testenv.MidEnvoyVersion), "--way", way, "--keep", "10m"); u.exit() != 0 {
		t.Fatalf("upgrade: %s", u.out)
	}
	if err := syscall.Kill(old, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	r.signal(syscall.SIGTERM)
	if again {
		r.waitState(Draining)
		r.signal(syscall.SIGTERM)
	}
	r.exit()
	took = time.Since(began)
	if again && !strings.Contains(r.out.String(), `because="the agent is ending: asked again to stop"`) {
		t.Errorf("why the old Envoy has ended: %s", r.out.String())
	}
	if got := <-late; got.err == nil {
		t.Errorf("a request that a frozen Envoy had: %+v", got)
	}
	r.nothingLeft()
	r.noSharedMemory()
	return took
}

func TestKilledAgentLeavesNoSharedMemoryToItsSuccessor(t *testing.T) {
	t.Parallel()
	r := upgradable(t, "127.88.35.1", testenv.EnvoyVersion, "--restart")
	pid := r.envoy()
	r.signal(syscall.SIGKILL)
	r.exit()
	eventually(t, "Envoy is gone", func() error {
		if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("kill -0 %d: %v", pid, err)
		}
		return nil
	})
	again := r.setup.start(t)
	again.waitReady()
	r.noSharedMemory()
	again.end()
}
