package xdsproxy

import (
	"testing"
	"time"
)

// A control plane that is slow, for example 10 KB/s, is not replaced by the last accepted configuration. Envoy may
// receive that meanwhile.
func TestControlPlaneThatIsSlowIsNotSilent(t *testing.T) {
	p := silenceDetector{timeout: 3 * time.Second}
	for at := 3 * time.Second; at < 10*time.Minute; at += 3 * time.Second {
		if again := p.checkSilence(at, int(at/time.Second)*10_000, true); again != p.timeout {
			t.Fatalf("after %v the next check is in %v", at, again)
		}
	}
}

func TestControlPlaneWithoutDataIsSilent(t *testing.T) {
	for name, one := range map[string]struct {
		before, arrived int
		quiet           time.Duration
		awaited         bool
		again           time.Duration
	}{
		"nothing, ever":                    {0, 0, 3 * time.Second, true, 0},
		"the same as before":               {50_000, 50_000, 9 * time.Second, true, 0},
		"a byte at a time":                 {50_000, 50_003, 9 * time.Second, true, 0},
		"nothing that Envoy waits for":     {0, 0, 9 * time.Second, false, 3 * time.Second},
		"something whole, a moment before": {0, 0, time.Second, true, 2 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			p := silenceDetector{timeout: 3 * time.Second, received: one.before}
			if again := p.checkSilence(one.quiet, one.arrived, one.awaited); again != one.again {
				t.Errorf("the next check is in %v, want %v", again, one.again)
			}
		})
	}
}
