package xdsproxy

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pilotfish-mesh/pilotfish/xdsproxy/wire"
)

const (
	// maxTaps limits the number of taps that are open at the same time.
	maxTaps = 4
	// maxQueued and maxQueuedBytes limit the queue of one tap. At the limit, messages are dropped and counted, because
	// the relay never waits for a tap.
	maxQueued      = 256
	maxQueuedBytes = 32 << 20
)

// ErrTooManyTaps is returned by OpenTap if maxTaps taps are open.
var ErrTooManyTaps = errors.New("four taps are open; close one of them")

// TapOptions selects the discovery messages that a tap shows.
type TapOptions struct {
	// Types are type URLs, their last parts ("Cluster"), or discovery service names ("cds"). Empty means all types.
	Types []string
	// Name is a substring of resource names. Empty means all resources.
	Name string
	// Contents adds the contents of resources, without secrets.
	Contents bool
}

// TapLine describes a message, or one resource of a response. The lines of the resources follow the line of the
// response.
type TapLine struct {
	Time time.Time `json:"time"`
	// Kind is one of the constants below.
	Kind string `json:"kind"`
	// From and To are "envoy", "agent" or "control plane".
	From string `json:"from,omitempty"`
	To   string `json:"to,omitempty"`
	// Process is the PID of the Envoy on this stream.
	Process  int    `json:"pid,omitempty"`
	Protocol string `json:"protocol,omitempty"`

	TypeURL string `json:"typeUrl,omitempty"`
	Version string `json:"version,omitempty"`
	Nonce   string `json:"nonce,omitempty"`
	Bytes   int    `json:"bytes,omitempty"`
	// Resources is the number of resources in a response. Removed lists the resources that it removes. Names and
	// Unsubscribed list the names to which a request subscribes, and from which it unsubscribes. A list has at most
	// maxNames names.
	Resources    int      `json:"resources,omitempty"`
	Names        []string `json:"names,omitempty"`
	Unsubscribed []string `json:"unsubscribed,omitempty"`
	Removed      []string `json:"removed,omitempty"`
	// Known is the number of resources in initial_resource_versions of a first request.
	Known int `json:"known,omitempty"`
	// Reason is the error message of a NACK, or the reason why the message could not be parsed.
	Reason string `json:"reason,omitempty"`

	// Name and Content are set only in a line that describes a resource.
	Name    string          `json:"name,omitempty"`
	Content json.RawMessage `json:"content,omitempty"`
	// Lost is the number of messages that were dropped before this line because the queue was full.
	Lost int `json:"lost,omitempty"`
}

// Values of TapLine.Kind.
const (
	TapRequest  = "request"
	TapAck      = "ack"
	TapNack     = "nack"
	TapResponse = "response"
	TapResource = "resource"
)

// Values of TapLine.From and TapLine.To.
const (
	envoySide        = "envoy"
	agentSide        = "agent"
	controlPlaneSide = "control plane"
)

// Tap receives a copy of each message between Envoy, the agent and the control plane. The caller must call Follow,
// which reads the messages and closes the tap.
type Tap struct {
	relay   *Relay
	options TapOptions
	*tap
}

// OpenTap opens a tap. It returns ErrTooManyTaps if too many are open.
func (r *Relay) OpenTap(o TapOptions) (*Tap, error) {
	t := &Tap{relay: r, options: o, tap: &tap{queue: make(chan tapMessage, maxQueued)}}
	if !r.taps.add(t.tap) {
		return nil, ErrTooManyTaps
	}
	return t, nil
}

// Follow calls emit for each line until ctx ends or emit fails, and then closes the tap. It returns the error of emit,
// or nil if ctx ended.
func (t *Tap) Follow(ctx context.Context, emit func(TapLine) error) error {
	defer t.relay.taps.remove(t.tap)
	for {
		select {
		case m := <-t.queue:
			t.bytes.Add(int64(-m.message.Data.Len()))
			err := t.options.emitMessage(m, int(t.lost.Swap(0)), emit)
			m.message.Free()
			if err != nil {
				return err
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// taps contains the open taps. The zero value is ready to use.
type taps struct {
	active atomic.Bool // at least one tap is open; read without the lock
	mu     sync.Mutex
	all    []*tap
}

// tap contains the message queue of one open Tap.
type tap struct {
	queue chan tapMessage
	bytes atomic.Int64
	lost  atomic.Int64
}

// tapMessage is a message in the queue of a tap. It owns a reference to the message.
type tapMessage struct {
	at       time.Time
	from, to string
	request  bool
	proto    wire.Variant
	process  int32
	message  *wire.Message
}

func (t *taps) add(one *tap) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.all) == maxTaps {
		return false
	}
	t.all = append(t.all, one)
	t.active.Store(true)
	return true
}

func (t *taps) remove(one *tap) {
	t.mu.Lock()
	t.all = slices.DeleteFunc(t.all, func(other *tap) bool { return other == one })
	t.active.Store(len(t.all) > 0)
	t.mu.Unlock()
	for len(one.queue) > 0 {
		m := <-one.queue
		m.message.Free()
	}
}

// publish adds a message to the queues of all taps.
func (t *taps) publish(m tapMessage) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, one := range t.all {
		one.enqueue(m)
	}
}

func (t *tap) enqueue(m tapMessage) {
	size := int64(m.message.Data.Len())
	if t.bytes.Load()+size > maxQueuedBytes && len(t.queue) > 0 {
		t.lost.Add(1)
		return
	}
	m.message = m.message.Share()
	t.bytes.Add(size)
	select {
	case t.queue <- m:
	default:
		m.message.Free()
		t.bytes.Add(-size)
		t.lost.Add(1)
	}
}

// tap passes a copy of a message on this stream to the open taps. The caller still owns the message.
func (s *session) tap(from, to string, f *wire.Message) {
	if !s.relay.taps.active.Load() {
		return
	}
	s.relay.taps.publish(tapMessage{
		at: s.relay.config.Now(), from: from, to: to, request: to == controlPlaneSide, proto: s.proto, process: s.process, message: f,
	})
}

// tapAll passes copies of requests that the agent sends to the open taps. It returns the requests.
func (s *session) tapAll(messages []*wire.Message) []*wire.Message {
	for _, f := range messages {
		s.tap(agentSide, controlPlaneSide, f)
	}
	return messages
}

// serviceNames maps a discovery service name to the last part of its type URL.
var serviceNames = map[string]string{
	"cds": "Cluster", "lds": "Listener", "rds": "RouteConfiguration", "eds": "ClusterLoadAssignment", "sds": "Secret",
	"ecds": "TypedExtensionConfig", "srds": "ScopedRouteConfiguration", "vhds": "VirtualHost", "rtds": "Runtime", "nds": "NameTable",
	"wds": "Workload", "pcds": "ProxyConfig",
}

// matchesType reports whether the options select the type.
func (o TapOptions) matchesType(typeURL string) bool {
	if len(o.Types) == 0 {
		return true
	}
	for _, t := range o.Types {
		short := cmp.Or(serviceNames[strings.ToLower(t)], t)
		if strings.EqualFold(typeURL, t) || strings.EqualFold(shortType(typeURL), short) || strings.EqualFold(typeURL, "type.googleapis.com/"+t) {
			return true
		}
	}
	return false
}
