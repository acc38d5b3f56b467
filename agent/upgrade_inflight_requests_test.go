package agent

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

func TestRequestsOfOldEnvoyFinishAfterKeepTime(t *testing.T) {
	t.Parallel()
	for address, way := range map[string]string{"127.88.44.1": HotRestart, "127.88.44.2": HandOver} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			s := newSlowSetup(t, address)
			s.args = append(s.args, "--restart")
			r := s.start(t)
			r.waitReady()
			late := r.getSlowly(6 * time.Second)
			u := r.upgrade(t, "--envoy-path", testenv.EnvoyOf(t, testenv.OldEnvoyVersion), "--way", way, "--keep", "1s", "--wait")
			if got := <-late; got.code != http.StatusOK {
				t.Errorf("the request that the old Envoy had: %+v", got)
			}
			if u.waitExit() != 0 {
				t.Errorf("upgrade: %s", u.out)
			}
			r.waitOnlyEnvoy(r.envoy())
			r.stopCleanly()
		})
	}
}

func TestEndlessRequestDoesNotRetainOldEnvoy(t *testing.T) {
	t.Parallel()
	for address, way := range map[string]string{"127.88.45.1": HotRestart, "127.88.45.2": HandOver} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			s := newSlowSetup(t, address, "TERMINATION_GRACE_PERIOD=4")
			s.args = append(s.args, "--restart")
			r := s.start(t)
			r.waitReady()
			late := r.getSlowly(10 * testTimeout)
			u := r.upgrade(t, "--envoy-path", testenv.EnvoyOf(t, testenv.MidEnvoyVersion), "--way", way, "--keep", "1s", "--wait")
			if u.waitExit() != 0 || !strings.Contains(u.out.String(), "the time for its idle connections (--keep) and the time for its remaining requests have passed") {
				t.Errorf("upgrade: %s", u.out)
			}
			<-late
			r.waitOnlyEnvoy(r.envoy())
			r.stopCleanly()
		})
	}
}

// An old Envoy that responds late to the drain request still has clients when its keep time has passed.
func TestSlowlyDrainingOldEnvoyLosesNoRequest(t *testing.T) {
	t.Parallel()
	r := upgradable(t, "127.88.46.1", testenv.OldEnvoyVersion)
	old, load := r.envoy(), startClients(t, r.address)
	r.eventually("some load", func() error {
		if load.requests.Load() < 50 {
			return errors.New("not yet")
		}
		return nil
	})
	if err := syscall.Kill(old, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if u := r.upgrade(t, "--envoy-path", testenv.EnvoyOf(t, testenv.EnvoyVersion), "--keep", "1s"); u.waitExit() != 0 {
		t.Fatalf("upgrade: %s", u.out)
	}
	r.eventually("the old Envoy does not respond", func() error { // two seconds, longer than a timeout of one second
		if !strings.Contains(r.out.String(), "retrying the drain of the old Envoy") {
			return errors.New("not yet")
		}
		return nil
	})
	if err := syscall.Kill(old, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	r.results(`result="done"} 1`)
	load.checkLossless()
	r.checkServes(testenv.EnvoyVersion, 1)
	r.stopCleanly()
}

// TestHalfClosedConnectionSurvives verifies that an upgrade waits for half-closed connections: their client still
// expects the response.
func TestHalfClosedConnectionSurvives(t *testing.T) {
	for address, way := range map[string]string{"127.88.61.1": HotRestart, "127.88.61.2": HandOver} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			app, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = app.Close() })
			taken, answers := make(chan struct{}), make(chan struct{})
			go func() {
				if c, err := app.Accept(); err == nil {
					n, _ := io.Copy(io.Discard, c)
					close(taken)
					<-answers
					_, _ = fmt.Fprint(c, n)
					_ = c.Close()
				}
			}()
			s := newSetup(t, address)
			s.env = append(s.env, "ENVOY_PATH="+testenv.EnvoyOf(t, testenv.OldEnvoyVersion))
			s.args = append(s.args, "--restart")
			s.cp.more = []*listenerv3.Listener{message(t, &listenerv3.Listener{}, tcpListener, s.address)}
			s.cp.clusters = []*clusterv3.Cluster{message(t, &clusterv3.Cluster{}, appCluster, app.Addr().(*net.TCPAddr).Port)}
			r := s.startReady(t)
			failed := make(chan error, 1)
			go func() {
				answer, err := upload(s.address+":9001", 1000)
				if err == nil && answer != "1000" {
					err = fmt.Errorf("the application reports %s received bytes", answer)
				}
				failed <- err
			}()
			<-taken
			if u := r.upgrade(t, "--envoy-path", testenv.EnvoyOf(t, testenv.EnvoyVersion), "--way", way, "--keep", "1m"); u.waitExit() != 0 {
				t.Fatalf("upgrade: %s", u.out)
			}
			time.Sleep(4 * time.Second) // longer than the time of an old Envoy without connections
			close(answers)
			if err := <-failed; err != nil {
				t.Error(err)
			}
			r.stopCleanly()
		})
	}
}
