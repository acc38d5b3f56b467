package agent

import (
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// preventExit makes a process unable to exit, even after SIGKILL, until release is called. A thread that traces the
// process stops its exit. It then behaves like a process that waits for a hung disk.
func preventExit(t *testing.T, pid int) (release func()) {
	t.Helper()
	held, let, done := make(chan error), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // ptrace belongs to a thread
		defer runtime.UnlockOSThread()
		_, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(pid), 0, unix.PTRACE_O_TRACEEXIT, 0, 0)
		if errno != 0 {
			held <- errno
			return
		}
		held <- nil
		<-let
		_ = unix.PtraceDetach(pid) // fails if the process has not reached its exit
	}()
	if err := <-held; err != nil {
		t.Skipf("processes cannot be traced on this machine: %v", err)
	}
	var released bool
	release = func() {
		if !released {
			released = true
			close(let)
			<-done
		}
	}
	t.Cleanup(release)
	return release
}

// waitGivenUp waits until status, metrics and readiness report that an Envoy was given up.
func (r *agentProcess) waitGivenUp(pid int) {
	r.t.Helper()
	r.eventually("the status reports the Envoy that does not end", func() error {
		s, err := r.envoyStatus()
		if err != nil {
			return err
		}
		if len(s.GivenUp) != 1 || s.GivenUp[0].PID != pid || !strings.Contains(s.GivenUp[0].Threads, " is in state t at ") {
			return fmt.Errorf("status: %+v", s.GivenUp)
		}
		return nil
	})
	r.eventually("readiness reports it", func() error {
		code, body, err := r.http("GET", "15020/healthz/ready")
		if err == nil && (code != 200 || !strings.Contains(body, "killed Envoy processes that still exist in the kernel: 1")) {
			err = fmt.Errorf("%d %s", code, body)
		}
		return err
	})
	r.metric(`istio_agent_envoy_processes{state="given-up"} 1`)
	if gone := syscall.Kill(pid, 0); gone != nil {
		r.t.Fatalf("Envoy %d has ended (%v), so the test proves nothing", pid, gone)
	}
}

func (r *agentProcess) metric(want string) {
	r.t.Helper()
	r.eventually("the metrics contain "+want, func() error {
		_, body, err := r.http("GET", "15020/metrics")
		if err == nil && !strings.Contains(body, "\n"+want+"\n") {
			err = errors.New("they do not")
		}
		return err
	})
}

func (r *agentProcess) checkProcessGone(pid int) {
	r.t.Helper()
	r.metric(`istio_agent_envoy_processes{state="given-up"} 0`)
	if s, err := r.envoyStatus(); err != nil || len(s.GivenUp) != 0 {
		r.t.Errorf("%+v, %v", s.GivenUp, err)
	}
	if gone := syscall.Kill(pid, 0); !errors.Is(gone, syscall.ESRCH) {
		r.t.Errorf("Envoy %d: %v", pid, gone)
	}
}

// checkAnswers sends requests over n new connections. A request over a connection to a dead process would hang.
func (r *agentProcess) checkAnswers(n int) {
	r.t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: testTimeout}
	for range n {
		if err := postOnce(client, "http://"+r.address+":8080/"); err != nil {
			r.t.Fatal(err)
		}
	}
}

func TestUnkillableEnvoyIsReplaced(t *testing.T) {
	t.Parallel()
	for n, version := range testenv.EnvoyVersions() {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			r := upgradable(t, fmt.Sprintf("127.88.38.%d", n+1), version, "--restart")
			first := r.envoy()
			release := preventExit(t, first)
			if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			r.eventually("the agent logs that Envoy does not end", func() error {
				_, _, _ = r.http("GET", "15020/healthz/ready") // triggers the check
				if !strings.Contains(r.out.String(), "crashed or was killed, but its process still exists in the kernel") {
					return errors.New("not yet")
				}
				return nil
			})
			r.eventually("another Envoy", func() error {
				if n := len(r.startedEnvoys()); n != 2 {
					return fmt.Errorf("%d so far", n)
				}
				return nil
			})
			r.waitGivenUp(first)
			r.checkServes(version, 1) // on the original admin address
			r.checkAnswers(30)
			r.metric(`istio_agent_envoy_restarts_total{reason="killed"} 1`)
			release()
			r.checkProcessGone(first)
			r.checkAnswers(3)
			r.stopCleanly()
		})
	}
}

