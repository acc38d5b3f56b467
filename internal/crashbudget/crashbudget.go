// Package crashbudget decides whether and when a failing process is restarted.
package crashbudget

import (
	"math"
	"time"
)

// Budget is a count of failures that decays over time. Rare failures never exhaust the budget, but a series of failures
// does. It is not safe for concurrent use.
type Budget struct {
	// Failures is the maximum count. The count halves in each period of HalfLife.
	Failures float64
	HalfLife time.Duration
	// The backoff starts at MinWait and doubles with each counted failure, up to MaxWait.
	MinWait, MaxWait time.Duration

	count float64
	last  time.Time
}

// RecordFailure counts one failure. It returns the backoff before the next attempt. again is false if the budget is
// exhausted.
func (b *Budget) RecordFailure(now time.Time) (wait time.Duration, again bool) {
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

// Reset sets the count to zero.
func (b *Budget) Reset() { b.count, b.last = 0, time.Time{} }
