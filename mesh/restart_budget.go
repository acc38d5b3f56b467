package mesh

import (
	"math"
	"time"
)

// restartBudget computes restart delays of a failing process: a growing backoff, and no restart after too many failures
// in a short time. The failure count decays, so that rare failures do not accumulate.
type restartBudget struct {
	score float64
	last  time.Time
}

const (
	budgetHalfLife = time.Minute // half-life of the failure count
	budgetLimit    = 6.5         // limit of the count; a process that exits at once reaches it with its 8th failure
	minPause       = 200 * time.Millisecond
	maxPause       = 10 * time.Second
	stableAfter    = 10 * time.Second // a process that ran this long is restarted without delay
)

// recordFailure counts a failure of a process that ran for the duration. It returns the pause before the next start,
// or false if the process must not be restarted.
func (b *restartBudget) recordFailure(now time.Time, ran time.Duration) (pause time.Duration, again bool) {
	if !b.last.IsZero() {
		b.score *= math.Exp2(-float64(now.Sub(b.last)) / float64(budgetHalfLife))
	}
	b.last = now
	b.score++
	if b.score >= budgetLimit {
		return 0, false
	}
	if ran >= stableAfter && b.score < 2 {
		return 0, true
	}
	pause = time.Duration(float64(minPause) * math.Exp2(b.score-1))
	return min(pause, maxPause), true
}

// reset clears the count, when a user requests a restart.
func (b *restartBudget) reset() { *b = restartBudget{} }
