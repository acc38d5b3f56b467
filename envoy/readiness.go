package envoy

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/health"
)

const (
	// readyCacheTTL and unreadyCacheTTL are how long a result is cached. The cache limits the rate of queries to Envoy.
	// Both times are short compared to the intervals at which clients probe readiness.
	readyCacheTTL   = 200 * time.Millisecond
	unreadyCacheTTL = 10 * time.Millisecond
	// queryTimeout limits one query to Envoy. The kubelet's default timeout is one second.
	queryTimeout = 800 * time.Millisecond
	// maxUnresponsive is how long an Envoy that was ready is still reported as ready after it stops responding. A large
	// configuration can block Envoy's main thread for some seconds. That thread sends the responses, while the worker
	// threads continue to serve traffic.
	maxUnresponsive = 10 * time.Second
)

// ReadinessConfig configures a Readiness.
type ReadinessConfig struct {
	Admin *Admin
	// Dynamic requires that Envoy has accepted clusters and listeners from a control plane.
	Dynamic bool
	// Now returns the current time; nil: time.Now.
	Now func() time.Time
}

// Readiness determines whether one Envoy process is ready, and the reason if it is not. It is safe for concurrent use.
// At most one query runs at a time. Its result is returned to all concurrent callers, and is cached for a short time.
//
// Until Envoy is ready for the first time, Readiness checks Envoy's configuration and start-up. Later it checks only
// Envoy's state.
type Readiness struct {
	ReadinessConfig
	mu      sync.Mutex
	started bool
	// pending is closed when the running query ends. It is nil if no query runs.
	pending      chan struct{}
	last         health.Condition
	lastAt       time.Time
	unresponsive unresponsiveState
}

// unresponsiveState counts the consecutive queries that timed out.
type unresponsiveState struct {
	since time.Time // start of the first of these queries
	count int
}

// NewReadiness returns a Readiness for one Envoy process. A restarted Envoy needs a new Readiness.
func NewReadiness(c ReadinessConfig) *Readiness {
	if c.Now == nil {
		c.Now = time.Now
	}
	return &Readiness{ReadinessConfig: c}
}

// Check returns the result of Condition. reason is a message for users: why Envoy is not ready, or a warning.
func (r *Readiness) Check(ctx context.Context) (ok bool, reason string) {
	c := r.Condition(ctx)
	return c.OK, c.Reason
}

// Condition queries Envoy, or returns a cached result.
func (r *Readiness) Condition(ctx context.Context) health.Condition {
	r.mu.Lock()
	if r.isFresh() {
		defer r.mu.Unlock()
		return r.last
	}
	if r.pending == nil {
		r.pending = make(chan struct{})
		// Other callers may wait for the result, so the end of ctx does not cancel the query.
		go r.query(context.WithoutCancel(ctx), r.started)
	}
	finished := r.pending
	r.mu.Unlock()
	select {
	case <-finished:
	case <-ctx.Done():
		return r.cancelledCondition(ctx)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last
}

func (r *Readiness) isFresh() bool {
	age := r.Now().Sub(r.lastAt)
	return !r.lastAt.IsZero() && age >= 0 && (age < unreadyCacheTTL || r.last.OK && age < readyCacheTTL)
}

// cancelledCondition returns the condition for a caller whose context ended during the query.
func (r *Readiness) cancelledCondition(ctx context.Context) health.Condition {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.started && r.last.OK {
		return r.last
	}
	return r.describeUnreachable(ctx.Err())
}

// UnresponsiveFor returns for how long, and to how many consecutive queries, Envoy has not responded. Both are zero if
// it responded to the last query. It does not query Envoy.
func (r *Readiness) UnresponsiveFor() (d time.Duration, queries int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.unresponsive.count == 0 {
		return 0, 0
	}
	return r.Now().Sub(r.unresponsive.since), r.unresponsive.count
}

// query queries Envoy and caches the result.
func (r *Readiness) query(ctx context.Context, started bool) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	start := r.Now()
	verdict, err := r.evaluate(ctx, started)
	r.mu.Lock()
	defer r.mu.Unlock()
	if !errors.Is(err, context.DeadlineExceeded) {
		r.unresponsive = unresponsiveState{}
	} else {
		if r.unresponsive.count == 0 {
			r.unresponsive.since = start
		}
		r.unresponsive.count++
	}
	if err != nil {
		verdict = r.evaluateError(err)
	}
	r.last, r.lastAt = verdict, r.Now()
	r.started = r.started || verdict.OK
	close(r.pending)
	r.pending = nil
}

// evaluateError returns the condition after a failed query. An Envoy that was ready stays ready until it has not
// responded for maxUnresponsive. The caller holds r.mu.
func (r *Readiness) evaluateError(err error) health.Condition {
	silent := r.Now().Sub(r.unresponsive.since)
	switch {
	case r.unresponsive.count == 0 || !r.started:
		return r.describeUnreachable(err)
	case silent < maxUnresponsive:
		return health.Condition{OK: true, Reason: fmt.Sprintf("Envoy has not responded on its admin address %s for %s: its main thread is busy",
			r.Admin.addr, silent.Round(time.Millisecond))}
	}
	c := r.describeUnreachable(err)
	c.Since = r.unresponsive.since
	return c
}

func (r *Readiness) describeUnreachable(err error) health.Condition {
	switch {
	case IsNotListening(err):
		return health.Condition{
			Reason: fmt.Sprintf("Envoy does not listen on its admin address %s yet, or has exited", r.Admin.addr),
			Remedy: "if this persists, check Envoy's messages in the agent's log",
		}
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return health.Condition{
			Silent: true,
			Reason: fmt.Sprintf("Envoy does not respond on its admin address %s in time", r.Admin.addr),
			Remedy: "check that Envoy gets CPU time (limits, throttling) and is not stopped; if this persists, restart the proxy",
		}
	}
	return health.Condition{Reason: err.Error(), Remedy: "check which process listens on Envoy's admin address"}
}

// evaluate queries Envoy and returns its condition. It fails if Envoy does not respond.
func (r *Readiness) evaluate(ctx context.Context, started bool) (health.Condition, error) {
	state, err := r.Admin.State(ctx)
	switch {
	case err != nil:
		return health.Condition{}, err
	case state == "DRAINING":
		return health.Condition{
			Reason: "Envoy is DRAINING: its admin interface received /healthcheck/fail, or it is about to exit",
			Remedy: "if a user sent /healthcheck/fail, POST /healthcheck/ok to Envoy's admin address",
		}, nil
	case state == "LIVE" && started:
		return health.Healthy, nil
	}
	stats, err := r.Admin.Stats(ctx, readinessStats)
	if err != nil {
		return health.Condition{}, err
	}
	return r.evaluateStart(ctx, state, stats), nil
}
