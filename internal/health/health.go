// Package health defines how each component of the agent reports its health, so that a probe's response can name the
// failure, its start and the remedy.
package health

import "time"

// Condition is the health of one component. The zero value is unhealthy, without a known reason.
type Condition struct {
	// OK reports whether the component works.
	OK bool
	// Reason states what is wrong, or what is worth knowing about a healthy component.
	Reason string
	// Remedy states what a person can do; empty if waiting is all.
	Remedy string
	// Since is the time since which the condition holds; zero if unknown.
	Since time.Time
	// Silent means that the component does not respond. On a busy machine that does not show a failure.
	Silent bool
}

// Healthy is the condition of a healthy component without a reason.
var Healthy = Condition{OK: true}

// Check returns a condition. It must return quickly: a probe waits for it.
type Check func() Condition

// FromFunc converts a function that returns a verdict and a reason to a Check.
func FromFunc(f func() (ok bool, reason string)) Check {
	return func() Condition {
		ok, reason := f()
		return Condition{OK: ok, Reason: reason}
	}
}
