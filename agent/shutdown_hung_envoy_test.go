package agent

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestFrozenEnvoyIsKilledAtTheDeadline(t *testing.T) {
	t.Parallel()
	s := newSlowSetup(t, "127.102.9.1", "TERMINATION_GRACE_PERIOD=8")
	s.env = append(s.env, s.drainFor("0.5s"))
	r := s.start(t)
	r.waitReady()
	killProcess(t, r.envoy(), syscall.SIGSTOP)
	began := time.Now()
	r.signal(syscall.SIGTERM)
	r.eventually("the status port reports not ready while the stop hangs", func() error {
		code, _, err := r.http("GET", "15020/healthz/ready")
		if err == nil && code != 503 {
			err = fmt.Errorf("answer %d", code)
		}
		return err
	})
	r.checkExit(137, "stopped with SIGKILL")
	t.Logf("the stop took %v", time.Since(began).Round(time.Millisecond))
	r.checkNothingLeft()
}

// hungEnvoy writes a fake Envoy whose admin interface accepts connections and never answers.
func (s *agentSetup) hungEnvoy(t *testing.T) string {
	t.Helper()
	script := fmt.Sprintf(`#!/bin/sh
[ "$1" = --version ] && { echo 'envoy  version: 0/1.40.0/Clean/RELEASE/BoringSSL'; exit; }
exec python3 -c '
import signal, socket, sys
def end(*_):
    print("got SIGTERM", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
s = socket.socket()
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(("%s", 15000))
s.listen(99)
print("listening", flush=True)
signal.pause()
'
`, s.address)
	return s.program(t, "envoy", script)
}

// TestHungAdminInterfaceDoesNotDelayShutdown verifies that each admin request times out, and that the agent then stops
// sending them. The deadline is distant, so neither it nor SIGKILL can have ended the wait.
func TestHungAdminInterfaceDoesNotDelayShutdown(t *testing.T) {
	t.Parallel()
	s := newSetup(t, "127.102.10.1")
	s.env = append(s.env, "ENVOY_PATH="+s.hungEnvoy(t), "TERMINATION_GRACE_PERIOD=10m", s.drainFor("0.5s"))
	r := s.start(t)
	r.eventually("the admin interface accepts connections", func() error {
		if !strings.Contains(r.out.String(), "listening") {
			return errors.New("not yet")
		}
		return nil
	})
	r.signal(syscall.SIGTERM)
	r.checkExit(0, "Envoy did not start to drain", "cannot count the requests and connections of Envoy", "got SIGTERM")
}
