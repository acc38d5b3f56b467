package status

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/health"
)

// Check is the health check of a component that the agent's readiness or liveness depends on.
type Check struct {
	// Name is the component's name, such as "envoy", "sds" or "xds".
	Name string
	// Func returns the component's health. It must return quickly, because a probe waits for it.
	Func health.Check
}

// Report is the JSON response to a probe.
type Report struct {
	Ready   bool         `json:"ready"`
	Reasons []PartReport `json:"reasons"`
}

// PartReport is the health of one component in a Report.
type PartReport struct {
	Part  string `json:"part"`
	Ready bool   `json:"ready"`
	// Reason states why the component is not ready, or information about a ready component.
	Reason string `json:"reason,omitempty"`
	// Since is when the component entered this state. If the component does not report the time, it is when a probe
	// first detected the state.
	Since time.Time `json:"since,omitzero"`
	// Remedy states what an operator can do about the problem.
	Remedy string `json:"remedy,omitempty"`
	// Silent means that the component's check did not respond, so its state is unknown.
	Silent bool `json:"silent,omitempty"`
}

// stateTimes records when each component last became healthy or unhealthy.
type stateTimes struct {
	mu    sync.Mutex
	parts map[string]stateTime
}

type stateTime struct {
	ok    bool
	since time.Time
}

// record records the state of a component and returns when the component entered it.
func (s *stateTimes) record(part string, ok bool, now time.Time) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	last, known := s.parts[part]
	if known && last.ok == ok {
		return last.since
	}
	if s.parts == nil {
		s.parts = make(map[string]stateTime)
	}
	s.parts[part] = stateTime{ok: ok, since: now}
	return now
}

// Readiness runs all checks, like a request to /healthz/ready.
func (s *Server) Readiness() Report {
	report := s.report("", s.Checks)
	if report.Ready && s.ready.CompareAndSwap(false, true) {
		s.onFirstReady()
	}
	return report
}

func (s *Server) onFirstReady() {
	if !s.Started.IsZero() {
		s.metrics.startup.Set(time.Since(s.Started).Seconds())
	}
	if s.OnFirstReady != nil {
		s.OnFirstReady()
	}
}

func (s *Server) report(kind string, checks []Check) Report {
	report := Report{Ready: true, Reasons: make([]PartReport, 0, len(checks))}
	for _, c := range checks {
		how := c.Func()
		since := s.seen.record(kind+c.Name, how.OK, time.Now())
		if how.Since.IsZero() && !how.OK {
			how.Since = since
		}
		report.Ready = report.Ready && how.OK
		report.Reasons = append(report.Reasons, PartReport{
			Part: c.Name, Ready: how.OK, Reason: how.Reason, Since: how.Since.UTC().Truncate(time.Millisecond), Remedy: how.Remedy,
			Silent: how.Silent,
		})
	}
	return report
}

func (s *Server) serveReady(w http.ResponseWriter, r *http.Request) {
	serveReport(w, r, s.Readiness(), "ready")
}

func (s *Server) serveLive(w http.ResponseWriter, r *http.Request) {
	serveReport(w, r, s.report("live ", s.Liveness), "alive")
}

func serveReport(w http.ResponseWriter, r *http.Request, report Report, word string) {
	code := http.StatusOK
	if !report.Ready {
		code = http.StatusServiceUnavailable
	}
	if r.URL.Query().Get("format") == "json" || accepts(r.Header.Values("Accept"), "application/json") {
		writeJSON(w, code, report)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(code)
	_, _ = w.Write([]byte(report.text(word)))
}

// text returns the report as text: "ready" or "not ready", the failures, and then information about ready components.
func (r Report) text(word string) string {
	var b strings.Builder
	if !r.Ready {
		b.WriteString("not ")
	}
	b.WriteString(word + "\n")
	for _, ready := range []bool{false, true} {
		for _, p := range r.Reasons {
			if p.Ready == ready && (!ready || p.Reason != "") {
				p.write(&b)
			}
		}
	}
	return b.String()
}

func (p PartReport) write(b *strings.Builder) {
	fmt.Fprintf(b, "%s: %s\n", p.Part, p.Reason)
	if !p.Since.IsZero() {
		fmt.Fprintf(b, "  since %s\n", p.Since.Format(time.RFC3339))
	}
	if p.Remedy != "" {
		fmt.Fprintf(b, "  to do: %s\n", p.Remedy)
	}
}
