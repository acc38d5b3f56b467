package mesh

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"
)

// silencePatience is how long an instance that was ready may leave questions unanswered before that counts against it.
// Its agent has waited for Envoy's answer as long already.
const silencePatience = 10 * time.Second

// silence is how long an instance has not answered. Guarded by its runner's mu.
type silence struct {
	since time.Time // zero: it answers
	told  string    // why it is kept in service, as it was told last
}

// bears says whether an instance that merely does not answer stays in service. Silence is no proof of anything: on a busy
// machine it is the asking that suffers, while requests are served. So it counts only against an instance that others
// stand in for, on a machine on which most others answer.
func (r *runner) bears(seen sight, now time.Time) bool {
	r.mu.Lock()
	if !r.ready || !seen.silent {
		r.silence = silence{}
		r.mu.Unlock()
		return false
	}
	if r.silence.since.IsZero() {
		r.silence.since = now
	}
	lasting := now.Sub(r.silence.since)
	r.reasons = seen.reasons
	r.mu.Unlock()
	if lasting < silencePatience {
		return true
	}
	why := r.mesh.standsFor(r)
	if why != "" {
		r.tellSilence(lasting, why, seen.reasons)
	}
	return why != ""
}

// tellSilence says, once for each cause, why the instance is kept.
func (r *runner) tellSilence(lasting time.Duration, why string, reasons []string) {
	r.mu.Lock()
	told := r.silence.told == why
	r.silence.told = why
	r.mu.Unlock()
	if !told {
		r.mesh.events.publish(Event{Kind: Log, Origin: OriginMesh, Instance: r.instance.Name,
			Line: fmt.Sprintf("it has not answered for %s, and stays in service, as %s: %s", lasting.Round(time.Second), why, strings.Join(reasons, "; "))})
	}
}

// standsFor says why a silent instance is needed nevertheless; nothing where it is not.
func (m *Mesh) standsFor(r *runner) string {
	standIns, silent, all := 0, 0, 0
	for _, other := range m.snapshotRunners() {
		other.mu.Lock()
		ready, quiet := other.ready, !other.silence.since.IsZero()
		other.mu.Unlock()
		if !ready {
			continue
		}
		all++
		switch {
		case quiet:
			silent++
		case other.instance.workload == r.instance.workload:
			standIns++
		}
	}
	switch {
	case standIns == 0:
		return "no other instance of the workload is there for its callers"
	case 2*silent >= all:
		return fmt.Sprintf("%d of %d instances do not answer, so that this machine is too busy to tell", silent, all)
	}
	return ""
}

// unanswered says whether a question was left without an answer, rather than refused.
func unanswered(err error) bool {
	var timeout net.Error
	return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout()
}
