// Package health defines the form in which each component of the agent reports its health. A response to a probe can
// thus contain the reason of a failure, the time of its start and the remedy.
package health

import "time"

// Condition is the health of one component. The zero value is unhealthy without a reason.
type Condition struct {
	// OK reports whether the component works.
	OK bool
	// Reason describes the problem. For a healthy component, it may contain other information.
	Reason string
	// Remedy describes what an operator can do. If it is empty, the operator can only wait.
	Remedy string
	// Since is the time at which this condition began; zero if unknown.
	Since time.Time
	// Silent reports whether the component does not respond. On a busy machine, a component that works may not respond
	// in time.
	Silent bool
}

// Healthy is the condition of a healthy component without further information.
var Healthy = Condition{OK: true}

// Check returns a condition. It must return quickly, because a probe waits for it.
type Check func() Condition

// FromFunc converts a function that returns ok and a reason to a Check.
func FromFunc(f func() (ok bool, reason string)) Check {
	return func() Condition {
		ok, reason := f()
		return Condition{OK: ok, Reason: reason}
	}
}
