package xdsproxy

import "time"

// minProgress is the number of bytes that a control plane must send within the timeout. A control plane that sends less
// counts as silent.
const minProgress = 4 << 10

// processStart is the time at which the program started.
var processStart = time.Now()

// uptime returns how long the program has run. It uses the monotonic clock, because the system often corrects the wall
// clock while the agent starts.
func uptime() time.Duration { return time.Since(processStart) }

// silenceDetector detects a control plane that does not send a response for which Envoy waits.
type silenceDetector struct {
	timeout  time.Duration
	received int // bytes received at the last check after the timeout
}

// checkSilence returns the time until the next call of checkSilence, or 0 if the control plane is silent. quiet is the
// time since the last complete response. arrived is the number of bytes received so far. awaited reports whether Envoy
// waits for a response. Before the timeout has passed again, the caller may call it only after a complete response.
func (p *silenceDetector) checkSilence(quiet time.Duration, arrived int, awaited bool) time.Duration {
	if quiet < p.timeout {
		return p.timeout - quiet
	}
	before := p.received
	p.received = arrived
	// If !awaited, Envoy must send its next request or ACK before the control plane can respond.
	if arrived-before >= minProgress || !awaited {
		return p.timeout
	}
	return 0
}
