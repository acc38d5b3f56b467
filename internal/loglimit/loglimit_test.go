package loglimit

import (
	"testing"
	"time"
)

func TestOneLinePerIntervalIsAllowedAndTheOthersAreCounted(t *testing.T) {
	var l Limiter
	start := time.Now()
	for _, c := range []struct {
		after    time.Duration
		ok       bool
		unlogged int
	}{
		{0, true, 0}, {0, false, 0}, {59 * time.Second, false, 0},
		{time.Minute, true, 2}, {61 * time.Second, false, 0}, {2 * time.Minute, true, 1}, {time.Hour, true, 0},
	} {
		if unlogged, ok := l.Allow(start.Add(c.after), time.Minute); ok != c.ok || unlogged != c.unlogged {
			t.Errorf("after %s: %v with %d unlogged, want %v with %d", c.after, ok, unlogged, c.ok, c.unlogged)
		}
	}
}
