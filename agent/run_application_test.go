package agent

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// newRunSetup returns an agent that runs a shell script as its application.
func newRunSetup(t *testing.T, address, script string) *agentSetup {
	t.Helper()
	s := newSetup(t, address)
	s.env = append(s.env, "PATH="+os.Getenv("PATH"))
	s.args = []string{"run", "--", "sh", "-c", script}
	return s
}

// waitOutput waits until the agent or its application has printed a text.
func (r *agentProcess) waitOutput(text string) {
	r.t.Helper()
	eventually(r.t, fmt.Sprintf("the output has %q", text), func() error {
		if !strings.Contains(r.out.String(), text) {
			return errors.New("not yet")
		}
		return nil
	})
}

func TestRunStartsApplicationWhenReadyAndReturnsItsCode(t *testing.T) {
	t.Parallel()
	s := newRunSetup(t, "127.107.11.1", `echo "ready=$(curl -s -o /dev/null -w '%{http_code}' http://127.107.11.1:15021/healthz/ready)"; echo notify=$NOTIFY_SOCKET; exit 7`)
	s.env = append(s.env, "NOTIFY_SOCKET=/nowhere/notify")
	r := s.start(t)
	r.eventually("the agent responds, and has not started the application", func() error {
		_, _, err := r.readiness()
		return err
	})
	if strings.Contains(r.out.String(), "ready=") {
		t.Fatal("the application was started before the proxy was ready")
	}
	s.cp.start(t)
	r.expectExit(7)
	if out := r.out.String(); !strings.Contains(out, "ready=200") || !strings.Contains(out, "notify=\n") || !strings.Contains(out, "the application exited: exit status 7") {
		t.Error("the output lacks the readiness of the proxy or the exit of the application")
	}
	r.checkNothingLeft()
}

func TestRunFindsStatusPortAtAnyAddress(t *testing.T) {
	testenv.InDir(t, nil)
	for bind, want := range map[string]string{
		"": "http://localhost:15020/healthz/ready", "PROXY_BIND_ADDRESS=127.0.0.9": "http://127.0.0.9:15020/healthz/ready", "PROXY_BIND_ADDRESS=fd00::1": "http://[fd00::1]:15020/healthz/ready",
	} {
		a := &Agent{bootstrap: resolve(t, env(bind)).BootstrapConfig()}
		if got := a.StatusURL("/healthz/ready"); got != want {
			t.Errorf("%q: %s, want %s", bind, got, want)
		}
	}
}

func TestSuccessfulApplicationReturnsZero(t *testing.T) {
	t.Parallel()
	s := newRunSetup(t, "127.107.12.1", "true")
	s.cp.start(t)
	r := s.start(t)
	r.expectExit(0)
	r.checkNothingLeft()
}

func TestSignalsAreForwardedToApplication(t *testing.T) {
	t.Parallel()
	s := newRunSetup(t, "127.107.13.1", `
		trap 'echo got USR1' USR1; trap 'echo got HUP' HUP; trap 'echo got INT' INT; trap 'end=1; echo got TERM' TERM
		echo waiting; while [ ! "$end" ] || [ ! -e end ]; do sleep 0.05; done; exit 3`)
	s.cp.start(t)
	r := s.start(t)
	r.waitOutput("waiting")
	for name, sig := range map[string]syscall.Signal{"USR1": syscall.SIGUSR1, "HUP": syscall.SIGHUP, "INT": syscall.SIGINT, "TERM": syscall.SIGTERM} {
		r.signal(sig)
		r.waitOutput("got " + name)
	}
	r.eventually("the proxy drains while the application stops, and still serves", func() error {
		ready, reasons, err := r.readiness()
		if err == nil && ready {
			err = fmt.Errorf("still ready: %v", reasons)
		}
		return err
	})
	if c, _, err := dialProxy(s.address); err != nil {
		t.Errorf("while the application stops, the proxy does not serve: %v", err)
	} else {
		_ = c.Close()
	}
	s.write(t, "end", "")
	r.expectExit(3)
}

func TestApplicationKilledByASignalIsReportedAsByAShell(t *testing.T) {
	t.Parallel()
	s := newRunSetup(t, "127.107.14.1", "kill -KILL $$")
	s.cp.start(t)
	if code := s.start(t).waitExit(); code != 137 {
		t.Errorf("exit code %d, want 137", code)
	}
}

func TestApplicationIsStoppedWhenProxyExits(t *testing.T) {
	t.Parallel()
	s := newRunSetup(t, "127.107.15.1", `trap 'echo got SIGTERM; exit 0' TERM; echo waiting; while :; do sleep 0.05; done`)
	s.cp.start(t)
	r := s.start(t)
	r.waitOutput("waiting")
	killProcess(t, r.envoy(), syscall.SIGKILL)
	r.expectExit(137)
	if out := r.out.String(); !strings.Contains(out, "got SIGTERM\n") || !strings.Contains(out, "the proxy exited before the application") {
		t.Error("the output lacks the reason")
	}
}

