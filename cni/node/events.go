package node

import (
	"context"
	"log/slog"
	"time"

	"github.com/pilotfish-mesh/pilotfish/cni/kube"
)

const (
	// waitingEvents are kept while the API server takes its time; more are left out.
	waitingEvents = 256
	// eventTime bounds the writing of one.
	eventTime = 10 * time.Second
	// sameEvent is how long the same is not said again of a pod.
	sameEvent = 10 * time.Minute
	// mostSaid is how many are remembered for that.
	mostSaid = 4096
)

// Reporter writes events; *kube.Client is one.
type Reporter interface {
	Report(ctx context.Context, component, node string, now time.Time, e kube.PodEvent) error
}

// EventsConfig is what Events need.
type EventsConfig struct {
	API     Reporter
	Node    string
	Metrics *Metrics
	Now     func() time.Time // nil: time.Now
	Logger  *slog.Logger
}

// Events tells people of pods, in the pods' events. Nobody waits for it, and nothing depends on it.
type Events struct {
	config EventsConfig
	queue  chan kube.PodEvent
	said   map[said]time.Time // of Run alone
	failed string
}

type said struct{ uid, reason, message string }

// NewEvents makes one that has nothing to tell yet.
func NewEvents(c EventsConfig) *Events {
	if c.Now == nil {
		c.Now = time.Now
	}
	return &Events{config: c, queue: make(chan kube.PodEvent, waitingEvents), said: map[said]time.Time{}}
}

// Tell has an event written soon. It does not block.
func (e *Events) Tell(event kube.PodEvent) {
	select {
	case e.queue <- event:
	default:
		e.count("left-out")
	}
}

// Run writes events until the context ends.
func (e *Events) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case event := <-e.queue:
			e.write(ctx, event)
		}
	}
}

func (e *Events) write(ctx context.Context, event kube.PodEvent) {
	now, key := e.config.Now(), said{event.Pod.Metadata.UID, event.Reason, event.Message}
	if before, known := e.said[key]; known && now.Sub(before) < sameEvent && now.After(before) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, eventTime)
	defer cancel()
	err := e.config.API.Report(ctx, "pilotfish-cni", e.config.Node, now, event)
	if err == nil {
		e.remember(key, now)
		e.failed = ""
		e.count("written")
		return
	}
	e.count("failed")
	if e.failed == "" { // once, until one succeeds
		e.config.Logger.Warn("events of pods cannot be written; this log has them", "error", err,
			"remedy", "give the service account the right to create events, as the manifest does, or set pod-events=false")
	}
	e.failed = err.Error()
}

func (e *Events) remember(key said, now time.Time) {
	if len(e.said) >= mostSaid {
		clear(e.said)
	}
	e.said[key] = now
}

func (e *Events) count(result string) {
	if e.config.Metrics != nil {
		e.config.Metrics.Events.WithLabelValues(result).Inc()
	}
}
