package xdsproxy

import "time"

// minProgress is the minimum number of bytes that a slow control plane sends within the timeout. A control plane that
// sends less is silent.
const minProgress = 4 << 10

// processStart is when the program started.
var processStart = time.Now()

// uptime returns how long the program has run. It uses the monotonic clock, because the wall clock is often corrected
// while the agent starts.
func uptime() time.Duration { return time.Since(processStart) }

// silenceDetector detects a control plane that does not send an awaited response.
type silenceDetector struct {
	timeout  time.Duration
	received int // bytes received at the last check after the timeout
}

// remaining returns the time until its next call, or 0 if the control plane is silent. quiet is the time since the last
// complete response, arrived the number of bytes received so far, and awaited whether Envoy awaits a response. It must
// not be called twice within the timeout unless a complete response arrived.
func (p *silenceDetector) remaining(quiet time.Duration, arrived int, awaited bool) time.Duration {
	if quiet < p.timeout {
		return p.timeout - quiet
	}
	before := p.received
	p.received = arrived
	if arrived-before >= minProgress || !awaited { // if not awaited, Envoy must send its next request or ACK first
		return p.timeout
	}
	return 0
}
