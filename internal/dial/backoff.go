package dial

import (
	"math/rand/v2"
	"time"
)

// Backoff gives the waits between attempts: doubling from Min to Max, each cut by a random part of up to a half, so
// that many agents do not come at one moment. Not for concurrent use.
type Backoff struct {
	Min, Max time.Duration
	next     time.Duration
}

// Next is the wait before the next attempt.
func (b *Backoff) Next() time.Duration {
	wait := min(max(b.next, b.Min), b.Max)
	b.next = min(2*wait, b.Max)
	if half := int64(wait / 2); half > 0 {
		return wait - time.Duration(rand.Int64N(half))
	}
	return wait
}

// Reset begins anew, after a success.
func (b *Backoff) Reset() { b.next = 0 }
