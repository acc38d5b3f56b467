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
	// freshReady and freshUnready are how long an answer is good for those who ask next: however many ask, Envoy is not
	// asked more often. They are short beside what a change of Envoy's state takes to matter to anybody.
	freshReady   = 200 * time.Millisecond
	freshUnready = 10 * time.Millisecond
	// questionTime bounds one question to Envoy; kubelets give up after a second.
	questionTime = 800 * time.Millisecond
	// silenceAllowed is how long an Envoy that was ready keeps its verdict without an answer. Its main thread answers,
	// which a large configuration may keep busy for some seconds while its workers serve.
	silenceAllowed = 10 * time.Second
)

// ReadinessConfig says what an Envoy has to have before it is ready.
type ReadinessConfig struct {
	Admin *Admin
	// Dynamic is set when clusters and listeners come from a control plane: each has to have been accepted once.
	Dynamic bool
	// Now is the clock of how old an answer is; nil is time.Now.
	Now func() time.Time
}

// Readiness judges whether one Envoy process is ready, and says why not. It is safe for concurrent use, and asks one
// question at a time, whose answer all get who ask meanwhile and shortly after.
//
// Configuration and start-up are looked at until they are done, once for each process; after that only Envoy's own state
// is asked.
type Readiness struct {
	ReadinessConfig
	mu      sync.Mutex
	started bool
	// asking is closed when the question that is under way is answered; nil when there is none.
	asking  chan struct{}
	last    health.Condition
	lastAt  time.Time
	silence silence
}

// silence is how long, and how often in a row, Envoy has not answered.
type silence struct {
	since time.Time // of the first question that it left unanswered
	times int
}

// NewReadiness makes a judge for one Envoy process; a restarted Envoy needs a new one.
func NewReadiness(c ReadinessConfig) *Readiness {
	if c.Now == nil {
		c.Now = time.Now
	}
	return &Readiness{ReadinessConfig: c}
}

// Check asks Envoy. The reason is for people, and empty when Envoy is ready.
func (r *Readiness) Check(ctx context.Context) (ok bool, reason string) {
	c := r.Condition(ctx)
	return c.OK, c.Reason
}

// Condition asks Envoy, unless somebody has just done so.
func (r *Readiness) Condition(ctx context.Context) health.Condition {
	r.mu.Lock()
	if r.isFresh() {
		defer r.mu.Unlock()
		return r.last
	}
	if r.asking == nil {
		r.asking = make(chan struct{})
		go r.question(context.WithoutCancel(ctx), r.started) // of which others may wait for the answer, too
	}
	answered := r.asking
	r.mu.Unlock()
	select {
	case <-answered:
	case <-ctx.Done():
		return r.unanswered(ctx)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last
}

func (r *Readiness) isFresh() bool {
	age := r.Now().Sub(r.lastAt)
	return !r.lastAt.IsZero() && age >= 0 && (age < freshUnready || r.last.OK && age < freshReady)
}

// unanswered is for a caller who does not wait for the end of the question.
func (r *Readiness) unanswered(ctx context.Context) health.Condition {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.started && r.last.OK {
		return r.last
	}
	return r.unreachable(ctx.Err())
}

// Silent says for how long Envoy has not answered, and how many questions in a row; zero when it answered the last one.
// It asks nothing by itself.
func (r *Readiness) Silent() (d time.Duration, questions int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.silence.times == 0 {
		return 0, 0
	}
	return r.Now().Sub(r.silence.since), r.silence.times
}

// question asks Envoy and keeps the answer.
func (r *Readiness) question(ctx context.Context, started bool) {
	ctx, cancel := context.WithTimeout(ctx, questionTime)
	defer cancel()
	asked := r.Now()
	verdict, err := r.judge(ctx, started)
	r.mu.Lock()
	defer r.mu.Unlock()
	if !errors.Is(err, context.DeadlineExceeded) {
		r.silence = silence{}
	} else {
		if r.silence.times == 0 {
			r.silence.since = asked
		}
		r.silence.times++
	}
	if err != nil {
		verdict = r.failed(err)
	}
	r.last, r.lastAt = verdict, r.Now()
	r.started = r.started || verdict.OK
	close(r.asking)
	r.asking = nil
}

// failed judges an Envoy that was not reached. r.mu is held.
func (r *Readiness) failed(err error) health.Condition {
	silent := r.Now().Sub(r.silence.since)
	switch {
	case r.silence.times == 0 || !r.started:
		return r.unreachable(err)
	case silent < silenceAllowed:
		return health.Condition{OK: true, Reason: fmt.Sprintf("Envoy has not answered on its admin address %s for %s: its main thread is busy",
			r.Admin.addr, silent.Round(time.Millisecond))}
	}
	c := r.unreachable(err)
	c.Since = r.silence.since
	return c
}

func (r *Readiness) unreachable(err error) health.Condition {
	switch {
	case NotListening(err):
		return health.Condition{
			Reason: fmt.Sprintf("Envoy does not listen on its admin address %s yet, or is gone", r.Admin.addr),
			Remedy: "see what Envoy says in the agent's log, if this lasts",
		}
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return health.Condition{
			Silent: true,
			Reason: fmt.Sprintf("Envoy does not answer on its admin address %s in time", r.Admin.addr),
			Remedy: "see whether Envoy has CPU time (limits, throttling) and is not stopped; restart the proxy if this lasts",
		}
	}
	return health.Condition{Reason: err.Error(), Remedy: "see what listens on Envoy's admin address"}
}

// judge asks; an error says that there is no answer.
func (r *Readiness) judge(ctx context.Context, started bool) (health.Condition, error) {
	state, err := r.Admin.Ready(ctx)
	switch {
	case err != nil:
		return health.Condition{}, err
	case state == "DRAINING":
		return health.Condition{
			Reason: "Envoy is DRAINING: it was told to fail its health checks, or is about to end",
			Remedy: "POST /healthcheck/ok to Envoy's admin address, if somebody failed them by hand",
		}, nil
	case state == "LIVE" && started:
		return health.Well, nil
	}
	stats, err := r.Admin.Stats(ctx, readinessStats)
	if err != nil {
		return health.Condition{}, err
	}
	return r.judgeStart(ctx, state, stats), nil
}
