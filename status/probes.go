package status

import (
	"fmt"
	"net/http"
	"strings"
	"time"
)

// Report is what a probe answers in JSON.
type Report struct {
	Ready   bool         `json:"ready"`
	Reasons []PartReport `json:"reasons"`
}

// PartReport is one part's share of a Report.
type PartReport struct {
	Part  string `json:"part"`
	Ready bool   `json:"ready"`
	// Reason says why the part is not ready, or what is worth knowing although it is.
	Reason string `json:"reason,omitempty"`
}

// Readiness asks all parts, as a GET of /healthz/ready does.
func (s *Server) Readiness() Report {
	report := ask(s.Checks)
	if report.Ready && s.ready.CompareAndSwap(false, true) && !s.Started.IsZero() {
		s.metrics.startup.Set(time.Since(s.Started).Seconds())
	}
	return report
}

func ask(checks []Check) Report {
	report := Report{Ready: true, Reasons: make([]PartReport, 0, len(checks))}
	for _, c := range checks {
		ok, reason := c.Func()
		report.Ready = report.Ready && ok
		report.Reasons = append(report.Reasons, PartReport{Part: c.Name, Ready: ok, Reason: reason})
	}
	return report
}

func (s *Server) serveReady(w http.ResponseWriter, r *http.Request) {
	serveReport(w, r, s.Readiness(), "ready")
}

func (s *Server) serveLive(w http.ResponseWriter, r *http.Request) {
	serveReport(w, r, ask(s.Liveness), "alive")
}

func serveReport(w http.ResponseWriter, r *http.Request, report Report, word string) {
	code := http.StatusOK
	if !report.Ready {
		code = http.StatusServiceUnavailable
	}
	if r.URL.Query().Get("format") == "json" || strings.Contains(r.Header.Get("Accept"), "application/json") {
		writeJSON(w, code, report)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(code)
	_, _ = w.Write([]byte(report.text(word)))
}

// text is the report for people: the verdict, then a line for each part that is not well.
func (r Report) text(word string) string {
	if r.Ready {
		return word + "\n"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "not %s\n", word)
	for _, p := range r.Reasons {
		if !p.Ready {
			fmt.Fprintf(&b, "%s: %s\n", p.Part, p.Reason)
		}
	}
	return b.String()
}
