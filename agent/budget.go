package agent

import (
	"math"
	"time"
)

// budget says how often something may fail: each failure counts less as time passes, so that a rare one is always
// forgiven and a series of them is not.
type budget struct {
	// Failures that may be on the count at one time; half of what is on it is forgotten after HalfLife.
	Failures float64
	HalfLife time.Duration
	// The wait after a failure begins at MinWait and doubles with each that is on the count, up to MaxWait.
	MinWait, MaxWait time.Duration

	count float64
	last  time.Time
}

// envoyFailures is how often an Envoy may die within seconds.
const envoyFailures = 5

// envoyBudget forgives a crash now and then, and gives up on an Envoy that dies more often than that.
func envoyBudget() *budget {
	return &budget{Failures: envoyFailures, HalfLife: time.Minute, MinWait: 100 * time.Millisecond, MaxWait: 10 * time.Second}
}

// partBudget never gives up: a proxy with old certificates or configuration is better than none.
func partBudget() *budget {
	return &budget{Failures: math.Inf(1), HalfLife: time.Minute, MinWait: 100 * time.Millisecond, MaxWait: 15 * time.Second}
}

// fail counts one failure. It says how long to wait before the next try, or that there is to be none.
func (b *budget) fail(now time.Time) (wait time.Duration, again bool) {
	if !b.last.IsZero() && b.HalfLife > 0 {
		passed := max(0, now.Sub(b.last)) // a clock that was set back makes failures no worse than they were
		b.count *= math.Exp2(-float64(passed) / float64(b.HalfLife))
	}
	b.last = now
	b.count++
	if b.count > b.Failures {
		return 0, false
	}
	wait = time.Duration(min(float64(b.MinWait)*math.Exp2(b.count-1), float64(b.MaxWait)))
	return wait, true
}
