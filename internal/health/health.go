// Package health defines how each component of the agent reports its health, so that the response to a probe can
// contain the reason of a failure, its start and the remedy.
package health

import "time"

// Condition is the health of one component. The zero value is unhealthy without a reason.
type Condition struct {
	// OK reports whether the component works.
	OK bool
	// Reason states what is wrong, or information about a healthy component.
	Reason string
	// Remedy states what an operator can do. Empty: nothing but wait.
	Remedy string
	// Since is when the component entered this condition; zero if unknown.
	Since time.Time
	// Silent means that the component does not respond. On a busy machine this does not imply a failure.
	Silent bool
}

// Healthy is the condition of a healthy component without further information.
var Healthy = Condition{OK: true}

// Check returns a condition. It must return quickly: a probe waits for it.
type Check func() Condition

// FromFunc converts a function that returns ok and a reason to a Check.
func FromFunc(f func() (ok bool, reason string)) Check {
	return func() Condition {
		ok, reason := f()
		return Condition{OK: ok, Reason: reason}
	}
}
