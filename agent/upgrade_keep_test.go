package agent

import (
	"errors"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

func TestRequestsOfTheOldEnvoyAreFinishedThoughItsTimeIsOver(t *testing.T) {
	t.Parallel()
	for address, way := range map[string]string{"127.88.44.1": hotRestart, "127.88.44.2": handOver} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			s := newSlowSetup(t, address)
			s.args = append(s.args, "--restart")
			r := s.start(t)
			r.waitReady()
			late := r.getLate(6 * time.Second)
			u := r.upgrade(t, "--envoy-path", testenv.EnvoyOf(t, testenv.OldEnvoyVersion), "--way", way, "--keep", "1s", "--wait")
			if got := <-late; got.code != http.StatusOK {
				t.Errorf("the request that the old Envoy had: %+v", got)
			}
			if u.exit() != 0 {
				t.Errorf("upgrade: %s", u.out)
			}
			r.alone(r.envoy())
			r.end()
		})
	}
}

func TestRequestThatOutlastsAllTimesDoesNotKeepTheOldEnvoy(t *testing.T) {
	t.Parallel()
	for address, way := range map[string]string{"127.88.45.1": hotRestart, "127.88.45.2": handOver} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			s := newSlowSetup(t, address, "TERMINATION_GRACE_PERIOD=4")
			s.args = append(s.args, "--restart")
			r := s.start(t)
			r.waitReady()
			late := r.getLate(10 * patience)
			u := r.upgrade(t, "--envoy-path", testenv.EnvoyOf(t, testenv.MidEnvoyVersion), "--way", way, "--keep", "1s", "--wait")
			if u.exit() != 0 || !strings.Contains(u.out.String(), "its time was over, and that of the requests") {
				t.Errorf("upgrade: %s", u.out)
			}
			<-late
			r.alone(r.envoy())
			r.end()
		})
	}
}

// An old Envoy that answers late has told none of its clients to go when its time would be over.
func TestOldEnvoyThatIsSlowToDrainLosesNoRequest(t *testing.T) {
	t.Parallel()
	r := upgradable(t, "127.88.46.1", testenv.OldEnvoyVersion)
	old, load := r.envoy(), startClients(t, r.address)
	r.eventually("some load", func() error {
		if load.asked.Load() < 50 {
			return errors.New("not yet")
		}
		return nil
	})
	if err := syscall.Kill(old, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if u := r.upgrade(t, "--envoy-path", testenv.EnvoyOf(t, testenv.EnvoyVersion), "--keep", "1s"); u.exit() != 0 {
		t.Fatalf("upgrade: %s", u.out)
	}
	r.eventually("the old Envoy does not answer", func() error { // for two seconds, so that a second would be over
		if !strings.Contains(r.out.String(), "the old Envoy is asked again to drain") {
			return errors.New("not yet")
		}
		return nil
	})
	if err := syscall.Kill(old, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	r.results(`result="done"} 1`)
	load.lossless()
	r.serves(testenv.EnvoyVersion, 1)
	r.end()
}
