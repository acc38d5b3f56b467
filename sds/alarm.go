package sds

import (
	"log/slog"
	"slices"
	"time"
)

// alarm decides which failures of a renewal are told: each cause once, and again, louder, each time that a further part
// of the certificate's life is gone.
type alarm struct {
	told  []string // causes, since the step
	step  int
	since time.Time // of the first failure; zero while all is well
}

// steps are the parts of its life that a certificate has left when a failure is told again; from loud on it is an error.
var steps = []float64{0.25, 0.1, 0.05, 0.02, 0}

const (
	loud = 2
	// mostTold is how many causes of one step are told: some have the time in them, and are never the same twice.
	mostTold = 8
)

// failed notes a failure with the life that is left, and says whether and how loudly it is to be told.
func (a *alarm) failed(cause error, left, life time.Duration, now time.Time) (level slog.Level, tell bool) {
	if a.since.IsZero() {
		a.since = now
	}
	step := 0
	for life > 0 && step < len(steps) && float64(left) <= steps[step]*float64(life) {
		step++
	}
	if step > a.step {
		a.step, a.told = step, nil
	}
	if tell = len(a.told) < mostTold && !slices.Contains(a.told, cause.Error()); tell {
		a.told = append(a.told, cause.Error())
	}
	if step >= loud {
		return slog.LevelError, tell
	}
	return slog.LevelWarn, tell
}

func (a *alarm) reset() { *a = alarm{} }
