// Package health is the form in which each part of the agent tells how it is, so that a probe's answer can name what is
// wrong, since when, and what a person can do.
package health

import "time"

// Condition is how one part is at one moment. The zero value is not well, for no reason that is known.
type Condition struct {
	// OK says that the part can be relied on.
	OK bool
	// Reason says what is wrong, or what is worth knowing although the part is well.
	Reason string
	// Remedy says what a person can do about it; empty where there is nothing to do but to wait.
	Remedy string
	// Since is when it came to be so; zero when the part does not know.
	Since time.Time
	// Silent: the part does not answer, which on a busy machine tells nothing of how it is.
	Silent bool
}

// Well is the condition of a part of which there is nothing to tell.
var Well = Condition{OK: true}

// Check tells a condition. It answers soon: a probe waits for it.
type Check func() Condition

// Plain makes a check of a function that knows no more than a verdict and a reason.
func Plain(f func() (ok bool, reason string)) Check {
	return func() Condition {
		ok, reason := f()
		return Condition{OK: ok, Reason: reason}
	}
}
