package xdsproxy

import "time"

// minProgress is the number of bytes that must arrive within the timeout for a control plane to count as slow, not
// silent.
const minProgress = 4 << 10

// processStart is when the program started.
var processStart = time.Now()

// uptime returns how long the program has run, by the monotonic clock: the wall clock is often corrected while the
// agent starts.
func uptime() time.Duration { return time.Since(processStart) }

// silenceDetector detects a control plane that does not send an awaited response.
type silenceDetector struct {
	timeout  time.Duration
	received int // bytes received at the last check after the timeout
}

// remaining returns the time until the next check, or 0 if the control plane is silent. quiet is the time since the
// last complete response, arrived the number of bytes received so far, and awaited whether Envoy awaits a response. It
// must not be called twice within the timeout unless a complete response arrived.
func (p *silenceDetector) remaining(quiet time.Duration, arrived int, awaited bool) (again time.Duration) {
	if quiet < p.timeout {
		return p.timeout - quiet
	}
	before := p.received
	p.received = arrived
	if arrived-before >= minProgress || !awaited { // if nothing is awaited, Envoy has not answered yet
		return p.timeout
	}
	return 0
}