// Jobs that know about their sidecar stop it with /quitquitquit, and may then continue to work.
func TestApplicationContinuesAfterQuittingProxy(t *testing.T) {
	t.Parallel()
	s := newRunSetup(t, "127.107.61.1", `
		trap 'got=15' TERM; curl -s -X POST http://127.107.61.1:15020/quitquitquit
		while curl -s -o /dev/null http://127.107.61.1:15020/healthz/live; do sleep 0.05; done
		echo "the proxy is gone"; while [ ! -e end ]; do sleep 0.05; done; exit $((got + 4))`)
	s.cp.start(t)
	r := s.start(t)
	r.waitOutput("the proxy is gone")
	r.waitOutput("the application continues without it")
	s.write(t, "end", "")
	r.expectExit(4)
}

func TestApplicationIsStoppedWhenAgentIsKilled(t *testing.T) {
	t.Parallel()
	s := newRunSetup(t, "127.107.16.1", `trap 'echo got SIGTERM; exit 0' TERM; echo waiting; while :; do sleep 0.05; done`)
	s.cp.start(t)
	r := s.start(t)
	r.waitOutput("waiting")
	r.signal(syscall.SIGKILL)
	r.waitOutput("got SIGTERM")
}

func TestApplicationIsNotStartedWithoutAReadyProxy(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		address string
		args    []string
		change  func(*agentSetup)
		code    int
		want    string
	}{
		"not ready in time":  {"127.107.17.1", []string{"run", "--timeoutSeconds=1", "--", "echo", "started"}, nil, 255, "not ready after 1s"},
		"no Envoy":           {"127.107.17.2", []string{"run", "--envoy-path=/nowhere/envoy", "--", "echo", "started"}, nil, 127, "/nowhere/envoy"},
		"no program":         {"127.107.17.3", []string{"run", "--", "no-such-program"}, nil, 127, "no-such-program"},
		"not a program":      {"127.107.17.4", []string{"run", "--", "./var/run/secrets/tokens/istio-token"}, nil, 126, "permission denied"},
		"no application":     {"127.107.17.5", []string{"run", "--"}, nil, 2, "write it after --"},
		"no dash":            {"127.107.17.6", []string{"run", "echo", "started"}, nil, 2, "write it after --"},
		"two kinds of proxy": {"127.107.17.7", []string{"run", "sidecar", "router", "--", "echo", "started"}, nil, 2, "one proxy type"},
		"wrong setting":      {"127.107.17.8", []string{"run", "--", "echo", "started"}, func(s *agentSetup) { s.env = append(s.env, "ENVOY_STATUS_PORT=99999") }, 2, "ENVOY_STATUS_PORT"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newRunSetup(t, c.address, "")
			s.args = c.args
			if c.change != nil {
				c.change(s)
			}
			r := s.start(t)
			r.expectExit(c.code)
			if out := r.out.String(); !strings.Contains(out, c.want) || strings.Contains(out, "started\n") {
				t.Errorf("the output lacks %q, or the application was started", c.want)
			}
		})
	}
}

func TestSignalBeforeApplicationStartStopsProxy(t *testing.T) {
	t.Parallel()
	s := newRunSetup(t, "127.107.18.1", "echo started")
	r := s.start(t)
	r.eventually("the agent responds", func() error { _, _, err := r.readiness(); return err })
	r.signal(syscall.SIGTERM)
	r.expectExit(128 + 15)
	if strings.Contains(r.out.String(), "started\n") {
		t.Error("the application was started")
	}
	r.checkNothingLeft()
}

func TestApplicationReadsAgentStdin(t *testing.T) {
	t.Parallel()
	s := newRunSetup(t, "127.107.19.1", `read line; echo "read $line"`)
	s.stdin = strings.NewReader("some words\n")
	s.cp.start(t)
	r := s.start(t)
	if code := r.waitExit(); code != 0 || !strings.Contains(r.out.String(), "read some words") {
		t.Errorf("exit code %d", code)
	}
}

// The first process of a PID namespace inherits all processes whose parent has exited.
func TestFirstProcessOfContainerReapsOrphans(t *testing.T) {
	t.Parallel()
	s := newRunSetup(t, "127.107.20.1", `
		(sh -c 'echo orphan $$; sleep 0.1' &)
		zombies() { cat /proc/[0-9]*/stat 2>/dev/null | grep -c ' Z 1 '; }
		n=0; while [ "$(zombies)" = 0 ] && [ $n -lt 300 ]; do sleep 0.05; n=$((n+1)); done
		echo "before: $(zombies)"
		n=0; while [ "$(zombies)" != 0 ] && [ $n -lt 300 ]; do sleep 0.05; n=$((n+1)); done
		echo "after: $(zombies)"; exit 5`)
	s.within = []string{"unshare", "--pid", "--fork", "--mount-proc", "--kill-child"}
	s.cp.start(t)
	r := s.start(t)
	r.expectExit(5)
	if out := r.out.String(); !strings.Contains(out, "before: 1\n") || !strings.Contains(out, "after: 0\n") {
		t.Error("the orphan was not reaped")
	}
}
