package sds

import (
	"log/slog"
	"slices"
	"time"
)

// renewalLog decides which renewal failures are logged. Each cause is logged once per step. A step begins when the
// remaining lifetime of the certificate falls below a fraction in logSteps, and later steps have a higher log level.
type renewalLog struct {
	logged []string // causes logged in the current step
	step   int
	since  time.Time // time of the first failure; zero while renewals succeed
}

// logSteps are fractions of the certificate's lifetime. When the remaining lifetime falls to one of them, failures are
// logged again, even if they were logged before.
var logSteps = []float64{0.25, 0.1, 0.05, 0.02, 0}

const (
	// errorStep is the number of passed logSteps from which on failures are logged as errors.
	errorStep = 2
	// maxLogged limits the causes that are logged per step. Some error texts contain the time, so each of them is a new
	// cause.
	maxLogged = 8
)

// recordFailure records a failure. left is the certificate's remaining lifetime, life its whole lifetime. It returns
// the log level, and whether to log the failure.
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
