package agent

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// upgrade runs the command.
func (r *running) upgrade(t *testing.T, args ...string) *running {
	t.Helper()
	u := *r.setup
	u.args = append([]string{"upgrade"}, args...)
	return u.start(t)
}

// serves checks what admin interface, agent and metrics say of the Envoy that serves.
func (r *running) serves(version string, epoch int) {
	r.t.Helper()
	r.eventually("the admin address is of the Envoy that serves", func() error {
		_, body, err := r.http("GET", "15000/server_info")
		if err == nil && (!strings.Contains(body, "/"+version+"/") || !strings.Contains(body, `"state": "LIVE"`)) {
			err = errors.New(body[:min(len(body), 300)])
		}
		return err
	})
	want := fmt.Sprintf("istio_agent_envoy_epoch %d", epoch)
	if _, body, err := r.http("GET", "15020/metrics"); err != nil || !strings.Contains(body, want+"\n") {
		r.t.Errorf("the metrics do not say %q (%v)", want, err)
	}
	r.waitReady()
}

func (r *running) results(want string) {
	r.t.Helper()
	r.eventually("the metric of upgrades", func() error {
		_, body, err := r.http("GET", "15020/metrics")
		if err == nil && !strings.Contains(body, "istio_agent_envoy_upgrades_total{"+want) {
			err = fmt.Errorf("no %s", want)
		}
		return err
	})
}

func upgradable(t *testing.T, address, version string, args ...string) *running {
	t.Helper()
	return newSetup(t, address).upgradable(t, version, args...)
}

func (s *setup) upgradable(t *testing.T, version string, args ...string) *running {
	t.Helper()
	s.env = append(s.env, "ENVOY_PATH="+testenv.EnvoyOf(t, version))
	s.args = append(s.args, args...)
	s.serveTraffic(t)
	s.cp.start(t)
	r := s.start(t)
	r.waitReady()
	return r
}

// alone checks that all Envoys but one are gone.
func (r *running) alone(pid int) {
	r.t.Helper()
	for _, other := range r.envoys() {
		if err := syscall.Kill(other, 0); other != pid && !errors.Is(err, syscall.ESRCH) {
			r.t.Errorf("Envoy %d is still there (%v)", other, err)
		}
	}
}

func TestUpgradeLosesNoRequest(t *testing.T) {
	t.Parallel()
	newest := testenv.EnvoyVersion
	for i, c := range []struct{ from, to, way string }{
		{testenv.OldEnvoyVersion, newest, hotRestart},
		{newest, testenv.OldEnvoyVersion, hotRestart},
		{testenv.MidEnvoyVersion, newest, handOver},
		{newest, testenv.MidEnvoyVersion, handOver},
	} {
		t.Run(fmt.Sprintf("%s to %s by %s", c.from, c.to, c.way), func(t *testing.T) {
			t.Parallel()
			var args []string
			if c.way == hotRestart {
				args = []string{"--restart"}
			}
			r := upgradable(t, fmt.Sprintf("127.88.30.%d", 1+i), c.from, args...)
			load, streams := startTraffic(t, r.address), openStreams(t, r.address)
			r.eventually("some load", func() error {
				if load.asked.Load() < 50 {
					return errors.New("not yet")
				}
				return nil
			})
			u := r.upgrade(t, "--envoy-path", testenv.EnvoyOf(t, c.to), "--keep", "1m")
			if code := u.exit(); code != 0 || !strings.Contains(u.out.String(), c.way) {
				t.Fatalf("upgrade: %d: %s", code, u.out)
			}
			streams.alive()
			if again := r.upgrade(t, "--envoy-path", testenv.EnvoyOf(t, c.to)); again.exit() != 1 || !strings.Contains(again.out.String(), "under way") {
				t.Errorf("an upgrade during an upgrade: %s", again.out)
			}
			streams.alive()
			streams.cancel()
			r.results(`result="done"} 1`)
			load.lossless()
			r.alone(r.envoy())
			r.serves(c.to, 1)
			r.signal(syscall.SIGTERM)
			if code := r.exit(); code != 0 {
				t.Errorf("exit code %d, want 0", code)
			}
			r.nothingLeft()
		})
	}
}

func TestOldEnvoyEndsWhenItsLastConnectionHas(t *testing.T) {
	t.Parallel()
	for address, way := range map[string]string{"127.88.36.1": hotRestart, "127.88.36.2": handOver} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			r := upgradable(t, address, testenv.EnvoyVersion, "--restart")
			u := r.upgrade(t, "--envoy-path", testenv.EnvoyOf(t, testenv.OldEnvoyVersion), "--way", way, "--keep", "10m", "--wait")
			if u.exit() != 0 || !strings.Contains(u.out.String(), "no connection was left") {
				t.Errorf("upgrade: %s", u.out)
			}
			r.alone(r.envoy())
			r.serves(testenv.OldEnvoyVersion, 1)
			r.end()
		})
	}
}
