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

// hold makes a process unable to end, whoever kills it, until release is called: its end stops for the thread that traces
// it, as that of another waits for a disk that does not answer.
func hold(t *testing.T, pid int) (release func()) {
	t.Helper()
	held, let, done := make(chan error), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // it is a thread that traces
		defer runtime.UnlockOSThread()
		_, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(pid), 0, unix.PTRACE_O_TRACEEXIT, 0, 0)
		if errno != 0 {
			held <- errno
			return
		}
		held <- nil
		<-let
		_ = unix.PtraceDetach(pid) // which fails when the process did not come to its end
	}()
	if err := <-held; err != nil {
		t.Skipf("no process may be traced here: %v", err)
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

// givenUp waits until the agent says that it has given an Envoy up, everywhere.
func (r *running) givenUp(pid int) {
	r.t.Helper()
	r.eventually("the Envoy that does not end is told of", func() error {
		s, err := r.envoyStatus()
		if err != nil {
			return err
		}
		if len(s.GivenUp) != 1 || s.GivenUp[0].PID != pid || !strings.Contains(s.GivenUp[0].Threads, " is in state t at ") {
			return fmt.Errorf("status: %+v", s.GivenUp)
		}
		return nil
	})
	r.eventually("readiness tells of it", func() error {
		code, body, err := r.http("GET", "15020/healthz/ready")
		if err == nil && (code != 200 || !strings.Contains(body, "Envoys that were killed and that the kernel has not ended: 1")) {
			err = fmt.Errorf("%d %s", code, body)
		}
		return err
	})
	r.metric(`istio_agent_envoy_processes{state="given-up"} 1`)
	if gone := syscall.Kill(pid, 0); gone != nil {
		r.t.Fatalf("Envoy %d: %v, so nothing was given up", pid, gone)
	}
}

func (r *running) metric(want string) {
	r.t.Helper()
	r.eventually("the metrics say "+want, func() error {
		_, body, err := r.http("GET", "15020/metrics")
		if err == nil && !strings.Contains(body, "\n"+want+"\n") {
			err = errors.New("they do not")
		}
		return err
	})
}

func (r *running) buried(pid int) {
	r.t.Helper()
	r.metric(`istio_agent_envoy_processes{state="given-up"} 0`)
	if s, err := r.envoyStatus(); err != nil || len(s.GivenUp) != 0 {
		r.t.Errorf("%+v, %v", s.GivenUp, err)
	}
	if gone := syscall.Kill(pid, 0); !errors.Is(gone, syscall.ESRCH) {
		r.t.Errorf("Envoy %d: %v", pid, gone)
	}
}

// answers asks Envoy over a number of new connections: those that go to a process that is no more would wait for ever.
func (r *running) answers(n int) {
	r.t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
	for range n {
		if err := ask(client, "http://"+r.address+":8080/"); err != nil {
			r.t.Fatal(err)
		}
	}
}

func TestEnvoyThatIsKilledAndDoesNotEndIsReplacedAllTheSame(t *testing.T) {
	t.Parallel()
	for n, version := range testenv.EnvoyVersions() {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			r := upgradable(t, fmt.Sprintf("127.88.38.%d", n+1), version, "--restart")
			first := r.envoy()
			release := hold(t, first)
			if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			r.eventually("it is noticed", func() error {
				_, _, _ = r.http("GET", "15020/healthz/ready") // somebody has to ask
				if !strings.Contains(r.out.String(), "was killed or has crashed, and the kernel has not ended it") {
					return errors.New("not yet")
				}
				return nil
			})
			r.eventually("another Envoy", func() error {
				if n := len(r.envoys()); n != 2 {
					return fmt.Errorf("%d so far", n)
				}
				return nil
			})
			r.givenUp(first)
			r.serves(version, 1) // at the admin address of before
			r.answers(30)
			r.metric(`istio_agent_envoy_restarts_total{reason="killed"} 1`)
			release()
			r.buried(first)
			r.answers(3)
			r.end()
		})
	}
}

