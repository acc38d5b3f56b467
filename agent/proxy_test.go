package agent

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

func TestReadinessReportsWhatProxyWaitsFor(t *testing.T) {
	t.Parallel()
	s := newSetup(t, "127.88.1.1")
	r := s.start(t)
	r.eventually("reasons without a control plane", func() error {
		ready, reasons, err := r.readiness()
		switch {
		case err != nil:
			return err
		case ready:
			t.Fatal("ready without a control plane")
		case !strings.Contains(reasons["certificates"], s.cp.address), !strings.Contains(reasons["xds"], s.cp.address),
			!strings.Contains(reasons["envoy"], "INITIALIZING"):
			return fmt.Errorf("reasons: %v", reasons)
		}
		return nil
	})
	s.cp.start(t)
	r.waitReady()
	if code, body, err := r.http("GET", "15021/healthz/ready"); err != nil || code != 200 {
		t.Errorf("through Envoy's own port: %d %s %v", code, body, err)
	}
	c, identity, err := dialProxy(s.address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if want := "spiffe://cluster.local/ns/books/sa/shop"; identity != want {
		t.Errorf("the proxy's certificate is for %s, want %s", identity, want)
	}
	if _, body, _ := r.http("GET", "15020/debug/certz"); !strings.Contains(body, identity) {
		t.Errorf("/debug/certz does not contain %s: %s", identity, body)
	}
	if _, body, _ := r.http("GET", "15020/debug/xdsz"); !strings.Contains(body, listenerType) {
		t.Errorf("/debug/xdsz does not list listeners: %s", body)
	}
	if _, body, _ := r.http("GET", "15020/metrics"); !strings.Contains(body, "envoy_server_live") || !strings.Contains(body, "\nistio_agent_go_goroutines") {
		t.Error("/metrics lacks metrics of the agent or of Envoy")
	}
	if got, want := s.cp.node.Load().GetId(), "sidecar~127.88.1.1~shop-1.books~books.svc.cluster.local"; got != want {
		t.Errorf("node id %q, want %q", got, want)
	}
}

func TestTerminatedProxyLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	s := newSetup(t, "127.88.2.1")
	s.env = append(s.env, "MINIMUM_DRAIN_DURATION=1s")
	r := s.startReady(t)
	r.signal(syscall.SIGTERM)
	r.eventually("readiness fails during the drain, and the status port still responds", func() error {
		ready, reasons, err := r.readiness()
		if err == nil && ready {
			err = errors.New("still ready")
		}
		if err == nil && !strings.Contains(reasons["envoy"], "draining") {
			err = fmt.Errorf("reasons: %v", reasons)
		}
		return err
	})
	r.expectExit(0)
	if !strings.Contains(r.out.String(), "no request and no connection is left") {
		t.Error("the log does not contain the wait for the drain")
	}
	r.checkNothingLeft()
}

func TestSIGHUPStopsProxyLikeSIGTERM(t *testing.T) {
	t.Parallel()
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP) // child processes then do not ignore it, also under nohup
	defer signal.Stop(hangup)
	s := newSetup(t, "127.141.23.1")
	defer s.cp.start(t)()
	r := s.start(t)
	r.waitReady()
	r.signal(syscall.SIGHUP)
	r.checkExit(0, "signal to stop", "no connection is left")
	r.checkNothingLeft()
}

