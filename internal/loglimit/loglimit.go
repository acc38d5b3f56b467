// Package loglimit limits log lines that clients without credentials can cause.
package loglimit

import (
	"sync"
	"time"
)

// Limiter limits one kind of log line. The zero value is ready, and its method is safe for concurrent use.
type Limiter struct {
	mu       sync.Mutex
	next     time.Time
	unlogged int
}

// Allow reports whether a line may be logged now, which is so at most once per interval. unlogged is the number of lines
// that were not allowed since the last one.
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
