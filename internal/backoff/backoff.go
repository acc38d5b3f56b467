// Package backoff computes delays between retries.
package backoff

import (
	"math/rand/v2"
	"time"
)

// Backoff is a series of delays between retries. The delay doubles from Min to Max. Each delay is shortened by a random
// part of up to half, so that agents do not retry at the same moment. It is not safe for concurrent use.
type Backoff struct {
	Min, Max time.Duration
	next     time.Duration
}

// Next returns the delay before the next attempt.
func (b *Backoff) Next() time.Duration {
	wait := min(max(b.next, b.Min), b.Max)
	b.next = min(2*wait, b.Max)
	if half := int64(wait / 2); half > 0 {
		return wait - time.Duration(rand.Int64N(half))
	}
	return wait
}

// Reset sets the next delay to Min. The caller calls it after a success.
func (b *Backoff) Reset() { b.next = 0 }