func TestSecondSignalCutsTheDrainShort(t *testing.T) {
	t.Parallel()
	s := newSetup(t, "127.88.3.1")
	s.env = append(s.env, fmt.Sprintf(`PROXY_CONFIG={discoveryAddress: "%s", concurrency: 1, terminationDrainDuration: 600s}`, s.cp.address))
	r := s.startReady(t)
	c, _, err := dialProxy(s.address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	r.signal(os.Interrupt)
	r.eventually("draining", func() error {
		_, reasons, err := r.readiness()
		if err == nil && !strings.Contains(reasons["envoy"], "draining") {
			err = fmt.Errorf("reasons: %v", reasons)
		}
		return err
	})
	r.signal(os.Interrupt)
	r.expectExit(0)
	r.checkNothingLeft()
}

func TestDrainEndsWithTheLastConnection(t *testing.T) {
	t.Parallel()
	s := newSetup(t, "127.88.4.1")
	s.env = append(s.env, "EXIT_ON_ZERO_ACTIVE_CONNECTIONS=true", "MINIMUM_DRAIN_DURATION=0s", "DRAIN_QUIET_PERIOD=0s",
		fmt.Sprintf(`PROXY_CONFIG={discoveryAddress: "%s", concurrency: 1, terminationDrainDuration: 600s}`, s.cp.address))
	r := s.startReady(t)
	c, _, err := dialProxy(s.address)
	if err != nil {
		t.Fatal(err)
	}
	r.signal(syscall.SIGTERM)
	r.eventually("the connection is counted while it drains", func() error {
		_, body, err := r.http("GET", "15000/stats?filter=127.88.4.1_8443.downstream_cx_active")
		if err == nil && !strings.Contains(body, ": 1") {
			err = fmt.Errorf("stats: %s", body)
		}
		return err
	})
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	r.expectExit(0)
	if !strings.Contains(r.out.String(), "no connection is left") {
		t.Error("the log does not contain \"no connection was left\"")
	}
}

func TestStatusPortRequests(t *testing.T) {
	t.Parallel()
	s := newSetup(t, "127.88.5.1")
	r := s.startReady(t)
	r.post("15020/drain")
	r.eventually("not ready after POST /drain", func() error {
		ready, _, err := r.readiness()
		if err == nil && ready {
			err = errors.New("still ready")
		}
		return err
	})
	r.post("15020/quitquitquit")
	r.expectExit(0)
	r.checkNothingLeft()
}

func TestKilledEnvoyEndsAgentWithItsCode(t *testing.T) {
	t.Parallel()
	s := newSetup(t, "127.88.6.1")
	r := s.startReady(t)
	killProcess(t, r.envoy(), syscall.SIGKILL)
	r.expectExit(137)
	if !strings.Contains(r.out.String(), "Envoy ended") {
		t.Error("the output does not report the exit of Envoy")
	}
	r.checkNothingLeft()
}

func TestKilledEnvoyIsRestartedWithFlag(t *testing.T) {
	t.Parallel()
	s := newSetup(t, "127.88.7.1")
	s.args = append(s.args, "--restart")
	r := s.startReady(t)
	first := r.envoy()
	if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	r.eventually("another Envoy", func() error {
		if r.envoy() == first {
			return errors.New("still the first")
		}
		return nil
	})
	r.waitReady()
	r.signal(syscall.SIGTERM)
	r.expectExit(0)
	r.checkNothingLeft()
}

func TestFailingEnvoyEndsAgentWithItsExitCode(t *testing.T) {
	t.Parallel()
	s := newSetup(t, "127.88.8.1")
	path := s.program(t, "envoy", "#!/bin/sh\n[ \"$1\" = --version ] && { echo 'envoy  version: 0/1.40.0/Clean/RELEASE/BoringSSL'; exit; }\necho cannot go on >&2\nexit 3\n")
	s.args = append(s.args, "--restart", "--envoy-path", path)
	r := s.start(t)
	r.expectExit(3)
	if out := r.out.String(); !strings.Contains(out, "cannot go on") || !strings.Contains(out, "after 5 restarts") {
		t.Error("the output lacks Envoy's last lines or the number of restarts")
	}
}

func TestEnvoyDiesWithItsAgent(t *testing.T) {
	t.Parallel()
	s := newSetup(t, "127.88.9.1")
	r := s.startReady(t)
	pid := r.envoy()
	r.signal(syscall.SIGKILL)
	r.waitExit()
	eventually(t, "Envoy is gone", func() error {
		if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("kill -0 %d: %v", pid, err)
		}
		return nil
	})
}

func TestMissingTokenIsNamedInTheReasons(t *testing.T) {
	t.Parallel()
	s := newSetup(t, "127.88.10.1")
	token := filepath.Join(s.dir, "var/run/secrets/tokens/istio-token")
	if err := os.Remove(token); err != nil {
		t.Fatal(err)
	}
	s.cp.start(t)
	r := s.start(t)
	r.eventually("the reason names the file", func() error {
		_, reasons, err := r.readiness()
		if err == nil && !strings.Contains(reasons["certificates"], "./var/run/secrets/tokens/istio-token") {
			err = fmt.Errorf("reasons: %v", reasons)
		}
		return err
	})
	s.write(t, "var/run/secrets/tokens/istio-token", testToken)
	r.waitReady()
}

func TestStartFailsWithReason(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		address string
		change  func(t *testing.T, s *agentSetup)
		code    int
		want    []string
	}{
		"no Envoy": {"127.88.11.1", func(_ *testing.T, s *agentSetup) {
			s.env = append(s.env, "ENVOY_PATH=/nowhere/envoy")
		}, 127, []string{"/nowhere/envoy", "ENVOY_PATH"}},
		"status port in use": {"127.88.12.1", func(t *testing.T, s *agentSetup) {
			l, err := net.Listen("tcp", s.address+":15020")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = l.Close() })
		}, 1, []string{"127.88.12.1:15020", fmt.Sprint(os.Getpid())}},
		"wrong value": {"127.88.13.1", func(_ *testing.T, s *agentSetup) {
			s.env = append(s.env, "ENVOY_STATUS_PORT=99999")
		}, 2, []string{"ENVOY_STATUS_PORT", "99999", "65535"}},
		"wrong mesh file": {"127.88.14.1", func(t *testing.T, s *agentSetup) {
			s.write(t, "etc/istio/config/mesh", "defaultConfig:\n  drainDuration: 5s\n  terminationDrainDuration: soon\n")
		}, 2, []string{"etc/istio/config/mesh", "line 3", "terminationDrainDuration", "soon", "5s"}},
		"wrong flag value": {"127.88.15.1", func(_ *testing.T, s *agentSetup) {
			s.args = append(s.args, "--concurrency=many")
		}, 2, []string{"concurrency", "many"}},
		"wrong type": {"127.88.16.1", func(_ *testing.T, s *agentSetup) {
			s.args = []string{"proxy", "ztunnel"}
		}, 2, []string{"ztunnel", "sidecar"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSetup(t, tc.address)
			tc.change(t, s)
			r := s.start(t)
			r.expectExit(tc.code)
			for _, want := range tc.want {
				if !strings.Contains(r.out.String(), want) {
					t.Errorf("the output does not contain %q", want)
				}
			}
		})
	}
}

