package sds

import (
	"log/slog"
	"slices"
	"time"
)

// renewalLog decides which renewal failures are logged: each cause once, and again, with a rising level, as the
// remaining lifetime of the certificate decreases.
type renewalLog struct {
	logged []string // causes logged in the current step
	step   int
	since  time.Time // first failure; zero while renewal works
}

// logSteps are the remaining fractions of the lifetime at which a failure is logged again; from errorStep on as an
// error.
var logSteps = []float64{0.25, 0.1, 0.05, 0.02, 0}

const (
	errorStep = 2
	// maxLogged limits the causes that are logged per step. Some contain the time, so they never repeat.
	maxLogged = 8
)

// recordFailure records a failure with the certificate's remaining lifetime. It returns the log level and whether to
// log.
func (a *renewalLog) recordFailure(cause error, left, life time.Duration, now time.Time) (level slog.Level, shouldLog bool) {
	if a.since.IsZero() {
		a.since = now
	}
	step := 0
	for life > 0 && step < len(logSteps) && float64(left) <= logSteps[step]*float64(life) {
		step++
	}
	if step > a.step {
		a.step, a.logged = step, nil
	}
	if shouldLog = len(a.logged) < maxLogged && !slices.Contains(a.logged, cause.Error()); shouldLog {
		a.logged = append(a.logged, cause.Error())
	}
	if step >= errorStep {
		return slog.LevelError, shouldLog
	}
	return slog.LevelWarn, shouldLog
}

func (a *renewalLog) reset() { *a = renewalLog{} }