// alsoListens gives this process the listening sockets of another, which are then not that one's alone.
func alsoListens(t *testing.T, pid int) (end func()) {
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

func TestEnvoyIsStartedUntilThePortsOfOneThatDoesNotEndAreFree(t *testing.T) {
	t.Parallel()
	r := upgradable(t, "127.88.42.1", testenv.EnvoyVersion, "--restart")
	first := r.envoy()
	release, unlisten := hold(t, first), alsoListens(t, first)
	if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for _, failures := range []int{3, envoyFailures + 1} {
		r.eventually("Envoys fail, and others are started", func() error {
			_, _, _ = r.http("GET", "15020/healthz/ready")
			if n := strings.Count(r.out.String(), "Envoy is started again"); n <= failures { // the first is for the end of the one that is given up
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
	r.answers(3)
	r.end()
}

func TestOldEnvoyThatDoesNotEndAfterAnUpgradeTakesNothingFromTheNewOne(t *testing.T) {
	t.Parallel()
	for address, way := range map[string]string{"127.88.39.1": hotRestart, "127.88.39.2": handOver} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			r := upgradable(t, address, testenv.OldEnvoyVersion, "--restart")
			old := r.envoy()
			release := hold(t, old)
			load := startTraffic(t, r.address)
			if u := r.upgrade(t, "--envoy-path", testenv.EnvoyOf(t, testenv.EnvoyVersion), "--way", way, "--keep", "1m", "--wait"); u.exit() != 0 {
				t.Fatalf("upgrade: %s", u.out)
			}
			r.givenUp(old)
			load.lossless()
			r.serves(testenv.EnvoyVersion, 1)
			r.answers(30)
			release()
			r.buried(old)
			r.end()
		})
	}
}

func TestNewEnvoyThatFailsAndDoesNotEndTakesNothingFromTheOldOne(t *testing.T) {
	t.Parallel()
	for address, way := range map[string]string{"127.88.40.1": hotRestart, "127.88.40.2": handOver} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			r := upgradable(t, address, testenv.OldEnvoyVersion, "--restart")
			stub := r.stub(t, testenv.EnvoyVersion, strings.ReplaceAll(neverReady, "ADDRESS", address))
			u := r.upgrade(t, "--envoy-path", stub, "--way", way, "--ready-within", "8s")
			r.eventually("two Envoys", func() error {
				if n := len(r.envoys()); n != 2 {
					return fmt.Errorf("%d", n)
				}
				return nil
			})
			young := r.envoys()[1]
			release := hold(t, young)
			if code := u.exit(); code != 1 {
				t.Errorf("upgrade: %d: %s", code, u.out)
			}
			r.givenUp(young)
			r.results(`result="went-back"} 1`)
			r.answers(30)
			release()
			r.buried(young)
			r.end()
		})
	}
}

// An old Envoy that is frozen cannot close its listeners, and would keep the connections that the kernel deals it.
func TestFrozenOldEnvoyIsGivenNoNewConnections(t *testing.T) {
	t.Parallel()
	s := newSetup(t, "127.88.41.1")
	s.env = append(s.env, "TERMINATION_GRACE_PERIOD=6")
	r := s.upgradable(t, testenv.EnvoyVersion)
	old := r.envoy()
	if err := syscall.Kill(old, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if u := r.upgrade(t, "--envoy-path", testenv.EnvoyOf(t, testenv.OldEnvoyVersion), "--way", handOver, "--keep", "10m"); u.exit() != 0 {
		t.Fatalf("upgrade: %s", u.out)
	}
	r.eventually("the old Envoy was found not to answer", func() error {
		if !strings.Contains(r.out.String(), "the old Envoy was not told to close its listeners") {
			return errors.New("not yet")
		}
		return nil
	})
	r.answers(60)
	if err := syscall.Kill(old, 0); err != nil {
		t.Errorf("the old Envoy is gone: %v", err)
	}
	r.signal(syscall.SIGTERM)
	r.exit()
	r.alone(0)
}
