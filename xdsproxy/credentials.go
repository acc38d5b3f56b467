package xdsproxy

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pilotfish-mesh/pilotfish/internal/backoff"
	"github.com/pilotfish-mesh/pilotfish/internal/dial"
)

// credentialWatcher detects that the relay's token or client certificate has expired. A stream stays open after its
// token has expired. Without the watcher, the expiry would become visible only when the control plane refuses the next
// connection.
type credentialWatcher struct {
	server Server
	now    func() time.Time
	log    *slog.Logger

	mu            sync.Mutex
	credentials   []dial.Credential
	loggedProblem string // the problem that was last logged
}

func newCredentialWatcher(config Config) *credentialWatcher {
	return &credentialWatcher{server: config.Server, now: config.Now, log: config.Logger}
}

// refresh reads the credential files again and returns the problem of the credentials, or "" if there is none. It logs
// each change of the problem.
func (w *credentialWatcher) refresh() (problem string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.credentials = w.server.Credentials()
	problem = w.findProblem()
	switch {
	case problem == w.loggedProblem:
	case problem == "":
		w.log.Info("the credentials for the control plane are valid again")
	default:
		w.log.Warn("the credentials for the control plane are not valid; a new connection may be refused", "reason", problem)
	}
	w.loggedProblem = problem
	return problem
}

// findProblem returns the problem of the credentials that refresh read last, or "". If the token cannot be read but
// there is a valid client certificate, it returns "". The caller holds mu.
func (w *credentialWatcher) findProblem() string {
	var problems []string
	now := w.now()
	for _, c := range w.credentials {
		if p := c.Problem(now); p != "" {
			problems = append(problems, p)
		}
	}
	if len(problems) > 0 && w.server.TLS.HasClientCertificate(now) && w.isTokenMissing() {
		return ""
	}
	return strings.Join(problems, "; ")
}

func (w *credentialWatcher) isTokenMissing() bool {
	for _, c := range w.credentials {
		if c.Kind == dial.KindToken && c.Err != nil {
			return true
		}
	}
	return false
}

// currentProblem returns the problem of the credentials, or "". If the credentials that refresh read last have a
// problem, it reads the files again.
func (w *credentialWatcher) currentProblem() string {
	w.mu.Lock()
	problem := w.findProblem()
	w.mu.Unlock()
	if problem == "" {
		return ""
	}
	return w.refresh()
}

// maxRecheck is the maximum interval between two checks, even if all credentials are valid for longer. A timer alone is
// not reliable: a user may change the clock, and the machine may be suspended.
const maxRecheck = 6 * time.Hour

// run checks the credentials periodically and at each expiry until ctx ends. It logs problems.
func (w *credentialWatcher) run(ctx context.Context) {
	for {
		problem := w.refresh()
		wait := maxRecheck
		if problem != "" {
			wait = time.Minute // a program may renew the credential soon
		}
		if delay := w.computeExpiryDelay(); delay > 0 {
			wait = min(wait, delay)
		}
		if backoff.Sleep(ctx, wait); ctx.Err() != nil {
			return
		}
	}
}

// computeExpiryDelay returns the time until the next expiry of a credential, plus one second, so that the credential
// has expired when run checks it. It ignores credentials that have expired already. It returns 0 if no other credential
// will expire.
func (w *credentialWatcher) computeExpiryDelay() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	var delay time.Duration
	for _, c := range w.credentials {
		if left := c.NotAfter.Sub(w.now()); !c.NotAfter.IsZero() && left > 0 && (delay == 0 || left < delay) {
			delay = left + time.Second
		}
	}
	return delay
}

// credentialExpiry describes the metric that the watcher exports as a prometheus.Collector.
var credentialExpiry = prometheus.NewDesc("pilotfish_xds_credential_expiry_timestamp_seconds",
	"Expiry of the agent's credentials for the control plane, in seconds since 1970; 0 if a credential cannot be read.", []string{"credential"}, nil)

func (w *credentialWatcher) Describe(descriptions chan<- *prometheus.Desc) {
	descriptions <- credentialExpiry
}

func (w *credentialWatcher) Collect(metrics chan<- prometheus.Metric) {
	w.refresh()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.credentials {
		switch {
		case c.Err != nil:
			metrics <- prometheus.MustNewConstMetric(credentialExpiry, prometheus.GaugeValue, 0, c.Kind)
		case !c.NotAfter.IsZero():
			metrics <- prometheus.MustNewConstMetric(credentialExpiry, prometheus.GaugeValue, float64(c.NotAfter.Unix()), c.Kind)
		}
	}
}
