package agent

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

func TestEndOfEnvoyIsToldByReasonAndExitCode(t *testing.T) {
	t.Parallel()
	n := 0
	for _, version := range testenv.EnvoyVersions() {
		for _, c := range []struct {
			signal syscall.Signal
			code   int
			says   string
		}{
			{syscall.SIGSEGV, 139, "SIGSEGV"},
			{syscall.SIGABRT, 134, "SIGABRT"},
			{syscall.SIGKILL, 137, "SIGKILL"},
		} {
			n++
			address := fmt.Sprintf("127.102.20.%d", n)
			t.Run(version+" "+c.says, func(t *testing.T) {
				s := newSetup(t, address)
				s.env = append(s.env, "ENVOY_PATH="+testenv.EnvoyOf(t, version))
				s.within = []string{"sh", "-c", `ulimit -c 0; exec "$0" "$@"`}
				s.cp.start(t)
				r := s.start(t)
				r.waitReady()
				if err := syscall.Kill(r.envoy(), c.signal); err != nil {
					t.Fatal(err)
				}
				r.endsWith(c.code, "reason=signaled", "Envoy ended: ended by "+c.says)
			})
		}
	}
}

func TestRestartsAreToldByTheReasonOfTheEndBefore(t *testing.T) {
	t.Parallel()
	s := newSetup(t, "127.102.21.1")
	s.args = append(s.args, "--restart")
	s.cp.start(t)
	r := s.start(t)
	r.waitReady()
	first := r.envoy()
	if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	r.eventually("another Envoy is ready", func() error {
		if ready, reasons, err := r.reasons(); err != nil || !ready {
			return fmt.Errorf("%v, %w", reasons, err)
		}
		if pids := r.envoys(); len(pids) < 2 {
			return errors.New("no other Envoy yet")
		}
		return nil
	})
	status := r.waitState(Running)
	if status.Restarts != 1 || status.PID == first || status.LastEnd == nil || status.LastEnd.Reason != "signaled" || status.LastEnd.ExitCode != 137 {
		t.Errorf("status: %+v, last end %+v", status, status.LastEnd)
	}
	_, metrics, err := r.http("GET", "15020/metrics")
	for _, want := range []string{`istio_agent_envoy_restarts_total{reason="signaled"} 1`, `istio_agent_envoy_ends_total{reason="signaled"} 1`,
		`istio_agent_envoy_ends_total{reason="oom-killed"} 0`, `istio_agent_envoy_processes{state="running"} 1`, `istio_agent_envoy_processes{state="starting"} 0`} {
		if !strings.Contains(metrics, want) {
			t.Errorf("the metrics (%v) do not have %s", err, want)
		}
	}
	r.signal(syscall.SIGTERM)
	r.endsWith(0)
}

func TestEnvoyThatCrashesWhileItDrainsIsNoCleanEnd(t *testing.T) {
	t.Parallel()
	s := newSlowSetup(t, "127.102.22.1")
	r := s.start(t)
	r.waitReady()
	late := r.getLate(patience)
	r.signal(syscall.SIGTERM)
	r.waitState(Draining)
	if err := syscall.Kill(r.envoy(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-late
	r.endsWith(137, "it ended while it drained")
}

func TestEnvoyKilledForLackOfMemoryIsToldAsThat(t *testing.T) {
	t.Parallel()
	s := newSetup(t, "127.102.23.1")
	// A real Envoy is killed alike, but at which limit depends on what the machine has cached.
	s.env = append(s.env, "ENVOY_PATH="+s.program(t, "envoy", "#!/bin/sh\n[ \"$1\" = --version ] && { echo 'envoy  version: 0/1.40.0/Clean/RELEASE/BoringSSL'; exit; }\n"+
		"exec python3 -c 'held = []\nwhile True: held.append(bytearray(1 << 20))'\n"))
	s.within = []string{"sh", "-c", `echo $$ >"` + smallGroup(t, "150000000") + `" || exit 99; exec "$0" "$@"`}
	s.start(t).endsWith(137, "reason=oom-killed", "for lack of memory", "higher memory limit")
}

// smallGroup makes a control group with a memory limit, and gives the file by which a process joins it.
func smallGroup(t *testing.T, limit string) string {
	t.Helper()
	for _, kind := range []struct{ dir, limit, swap string }{
		{"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.swappiness"},
		{"/sys/fs/cgroup", "memory.max", "memory.swap.max"},
	} {
		dir := filepath.Join(kind.dir, "pilotfish-test-"+t.Name())
		if os.Mkdir(dir, 0o755) != nil {
			continue
		}
		t.Cleanup(func() {
			eventually(t, "an empty control group", func() error { return os.Remove(dir) })
		})
		if setLimit(filepath.Join(dir, kind.limit), limit) != nil {
			continue
		}
		_ = setLimit(filepath.Join(dir, kind.swap), "0")
		return filepath.Join(dir, "cgroup.procs")
	}
	t.Fatal("no control group with a memory limit can be made: root and a writable cgroup file system are needed")
	return ""
}

// setLimit writes to a file that is there: a folder that is no control group has none.
func setLimit(file, value string) error {
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}
