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
)

const (
	// mostTaps bounds who listens at a time.
	mostTaps = 4
	// mostQueued and mostQueuedBytes bound what waits for a listener who is slow; what is beyond it is left out, and
	// counted. The relay never waits for a listener.
	mostQueued      = 256
	mostQueuedBytes = 32 << 20
)

// ErrTapped says that as many listen already as may.
var ErrTapped = errors.New("four taps are open already; end one of them")

// TapOptions say what of the streams is of interest.
type TapOptions struct {
	// Types are type URLs, the last parts of them ("Cluster"), or the protocol's names ("cds"); none for all.
	Types []string
	// Name is a part of the names of the resources to be shown; empty for all.
	Name string
	// Contents shows the resources themselves, too, without their secrets.
	Contents bool
}

// TapLine is a message of a stream, or one of its resources, which come after it one by one.
type TapLine struct {
	Time time.Time `json:"time"`
	// Kind is one of the constants below.
	Kind string `json:"kind"`
	// From and To are "envoy", "agent" or "control plane".
	From string `json:"from,omitempty"`
	To   string `json:"to,omitempty"`
	// Process is the Envoy whose stream it is of.
	Process  int    `json:"pid,omitempty"`
	Protocol string `json:"protocol,omitempty"`

	TypeURL string `json:"typeUrl,omitempty"`
	Version string `json:"version,omitempty"`
	Nonce   string `json:"nonce,omitempty"`
	Bytes   int    `json:"bytes,omitempty"`
	// Resources is how many a response has. Names are those that a request asks for, Unsubscribed those it takes back,
	// Removed those that a response takes away; of many, the first hundred.
	Resources    int      `json:"resources,omitempty"`
	Names        []string `json:"names,omitempty"`
	Unsubscribed []string `json:"unsubscribed,omitempty"`
	Removed      []string `json:"removed,omitempty"`
	// Known is how many resources a first request says that Envoy has.
	Known  int    `json:"known,omitempty"`
	Reason string `json:"reason,omitempty"`

	// Name and Content are of a resource.
	Name    string          `json:"name,omitempty"`
	Content json.RawMessage `json:"content,omitempty"`
	// Lost is how many messages were left out before this line, because they came faster than they were taken.
	Lost int `json:"lost,omitempty"`
}

// The kinds of lines.
const (
	TapRequest  = "request"
	TapAck      = "ack"
	TapNack     = "nack"
	TapResponse = "response"
	TapResource = "resource"
)

// Who speaks to whom.
const (
	envoySide = "envoy"
	agentSide = "agent"
	planeSide = "control plane"
)

// Tap is one who listens. It has to be followed, or it stays open.
type Tap struct {
	relay   *Relay
	options TapOptions
	*tap
}

// OpenTap begins to listen.
func (r *Relay) OpenTap(o TapOptions) (*Tap, error) {
	t := &Tap{relay: r, options: o, tap: &tap{queue: make(chan tapped, mostQueued)}}
	if !r.taps.add(t.tap) {
		return nil, ErrTapped
	}
	return t, nil
}

// Follow gives what passes to the function until the context ends, which is no error, or the function fails. Then the tap is
// closed.
func (t *Tap) Follow(ctx context.Context, emit func(TapLine) error) error {
	defer t.relay.taps.remove(t.tap)
	for {
		select {
		case m := <-t.queue:
			t.bytes.Add(int64(-m.frame.data.Len()))
			err := t.options.show(m, int(t.lost.Swap(0)), emit)
			m.frame.free()
			if err != nil {
				return err
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// taps are the listeners there are. The zero value has none.
type taps struct {
	any atomic.Bool // nobody listens most of the time, and then nothing is to be paid for it
	mu  sync.Mutex
	all []*tap
}

// tap is one listener.
type tap struct {
	queue chan tapped
	bytes atomic.Int64
	lost  atomic.Int64
}

// tapped is a message on its way to a listener, who has a reference to it.
type tapped struct {
	at       time.Time
	from, to string
	request  bool
	proto    variant
	process  int32
	frame    *frame
}

func (t *taps) add(one *tap) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.all) == mostTaps {
		return false
	}
	t.all = append(t.all, one)
	t.any.Store(true)
	return true
}

func (t *taps) remove(one *tap) {
	t.mu.Lock()
	t.all = slices.DeleteFunc(t.all, func(other *tap) bool { return other == one })
	t.any.Store(len(t.all) > 0)
	t.mu.Unlock()
	for len(one.queue) > 0 {
		m := <-one.queue
		m.frame.free()
	}
}

// offer shows a message to whoever listens.
func (t *taps) offer(m tapped) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, one := range t.all {
		one.offer(m)
	}
}

func (t *tap) offer(m tapped) {
	size := int64(m.frame.data.Len())
	if t.bytes.Load()+size > mostQueuedBytes && len(t.queue) > 0 {
		t.lost.Add(1)
		return
	}
	m.frame = m.frame.share()
	t.bytes.Add(size)
	select {
	case t.queue <- m:
	default:
		m.frame.free()
		t.bytes.Add(-size)
		t.lost.Add(1)
	}
}

// tap shows a message of this stream to whoever listens. The caller keeps its reference.
func (s *session) tap(from, to string, f *frame) {
	if !s.relay.taps.any.Load() {
		return
	}
	s.relay.taps.offer(tapped{
		at: s.relay.config.Now(), from: from, to: to, request: to == planeSide, proto: s.proto, process: s.process, frame: f,
	})
}

// tapAll is tap for what the agent says itself.
func (s *session) tapAll(frames []*frame) []*frame {
	for _, f := range frames {
		s.tap(agentSide, planeSide, f)
	}
	return frames
}

// serviceNames are the protocol's own names of types.
var serviceNames = map[string]string{
	"cds": "Cluster", "lds": "Listener", "rds": "RouteConfiguration", "eds": "ClusterLoadAssignment", "sds": "Secret",
	"ecds": "TypedExtensionConfig", "srds": "ScopedRouteConfiguration", "vhds": "VirtualHost", "rtds": "Runtime", "nds": "NameTable",
	"wds": "Workload", "pcds": "ProxyConfig",
}

// wants says whether a type is of interest.
func (o TapOptions) wants(typeURL string) bool {
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
