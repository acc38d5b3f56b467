package mesh

import (
	"math"
	"time"
)

// budget decides how a process that keeps ending is restarted: after longer and longer pauses, and no more once it has
// failed too often in too short a time. Failures are forgotten with time, so that one a day never adds up.
type budget struct {
	score float64
	last  time.Time
}

const (
	budgetHalfLife = time.Minute // after which half of the failures are forgotten
	budgetLimit    = 6.5         // what 8 failures of a process that ends at once amount to, with their pauses
	firstPause     = 200 * time.Millisecond
	longestPause   = 10 * time.Second
	forgiveAfter   = 10 * time.Second // a process that ran this long is restarted without delay
)

// fail counts a failure of a process that ran for a while. It gives the pause before the next start, and false when
// there should be none.
func (b *budget) fail(now time.Time, ran time.Duration) (pause time.Duration, again bool) {
	if !b.last.IsZero() {
		b.score *= math.Exp2(-float64(now.Sub(b.last)) / float64(budgetHalfLife))
	}
	b.last = now
	b.score++
	if b.score >= budgetLimit {
		return 0, false
	}
	if ran >= forgiveAfter && b.score < 2 {
		return 0, true
	}
	pause = time.Duration(float64(firstPause) * math.Exp2(b.score-1))
	return min(pause, longestPause), true
}

// forget clears the count, when someone asks for a restart.
func (b *budget) forget() { *b = budget{} }
