package mesh

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"
)

// silenceTimeout is how long a ready instance may fail to respond before it counts as not ready. Before that, its agent
// already waits this long for Envoy.
const silenceTimeout = 10 * time.Second

// silence records since when an instance has not responded. Guarded by its runner's mu.
type silence struct {
	since    time.Time // zero: it responds
	reported string    // last logged reason reason the instance stays in service
}

// toleratesSilence reports whether an unresponsive instance stays in service. On a busy machine, probes can time out
// while requests are served. So an instance is removed only if its workload has another responsive instance, and most
// instances of the mesh respond.
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

// logUnresponsive logs, once for each reason, why the instance stays in service.
func (r *instanceRunner) logUnresponsive(duration time.Duration, reason string, reasons []string) {
	r.mu.Lock()
	logged := r.silence.reported == reason
	r.silence.reported = reason
	r.mu.Unlock()
	if !logged {
		r.mesh.events.publish(Event{Kind: Log, Origin: OriginMesh, Instance: r.instance.Name,
			Line: fmt.Sprintf("it has not answered for %s, and stays in service, because %s: %s", duration.Round(time.Second), reason, strings.Join(reasons, "; "))})
	}
}

// reasonToTolerate returns why an unresponsive instance must stay in service, or "".
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
		case other.instance.workload == r.instance.workload:
			responsive++
		}
	}
	switch {
	case responsive == 0:
		return "no other instance of the workload responds"
	case 2*silent >= all:
		return fmt.Sprintf("%d of %d instances do not answer, so this machine is probably overloaded", silent, all)
	}
	return ""
}

// isTimeout reports whether an error is a timeout, rather than a refusal.
func isTimeout(err error) bool {
	var timeout net.Error
	return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout()
}
