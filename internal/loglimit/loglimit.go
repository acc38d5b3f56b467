// Package loglimit limits the rate of log lines that unauthenticated clients can cause.
package loglimit

import (
	"sync"
	"time"
)

// Limiter limits the rate of one kind of log line. The zero value is ready to use. It is safe for concurrent use.
type Limiter struct {
	mu       sync.Mutex
	next     time.Time
	unlogged int
}

// Allow reports whether a line may be logged now. It returns true at most once per interval. unlogged is the number of
// lines that were not logged since the last allowed line.
func (l *Limiter) Allow(now time.Time, interval time.Duration) (unlogged int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Before(l.next) {
		l.unlogged++
		return 0, false
	}
	unlogged, l.unlogged, l.next = l.unlogged, 0, now.Add(interval)
	return unlogged, true
}
