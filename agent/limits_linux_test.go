package agent

import (
	"errors"
	"strings"
	"syscall"
	"testing"
)

// The memory limit is set on the control group in which the agent runs; the test does not pass it to the agent.
func TestEnvoyIsStartedWithinTheLimitsOfItsControlGroup(t *testing.T) {
	t.Parallel()
	s := newSetup(t, "127.101.7.1")
	s.env = append(s.env, `PROXY_CONFIG={discoveryAddress: "`+s.cp.address+`"}`)
	memory := newMemoryCgroup(t, "1073741824")
	s.within = []string{"sh", "-c", `echo $$ >"` + memory + `" && exec "$0" "$@"`}
	out, errOut, code := s.runCommand(t, "config", "-o", "json")
	if code != 0 || !strings.Contains(out, `"value": "1073741824"`) || !strings.Contains(out, "cgroup limit") {
		t.Fatalf("config: exit code %d, %s%s", code, out, errOut)
	}
	s.args = []string{"proxy", "sidecar"}
	r := s.start(t)
	r.eventually("Envoy watches its heap", func() error {
		_, body, err := r.http("GET", "15000/stats?filter=overload.envoy.resource_monitors.fixed_heap.pressure")
		if err == nil && !strings.Contains(body, "fixed_heap.pressure") {
			err = errors.New(body)
		}
		return err
	})
}

// Agent and Envoy share one limit: under load, neither may starve the other.
func TestAgentAndEnvoyFitIn100MiB(t *testing.T) {
	t.Parallel()
	s := newSetup(t, "127.165.7.1")
	s.env = append(s.env, `PROXY_CONFIG={discoveryAddress: "`+s.cp.address+`", terminationDrainDuration: 0.5s}`)
	s.serveTraffic(t)
	s.cp.start(t)
	memory := newMemoryCgroup(t, "104857600")
	s.within = []string{"sh", "-c", `echo $$ >"` + memory + `" && exec "$0" "$@"`}
	r := s.start(t)
	r.waitReady()
	pid, load := r.envoy(), startTraffic(t, s.address)
	for range 20 {
		if code, body, err := r.http("GET", "15020/stats/prometheus"); code != 200 || !strings.Contains(body, "\nenvoy_") {
			t.Errorf("a scrape: %d (%v)", code, err)
		}
	}
	r.eventually("some load", func() error {
		if load.requests.Load() < 500 {
			return errors.New("not yet")
		}
		return nil
	})
	load.checkLossless()
	if now := r.envoy(); now != pid {
		t.Errorf("Envoy %d was replaced by %d", pid, now)
	}
	r.signal(syscall.SIGTERM)
	r.checkExit(0)
	r.checkNothingLeft()
}