func TestUnknownFlagIsToleratedWithAWarning(t *testing.T) {
	t.Parallel()
	s := newSetup(t, "127.88.17.1")
	s.args = []string{"proxy", "sidecar", "--someFlagOfTomorrow=1", "--concurency=3", "--stsPort=0", "--profiling=false", "--log_output_level=default:info"}
	s.env = append(s.env, "ENVOY_PATH=/nowhere/envoy")
	r := s.start(t)
	r.expectExit(127)
	for _, want := range []string{"flag --someFlagOfTomorrow is unknown", "flag --concurency is unknown and has no effect; did you mean --concurrency?"} {
		if !strings.Contains(r.out.String(), want) {
			t.Errorf("no warning contains %q", want)
		}
	}
}

func TestWaitAndRequestReachProxy(t *testing.T) {
	t.Parallel()
	s := newSetup(t, "127.88.18.1")
	s.cp.start(t)
	r := s.start(t)
	wait := *s
	wait.args = []string{"wait", "--periodMillis", "20"}
	if w := wait.start(t); w.waitExit() != 0 {
		t.Errorf("wait: %s", w.out)
	}
	ask := *s
	ask.args = []string{"request", "GET", "server_info"}
	if a := ask.start(t); a.waitExit() != 0 || !strings.Contains(a.out.String(), testenv.EnvoyVersion) {
		t.Errorf("request GET server_info: %s", a.out)
	}
	ask.args = []string{"request", "--debug-port=15020", "POST", "drain"}
	if a := ask.start(t); a.waitExit() != 0 {
		t.Errorf("request POST drain: %s", a.out)
	}
	wait.args = []string{"wait", "--timeoutSeconds", "1", "--periodMillis", "20"}
	if w := wait.start(t); w.waitExit() != 255 || !strings.Contains(w.out.String(), "draining") {
		t.Errorf("wait for a draining proxy: %s", w.out)
	}
	r.signal(syscall.SIGTERM)
	r.waitExit()
}

func TestAgentWithoutEnvoyServesAndStops(t *testing.T) {
	t.Parallel()
	s := newSetup(t, "127.88.19.1")
	s.env = append(s.env, "DISABLE_ENVOY=true", "ENVOY_PATH=/nowhere/envoy")
	r := s.startReady(t) // the application may wait for this
	if u := r.upgrade(t, "--envoy-path", testenv.Envoy(t)); u.waitExit() != 1 || !strings.Contains(u.out.String(), "runs no Envoy") {
		t.Errorf("upgrade: %s", u.out)
	}
	r.post("15020/drain")
	if ready, reasons, err := r.readiness(); err != nil || ready || reasons["agent"] != "the agent is draining" {
		t.Errorf("after POST /drain: ready %v, %v, %v", ready, reasons, err)
	}
	r.post("15020/quitquitquit")
	r.expectExit(0)
	r.checkNothingLeft()
}

// Without a status port, Envoy's readiness port still answers, and so does the status socket for systemd's watchdog.
func TestNoStatusPortLeavesEnvoysReadinessPort(t *testing.T) {
	t.Parallel()
	s := newSetup(t, "127.151.3.1")
	s.write(t, "etc/istio/pod/annotations", "status.sidecar.istio.io/port=\"0\"\n")
	s.cp.start(t)
	r := s.start(t)
	r.eventually("Envoy's readiness port reports ready", func() error {
		code, body, err := r.http("GET", "15021/healthz/ready")
		if err == nil && (code != 200 || strings.TrimSpace(body) != "ready") {
			err = fmt.Errorf("%d %s", code, body)
		}
		return err
	})
	if _, _, err := r.http("GET", "15020/healthz/ready"); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("port 15020: %v", err)
	}
	if info, err := os.Stat(filepath.Join(s.dir, "etc/istio/proxy/status")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	r.signal(syscall.SIGTERM)
	r.checkExit(0)
}
