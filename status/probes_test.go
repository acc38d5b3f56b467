package status

import (
	"encoding/json"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pilotfish-mesh/pilotfish/internal/health"
)

func TestReadinessReportsReasonTimeAndRemedy(t *testing.T) {
	var condition atomic.Pointer[health.Condition]
	lost := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	condition.Store(&health.Condition{Reason: "lost", Remedy: "find it", Since: lost})
	registry := prometheus.NewRegistry()
	_, url := run(t, Config{
		Registerer: registry, Gatherer: registry, Started: time.Now(),
		Checks: []Check{
			{"sds", func() health.Condition { return health.Condition{OK: true, Reason: "certificate for 23h"} }},
			{"xds", func() health.Condition { return *condition.Load() }},
		},
	})
	const text = "not ready\nxds: lost\n  since 2026-01-02T03:04:05Z\n  to do: find it\nsds: certificate for 23h\n"
	a := call(t, "GET", url+"/healthz/ready")
	if a.code != 503 || a.body != text {
		t.Errorf("not ready: %d %q", a.code, a.body)
	}
	for _, accept := range []string{"application/json;q=0", "text/plain, application/json;q=0.0", "application/jsonp", "*/*"} {
		if a = call(t, "GET", url+"/healthz/ready", "Accept", accept); a.body != text {
			t.Errorf("Accept: %s gives %q", accept, a.body)
		}
	}
	for _, how := range [][]string{{url + "/healthz/ready?format=json"}, {url + "/healthz/ready", "Accept", "application/json"}} {
		a = call(t, "GET", how[0], how[1:]...)
		const want = `{"ready":false,"reasons":[{"part":"sds","ready":true,"reason":"certificate for 23h"},` +
			`{"part":"xds","ready":false,"reason":"lost","since":"2026-01-02T03:04:05Z","remedy":"find it"}]}`
		if got := compact(t, a.body); a.code != 503 || got != want {
			t.Errorf("as JSON: %d %s, want %s", a.code, got, want)
		}
	}
	metrics := call(t, "GET", url+"/metrics").body
	for _, want := range []string{"istio_agent_startup_duration_seconds 0\n", `pilotfish_ready{part="sds"} 1`, `pilotfish_ready{part="xds"} 0`} {
		if !strings.Contains(metrics, want) {
			t.Errorf("before the agent is ready, the metrics lack %s", want)
		}
	}
	condition.Store(&health.Healthy)
	if a = call(t, "GET", url+"/healthz/ready"); a.code != 200 || a.body != "ready\nsds: certificate for 23h\n" {
		t.Errorf("ready: %d %q", a.code, a.body)
	}
	if a = call(t, "GET", url+"/metrics"); strings.Contains(a.body, "istio_agent_startup_duration_seconds 0\n") {
		t.Error("the start-up metric is missing after the agent became ready")
	}
}

func compact(t *testing.T, text string) string {
	t.Helper()
	var report Report
	if err := json.Unmarshal([]byte(text), &report); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	short, err := json.Marshal(report)
	if err != nil {
		t.Fatal(err)
	}
	return string(short)
}

// TestSinceIsTheFirstProbe: if a component does not report a time, Since is when a probe first detected the state. It
// does not change with the reason.
func TestSinceIsTheFirstProbe(t *testing.T) {
	s := &Server{}
	at := time.Unix(1e9, 0)
	for _, step := range []struct {
		ok   bool
		want time.Duration
	}{{false, 0}, {false, 0}, {true, 2 * time.Second}, {false, 3 * time.Second}, {false, 3 * time.Second}} {
		if got := s.seen.record("x", step.ok, at); got.Sub(time.Unix(1e9, 0)) != step.want {
			t.Errorf("at %v, ok %v: since %v, want %v", at, step.ok, got, step.want)
		}
		at = at.Add(time.Second)
	}
}

// TestReadinessIsNotCached: a probe returns the current state.
func TestReadinessIsNotCached(t *testing.T) {
	var bad atomic.Bool
	_, url := run(t, Config{Checks: []Check{{"x", func() health.Condition { return health.Condition{OK: !bad.Load(), Reason: "x"} }}}})
	for i := range 20 {
		bad.Store(i%2 == 1)
		want := http.StatusOK
		if bad.Load() {
			want = http.StatusServiceUnavailable
		}
		if a := call(t, "GET", url+"/healthz/ready"); a.code != want {
			t.Fatalf("round %d: %d, want %d", i, a.code, want)
		}
	}
}
