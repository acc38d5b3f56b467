package node

import (
	"context"
	"log/slog"
	"time"

	"github.com/pilotfish-mesh/pilotfish/cni/kube"
)

const (
	// waitingEvents is the size of the event queue. When the queue is full, further events are dropped.
	waitingEvents = 256
	// eventTime is the timeout of the request that creates one event.
	eventTime = 10 * time.Second
	// sameEvent is the minimum interval between equal events about one pod.
	sameEvent = 10 * time.Minute
	// maxReported limits the number of sent events that are stored to detect repeated events.
	maxReported = 4096
)

// Reporter creates Kubernetes events. *kube.Client implements it.
type Reporter interface {
	Report(ctx context.Context, component, node string, now time.Time, e kube.PodEvent) error
}

// EventsConfig is the configuration of Events.
type EventsConfig struct {
	API     Reporter
	Node    string
	Metrics *Metrics
	Now     func() time.Time // nil: time.Now
	Logger  *slog.Logger
}

// Events creates Kubernetes events about pods in the background. It logs and counts errors.
type Events struct {
	config   EventsConfig
	queue    chan kube.PodEvent
	reported map[eventKey]time.Time // used only by Run
	failed   string                 // last error that was logged; "" after a success
}

type eventKey struct{ uid, reason, message string }

// NewEvents returns Events with an empty queue.
func NewEvents(c EventsConfig) *Events {
	if c.Now == nil {
		c.Now = time.Now
	}
	return &Events{config: c, queue: make(chan kube.PodEvent, waitingEvents), reported: map[eventKey]time.Time{}}
}

// Enqueue queues an event. It does not block: if the queue is full, the event is dropped and counted.
func (e *Events) Enqueue(event kube.PodEvent) {
	select {
	case e.queue <- event:
	default:
		e.count("left-out")
	}
}

// Run creates the queued events until the context ends.
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
	now, key := e.config.Now(), eventKey{event.Pod.Metadata.UID, event.Reason, event.Message}
	if before, known := e.reported[key]; known && now.Sub(before) < sameEvent && now.After(before) {
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
	if e.failed == "" { // log only the first of several consecutive failures
		e.config.Logger.Warn("cannot create Kubernetes events about pods; the findings are only logged here", "error", err,
			"remedy", "grant the service account the permission to create events, as the manifest does, or set pod-events=false")
	}
	e.failed = err.Error()
}

func (e *Events) remember(key eventKey, now time.Time) {
	if len(e.reported) >= maxReported {
		clear(e.reported)
	}
	e.reported[key] = now
}

func (e *Events) count(result string) {
	if e.config.Metrics != nil {
		e.config.Metrics.Events.WithLabelValues(result).Inc()
	}
}
