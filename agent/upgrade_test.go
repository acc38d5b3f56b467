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
func (r *agentProcess) upgrade(t *testing.T, args ...string) *agentProcess {
	t.Helper()
	u := *r.agentSetup
	u.args = append([]string{"upgrade"}, args...)
	return u.start(t)
}

// checkServes checks the serving Envoy in the admin interface, the agent's status and the metrics.
func (r *agentProcess) checkServes(version string, epoch int) {
	r.t.Helper()
	r.eventually("the admin address leads to the serving Envoy", func() error {
		_, body, err := r.http("GET", "15000/server_info")
		if err == nil && (!strings.Contains(body, "/"+version+"/") || !strings.Contains(body, `"state": "LIVE"`)) {
			err = errors.New(body[:min(len(body), 300)])
		}
		return err
	})
	want := fmt.Sprintf("istio_agent_envoy_epoch %d", epoch)
	if _, body, err := r.http("GET", "15020/metrics"); err != nil || !strings.Contains(body, want+"\n") {
		r.t.Errorf("the metrics do not contain %q (%v)", want, err)
	}
	r.waitReady()
}

func (r *agentProcess) results(want string) {
	r.t.Helper()
	r.eventually("the metric of upgrades", func() error {
		_, body, err := r.http("GET", "15020/metrics")
		if err == nil && !strings.Contains(body, "istio_agent_envoy_upgrades_total{"+want) {
			err = fmt.Errorf("no %s", want)
		}
		return err
	})
}

func upgradable(t *testing.T, address, version string, args ...string) *agentProcess {
	t.Helper()
	return newSetup(t, address).upgradable(t, version, args...)
}

func (s *agentSetup) upgradable(t *testing.T, version string, args ...string) *agentProcess {
	t.Helper()
	s.env = append(s.env, "ENVOY_PATH="+testenv.EnvoyOf(t, version))
	s.args = append(s.args, args...)
	s.serveTraffic(t)
	r := s.startReady(t)
	return r
}

// waitOnlyEnvoy waits until all Envoys but one have exited.
func (r *agentProcess) waitOnlyEnvoy(pid int) {
	r.t.Helper()
	for _, other := range r.startedEnvoys() {
		if err := syscall.Kill(other, 0); other != pid && !errors.Is(err, syscall.ESRCH) {
			r.t.Errorf("Envoy %d still runs (%v)", other, err)
		}
	}
}

func TestUpgradeLosesNoRequest(t *testing.T) {
	t.Parallel()
	newest := testenv.EnvoyVersion
	for i, c := range []struct{ from, to, way string }{
		{testenv.OldEnvoyVersion, newest, HotRestart},
		{newest, testenv.OldEnvoyVersion, HotRestart},
		{testenv.MidEnvoyVersion, newest, HandOver},
		{newest, testenv.MidEnvoyVersion, HandOver},
	} {
		t.Run(fmt.Sprintf("%s to %s by %s", c.from, c.to, c.way), func(t *testing.T) {
			t.Parallel()
			var args []string
			if c.way == HotRestart {
				args = []string{"--restart"}
			}
			r := upgradable(t, fmt.Sprintf("127.88.30.%d", 1+i), c.from, args...)
			load, streams := startTraffic(t, r.address), openStreams(t, r.address)
			r.eventually("some load", func() error {
				if load.requests.Load() < 50 {
					return errors.New("not yet")
				}
				return nil
			})
			u := r.upgrade(t, "--envoy-path", testenv.EnvoyOf(t, c.to), "--keep", "1m")
			if code := u.waitExit(); code != 0 || !strings.Contains(u.out.String(), c.way) {
				t.Fatalf("upgrade: %d: %s", code, u.out)
			}
			streams.alive()
			if again := r.upgrade(t, "--envoy-path", testenv.EnvoyOf(t, c.to)); again.waitExit() != 1 || !strings.Contains(again.out.String(), "in progress") {
				t.Errorf("an upgrade during an upgrade: %s", again.out)
			}
			streams.alive()
			streams.cancel()
			r.results(`result="done"} 1`)
			load.checkLossless()
			r.waitOnlyEnvoy(r.envoy())
			r.checkServes(c.to, 1)
			r.signal(syscall.SIGTERM)
			r.expectExit(0)
			r.checkNothingLeft()
		})
	}
}

func TestOldEnvoyStopsAfterLastConnection(t *testing.T) {
	t.Parallel()
	for address, way := range map[string]string{"127.88.36.1": HotRestart, "127.88.36.2": HandOver} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			r := upgradable(t, address, testenv.EnvoyVersion, "--restart")
			u := r.upgrade(t, "--envoy-path", testenv.EnvoyOf(t, testenv.OldEnvoyVersion), "--way", way, "--keep", "10m", "--wait")
			if u.waitExit() != 0 || !strings.Contains(u.out.String(), "no connection was left") {
				t.Errorf("upgrade: %s", u.out)
			}
			r.waitOnlyEnvoy(r.envoy())
			r.checkServes(testenv.OldEnvoyVersion, 1)
			r.stopCleanly()
		})
	}
}
