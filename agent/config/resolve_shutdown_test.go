package config

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

func TestShutdownFitsInGracePeriod(t *testing.T) {
	const s = time.Second
	testenv.InDir(t, nil)
	for _, c := range []struct {
		name string
		env  []string
		want Shutdown
		warn string
	}{
		{"nothing told", nil, Shutdown{Deadline: 28 * s, Linger: 5 * s, Stop: 2 * s, Quiet: s}, ""},
		{"a pod", []string{"KUBERNETES_SERVICE_HOST=10.0.0.1"},
			Shutdown{Deadline: 28 * s, PreDelay: 3 * s, Minimum: 2 * s, Linger: 5 * s, Stop: 2 * s, Quiet: s}, ""},
		{"a pod without a pre-delay stays as long as Istio's proxy", []string{"KUBERNETES_SERVICE_HOST=10.0.0.1", "PRE_DRAIN_DELAY=0s"},
			Shutdown{Deadline: 28 * s, Minimum: 5 * s, Linger: 5 * s, Stop: 2 * s, Quiet: s}, ""},
		{"a pod with little time", []string{"KUBERNETES_SERVICE_HOST=10.0.0.1", "TERMINATION_GRACE_PERIOD=2", `PROXY_CONFIG={terminationDrainDuration: 1s}`},
			Shutdown{Deadline: 1800 * time.Millisecond, PreDelay: 600 * time.Millisecond, Minimum: 400 * time.Millisecond, Linger: s, Stop: 450 * time.Millisecond, Quiet: s}, "so the shutdown will be cut"},
		{"seconds, as a pod's specification has them", []string{"TERMINATION_GRACE_PERIOD=90"}, Shutdown{Deadline: 88 * s, Linger: 5 * s, Stop: 2 * s, Quiet: s}, ""},
		{"a duration", []string{"TERMINATION_GRACE_PERIOD=10s"}, Shutdown{Deadline: 9 * s, Linger: 5 * s, Stop: 2 * s, Quiet: s}, ""},
		{"a long drain, and no grace period told", []string{`PROXY_CONFIG={terminationDrainDuration: 60s}`, "PRE_DRAIN_DELAY=10s"},
			Shutdown{Deadline: 72 * s, PreDelay: 10 * s, Linger: 60 * s, Stop: 2 * s, Quiet: s}, ""},
		{"a long drain that the grace period has no room for", []string{`PROXY_CONFIG={terminationDrainDuration: 60s}`, "TERMINATION_GRACE_PERIOD=30s"},
			Shutdown{Deadline: 28 * s, Linger: 60 * s, Stop: 2 * s, Quiet: s}, "so the shutdown will be cut"},
		{"to the last connection, and no grace period told", []string{"EXIT_ON_ZERO_ACTIVE_CONNECTIONS=true"},
			Shutdown{Deadline: time.Hour, Linger: 5 * s, WhenIdle: true, Minimum: 5 * s, Stop: 2 * s, Quiet: s}, ""},
		{"to the last connection, within the grace period", []string{"EXIT_ON_ZERO_ACTIVE_CONNECTIONS=true", "TERMINATION_GRACE_PERIOD=600", "MINIMUM_DRAIN_DURATION=8s"},
			Shutdown{Deadline: 598 * s, Linger: 5 * s, WhenIdle: true, Minimum: 8 * s, Stop: 2 * s, Quiet: s}, ""},
		{"a minimum", []string{"MINIMUM_DRAIN_DURATION=8s"}, Shutdown{Deadline: 28 * s, Linger: 5 * s, Minimum: 8 * s, Stop: 2 * s, Quiet: s}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := resolve(t, env(c.env...))
			got.Shutdown.TerminationMessage = ""
			if diff := cmp.Diff(c.want, got.Shutdown); diff != "" {
				t.Error(diff)
			}
			if warnings := strings.Join(got.Warnings, "\n"); (c.warn == "") != (warnings == "") || !strings.Contains(warnings, c.warn) {
				t.Errorf("warnings %q, want %q", warnings, c.warn)
			}
		})
	}
}

func TestInvalidGracePeriodsAreRejected(t *testing.T) {
	testenv.InDir(t, nil)
	for _, value := range []string{"soon", "-5", "-5s", "0", "0s", "99999999999999999999"} {
		_, err := Resolve(env("TERMINATION_GRACE_PERIOD=" + value))
		if err == nil || !strings.Contains(err.Error(), "TERMINATION_GRACE_PERIOD") || !strings.Contains(err.Error(), value) {
			t.Errorf("%s: %v", value, err)
		}
	}
}