// inheritListeners duplicates the listening sockets of another process into this one.
func inheritListeners(t *testing.T, pid int) (end func()) {
	t.Helper()
	handle, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(handle) }()
	var own []int
	for descriptor := range 200 {
		fd, err := unix.PidfdGetfd(handle, descriptor, 0)
		if err != nil {
			continue
		}
		if listens, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN); err == nil && listens == 1 {
			own = append(own, fd)
		} else {
			_ = unix.Close(fd)
		}
	}
	if len(own) == 0 {
		t.Fatalf("process %d listens nowhere", pid)
	}
	return func() {
		for _, fd := range own {
			_ = unix.Close(fd)
		}
	}
}

func TestEnvoyRestartsUntilPortsAreFree(t *testing.T) {
	t.Parallel()
	r := upgradable(t, "127.88.42.1", testenv.EnvoyVersion, "--restart")
	first := r.envoy()
	release, unlisten := preventExit(t, first), inheritListeners(t, first)
	if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for _, failures := range []int{3, envoyFailures + 1} {
		r.eventually("Envoys fail, and others are started", func() error {
			_, _, _ = r.http("GET", "15020/healthz/ready")
			if n := strings.Count(r.out.String(), "restarting Envoy"); n <= failures { // the first restart follows the Envoy that was given up
				return fmt.Errorf("%d so far", n)
			}
			return nil
		})
	}
	release()
	unlisten()
	r.eventually("Envoy serves", func() error {
		code, body, err := r.http("GET", "15020/healthz/ready")
		if err == nil && code != 200 {
			err = errors.New(body)
		}
		return err
	})
	r.checkAnswers(3)
	r.stopCleanly()
}

func TestUnkillableOldEnvoyLeavesNewIntact(t *testing.T) {
	t.Parallel()
	for address, way := range map[string]string{"127.88.39.1": HotRestart, "127.88.39.2": HandOver} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			r := upgradable(t, address, testenv.OldEnvoyVersion, "--restart")
			old := r.envoy()
			release := preventExit(t, old)
			load := startTraffic(t, r.address)
			if u := r.upgrade(t, "--envoy-path", testenv.EnvoyOf(t, testenv.EnvoyVersion), "--way", way, "--keep", "1m", "--wait"); u.waitExit() != 0 {
				t.Fatalf("upgrade: %s", u.out)
			}
			r.waitGivenUp(old)
			load.checkLossless()
			r.checkServes(testenv.EnvoyVersion, 1)
			r.checkAnswers(30)
			release()
			r.checkProcessGone(old)
			r.stopCleanly()
		})
	}
}

func TestUnkillableFailedNewEnvoyLeavesOldIntact(t *testing.T) {
	t.Parallel()
	for address, way := range map[string]string{"127.88.40.1": HotRestart, "127.88.40.2": HandOver} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			r := upgradable(t, address, testenv.OldEnvoyVersion, "--restart")
			stub := r.stubEnvoy(t, testenv.EnvoyVersion, strings.ReplaceAll(neverReadyEnvoy, "ADDRESS", address))
			u := r.upgrade(t, "--envoy-path", stub, "--way", way, "--ready-within", "8s")
			r.eventually("two Envoys", func() error {
				if n := len(r.startedEnvoys()); n != 2 {
					return fmt.Errorf("%d", n)
				}
				return nil
			})
			young := r.startedEnvoys()[1]
			release := preventExit(t, young)
			u.expectExit(1)
			r.waitGivenUp(young)
			r.results(`result="went-back"} 1`)
			r.checkAnswers(30)
			release()
			r.checkProcessGone(young)
			r.stopCleanly()
		})
	}
}

// A frozen old Envoy cannot close its listeners. The kernel would assign new connections to it if the agent did not
// close them.
func TestFrozenOldEnvoyGetsNoNewConnections(t *testing.T) {
	t.Parallel()
	s := newSetup(t, "127.88.41.1")
	s.env = append(s.env, "TERMINATION_GRACE_PERIOD=6")
	r := s.upgradable(t, testenv.EnvoyVersion)
	old := r.envoy()
	if err := syscall.Kill(old, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if u := r.upgrade(t, "--envoy-path", testenv.EnvoyOf(t, testenv.OldEnvoyVersion), "--way", HandOver, "--keep", "10m"); u.waitExit() != 0 {
		t.Fatalf("upgrade: %s", u.out)
	}
	r.eventually("the agent logs that the old Envoy does not respond", func() error {
		if !strings.Contains(r.out.String(), "the old Envoy did not close its listeners") {
			return errors.New("not yet")
		}
		return nil
	})
	r.checkAnswers(60)
	if err := syscall.Kill(old, 0); err != nil {
		t.Errorf("the old Envoy is gone: %v", err)
	}
	r.signal(syscall.SIGTERM)
	r.waitExit()
	r.waitOnlyEnvoy(0)
}
