package mesh

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"
)

// silenceTimeout is how long a ready instance may send no response before it counts as not ready. If Envoy does not
// respond, its agent also waits this long before it reports that.
const silenceTimeout = 10 * time.Second

// silence records since when an instance sends no responses. instanceRunner.mu guards it.
type silence struct {
	since    time.Time // zero if the instance responds
	reported string    // the last logged reason for which the unresponsive instance still counts as ready
}

// toleratesSilence reports whether an unresponsive instance still counts as ready. On a busy machine, probes can time
// out although requests are served. The mesh therefore removes an instance only after silenceTimeout. Another instance
// of the workload and more than half of all instances must respond.
func (r *instanceRunner) toleratesSilence(seen observation, now time.Time) bool {
	r.mu.Lock()
	if !r.ready || !seen.silent {
		r.silence = silence{}
		r.mu.Unlock()
		return false
	}
	if r.silence.since.IsZero() {
		r.silence.since = now
	}
	duration := now.Sub(r.silence.since)
	r.reasons = seen.reasons
	r.mu.Unlock()
	if duration < silenceTimeout {
		return true
	}
	reason := r.mesh.reasonToTolerate(r)
	if reason != "" {
		r.logUnresponsive(duration, reason, seen.reasons)
	}
	return reason != ""
}

// logUnresponsive logs why an unresponsive instance still counts as ready. It logs each reason once.
func (r *instanceRunner) logUnresponsive(duration time.Duration, reason string, reasons []string) {
	r.mu.Lock()
	logged := r.silence.reported == reason
	r.silence.reported = reason
	r.mu.Unlock()
	if !logged {
		r.mesh.events.publish(Event{Kind: Log, Origin: OriginMesh, Instance: r.instance.Name,
			Line: fmt.Sprintf("the instance has not responded to probes for %s, but counts as ready, because %s: %s", duration.Round(time.Second), reason, strings.Join(reasons, "; "))})
	}
}

// reasonToTolerate returns the reason for which the unresponsive instance r must still count as ready, or "" if it
// must not.
func (m *Mesh) reasonToTolerate(r *instanceRunner) string {
	responsive, silent, all := 0, 0, 0
	for _, other := range m.snapshotRunners() {
		other.mu.Lock()
		ready, isSilent := other.ready, !other.silence.since.IsZero()
		other.mu.Unlock()
		if !ready {
			continue
		}
		all++
		switch {
		case isSilent:
			silent++
		case other.instance.Workload == r.instance.Workload:
			responsive++
		}
	}
	switch {
	case responsive == 0:
		return "no other instance of the workload responds"
	case 2*silent >= all:
		return fmt.Sprintf("%d of %d instances do not respond, so this machine is probably overloaded", silent, all)
	}
	return ""
}

// isTimeout reports whether an error is a timeout. A refused connection is not.
func isTimeout(err error) bool {
	var timeout net.Error
	return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout()
}
