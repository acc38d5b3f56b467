package xdsproxy

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pilotfish-mesh/pilotfish/internal/dial"
)

// credentialWatch knows when what the relay proves itself with expires. A stream that is open outlives its token, so that
// nothing else would tell before the next connection is refused.
type credentialWatch struct {
	server Server
	now    func() time.Time
	log    *slog.Logger

	mu    sync.Mutex
	known []dial.Credential
	told  string // the problems that were logged last
}

func newCredentialWatch(config Config) *credentialWatch {
	return &credentialWatch{server: config.Server, now: config.Now, log: config.Logger}
}

// look reads the files anew, logs what is newly wrong, and gives what is wrong.
func (w *credentialWatch) look() (problem string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.known = w.server.Credentials()
	problem = w.problem()
	switch {
	case problem == w.told:
	case problem == "":
		w.log.Info("the credentials for the control plane are good again")
	default:
		w.log.Warn("the credentials for the control plane are not in order, and a new connection may be refused", "reason", problem)
	}
	w.told = problem
	return problem
}

// problem of what is known; the caller holds the lock. A missing token is none where a client certificate will do.
func (w *credentialWatch) problem() string {
	var problems []string
	now := w.now()
	for _, c := range w.known {
		if p := c.Problem(now); p != "" {
			problems = append(problems, p)
		}
	}
	if len(problems) > 0 && w.server.TLS.HasClientCertificate(now) && w.tokenMissing() {
		return ""
	}
	return strings.Join(problems, "; ")
}

func (w *credentialWatch) tokenMissing() bool {
	for _, c := range w.known {
		if c.Kind == dial.KindToken && c.Err != nil {
			return true
		}
	}
	return false
}

// wrong is the problem there is, by files that are read anew only when what was read before would be one.
func (w *credentialWatch) wrong() string {
	w.mu.Lock()
	problem := w.problem()
	w.mu.Unlock()
	if problem == "" {
		return ""
	}
	return w.look()
}

// longestWatch bounds the wait for an expiry, since clocks are set and machines sleep.
const longestWatch = 6 * time.Hour

// run says so when a credential expires, at that moment.
func (w *credentialWatch) run(ctx context.Context) {
	for {
		problem := w.look()
		wait := longestWatch
		if problem != "" {
			wait = time.Minute // for what renews it
		}
		if next := w.nextExpiry(); next > 0 {
			wait = min(wait, next)
		}
		if sleep(ctx, wait); ctx.Err() != nil {
			return
		}
	}
}

func (w *credentialWatch) nextExpiry() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	var next time.Duration
	for _, c := range w.known {
		if left := c.NotAfter.Sub(w.now()); !c.NotAfter.IsZero() && left > 0 && (next == 0 || left < next) {
			next = left + time.Second
		}
	}
	return next
}

// Describe and Collect make the watch a metric.
var credentialExpiry = prometheus.NewDesc("pilotfish_xds_credential_expiry_timestamp_seconds",
	"When what the agent shows to the control plane expires, in seconds since 1970; 0 when it cannot be read.", []string{"credential"}, nil)

func (w *credentialWatch) Describe(descriptions chan<- *prometheus.Desc) {
	descriptions <- credentialExpiry
}

func (w *credentialWatch) Collect(metrics chan<- prometheus.Metric) {
	w.look()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.known {
		switch {
		case c.Err != nil:
			metrics <- prometheus.MustNewConstMetric(credentialExpiry, prometheus.GaugeValue, 0, c.Kind)
		case !c.NotAfter.IsZero():
			metrics <- prometheus.MustNewConstMetric(credentialExpiry, prometheus.GaugeValue, float64(c.NotAfter.Unix()), c.Kind)
		}
	}
}
