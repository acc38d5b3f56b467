package xdsproxy

import "time"

// stillSlow is how much has to come of a response for the control plane to be slow, and not silent, in a time in which nothing
// whole has come.
const stillSlow = 4 << 10

// loaded is when the program began to run.
var loaded = time.Now()

// uptime is for how long the program has run, by the clock that nobody sets: that of a machine is often put right while the
// agent starts.
func uptime() time.Duration { return time.Since(loaded) }

// patience is that with a control plane on which Envoy waits.
type patience struct {
	lasts   time.Duration
	arrived int // bytes, when it was looked at last and had lasted
}

// left is how long it is to be waited before it is looked at again; zero when the control plane is silent. Quiet is for how
// long nothing whole has come, and arrived how many bytes have by now. It is not asked twice within the time that patience lasts
// unless something whole has come since.
func (p *patience) left(quiet time.Duration, arrived int, awaited bool) (again time.Duration) {
	if quiet < p.lasts {
		return p.lasts - quiet
	}
	before := p.arrived
	p.arrived = arrived
	if arrived-before >= stillSlow || !awaited { // then it is Envoy that takes its time
		return p.lasts
	}
	return 0
}
