package agent

import (
	"math"
	"time"
)

// crashBudget is a decaying count of failures. Rare failures are tolerated without limit; a series of failures uses the
// budget up.
type crashBudget struct {
	// Failures is the maximum count. The count halves every HalfLife.
	Failures float64
	HalfLife time.Duration
	// The backoff starts at MinWait and doubles with each counted failure, up to MaxWait.
	MinWait, MaxWait time.Duration

	count float64
	last  time.Time
}

// envoyFailures is the number of times that Envoy may exit in quick succession.
const envoyFailures = 5

// envoyBudget returns the budget for restarts of Envoy.
func envoyBudget() *crashBudget {
	return &crashBudget{Failures: envoyFailures, HalfLife: time.Minute, MinWait: 100 * time.Millisecond, MaxWait: 10 * time.Second}
}

// componentBudget returns a budget without a limit: a proxy with old certificates or configuration is better than none.
func componentBudget() *crashBudget {
	return &crashBudget{Failures: math.Inf(1), HalfLife: time.Minute, MinWait: 100 * time.Millisecond, MaxWait: 15 * time.Second}
}

// recordFailure counts one failure. It returns the backoff before the next attempt, and false if the budget is used up.
func (b *crashBudget) recordFailure(now time.Time) (wait time.Duration, again bool) {
	if !b.last.IsZero() && b.HalfLife > 0 {
		passed := max(0, now.Sub(b.last)) // the clock may have been set back
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
