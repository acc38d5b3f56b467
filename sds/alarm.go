package sds

import (
	"log/slog"
	"time"
)

// alarm decides which failures of a renewal are told: each cause once, and again, louder, each time that a further part
// of the certificate's life is gone.
type alarm struct {
	cause string
	step  int
	since time.Time // of the first failure; zero while all is well
}

// steps are the parts of its life that a certificate has left when a failure is told again; from loud on it is an error.
var steps = []float64{0.25, 0.1, 0.05, 0.02, 0}

const loud = 2

// failed notes a failure with the life that is left, and says whether and how loudly it is to be told.
func (a *alarm) failed(cause error, left, life time.Duration, now time.Time) (level slog.Level, tell bool) {
	if a.since.IsZero() {
		a.since = now
	}
	step := 0
	for life > 0 && step < len(steps) && float64(left) <= steps[step]*float64(life) {
		step++
	}
	tell = cause.Error() != a.cause || step > a.step
	a.cause, a.step = cause.Error(), max(step, a.step)
	if step >= loud {
		return slog.LevelError, tell
	}
	return slog.LevelWarn, tell
}

func (a *alarm) reset() { *a = alarm{} }
