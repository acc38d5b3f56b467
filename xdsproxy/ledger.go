package xdsproxy

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	// maxTypes bounds the types that are told apart, and maxPending the responses that wait for an answer.
	maxTypes   = 64
	maxPending = 32
	// mostTold bounds the addresses of which it is remembered why they cannot be reached.
	mostTold = 2 * mostTargets

	clusterType  = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
	listenerType = "type.googleapis.com/envoy.config.listener.v3.Listener"
)

// ledger keeps the books: who is connected, and how each type stands.
type ledger struct {
	now     func() time.Time
	log     *slog.Logger
	metrics *metrics

	began       time.Time
	mu          sync.Mutex
	isConnected bool
	upstream    string
	since       time.Time
	reason      string
	// told are the reasons that were logged, by address, since there was a connection last.
	told         map[string]string
	lastResponse time.Time
	// current is until when Envoy's configuration was known to be the control plane's, and lastGood that it is not from the
	// control plane of now.
	current  time.Time
	lastGood bool
	envoy    bool
	protocol string
	types    map[string]*account
	// envoys has the books of each Envoy process; process is the one whose stream is in force, or was last.
	envoys  map[int32]*envoyBook
	process int32
	// events and nacks are what happened last.
	events, nacks ring
}

// account is the state of one type.
type account struct {
	TypeStatus
	pending []sent
	// answer is the state by Envoy's last answer, or that there was none.
	answer string
	// begun says that this stream of Envoy has asked for the type.
	begun bool
	// rejected are the resources that Envoy rejects, by name.
	rejected map[string]*ResourceNack
	said     saidOfRejections
}

type sent struct{ nonce, version string }

func newLedger(now func() time.Time, log *slog.Logger) *ledger {
	return &ledger{
		now: now, log: log, metrics: newMetrics(), began: now(), since: now(),
		types: make(map[string]*account), told: make(map[string]string), envoys: make(map[int32]*envoyBook),
		events: ring{most: mostEvents}, nacks: ring{most: mostNacks},
	}
}

// account finds the account of a type; the caller holds the lock.
func (l *ledger) account(typeURL string) *account {
	a := l.types[typeURL]
	if a == nil && len(l.types) >= maxTypes {
		typeURL = "other"
		a = l.types[typeURL]
	}
	if a == nil {
		a = &account{TypeStatus: TypeStatus{TypeURL: typeURL}, answer: StateRequested}
		l.types[typeURL] = a
		l.metrics.begin(typeURL)
	}
	return a
}

// reached notes that there is a connection, on which nothing was said yet.
func (l *ledger) reached(address string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.isConnected {
		return
	}
	l.upstream = address
	if l.lastResponse.IsZero() {
		l.reason = ""
	}
}

func (l *ledger) connected(address string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.upstream, l.reason = address, ""
	clear(l.told)
	if !l.isConnected {
		l.isConnected, l.since, l.lastGood = true, l.now(), false
		l.note(Event{Kind: EventConnected, Address: address})
		l.log.Info("connected to the control plane", "address", address, "protocol", l.protocol)
	}
}

func (l *ledger) disconnected(address string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	reason := describe(err)
	if l.isConnected || reason != l.told[address] { // once a cause, not once an attempt
		if len(l.told) >= mostTold {
			clear(l.told)
		}
		l.told[address] = reason
		l.note(Event{Kind: EventDisconnected, Address: address, Reason: reason})
		l.log.Warn("not connected to the control plane", "address", address, "reason", reason)
	}
	l.upstream, l.reason = address, reason
	if l.isConnected {
		l.isConnected, l.since = false, l.now()
		l.current = l.since
	}
}

func (l *ledger) connectFailed(address string, err error) {
	l.metrics.connectFailures.Inc()
	l.disconnected(address, err)
}

func (l *ledger) streamEnded(address string, err error) {
	l.metrics.ended(l.metrics.upstreamEnds, err)
	l.disconnected(address, err)
}

func (l *ledger) envoyEnded(err error) { l.metrics.ended(l.metrics.envoyEnds, err) }

// describe makes an error fit for a reader: gRPC's own wrapping says nothing.
func describe(err error) string {
	if s, ok := status.FromError(err); ok && s.Code() != codes.OK {
		if s.Code() == codes.Unavailable || s.Code() == codes.Unknown {
			return s.Message()
		}
		return fmt.Sprintf("%s: %s", s.Code(), s.Message())
	}
	return err.Error()
}

// envoyConnected begins a new stream: subscriptions and unanswered responses are of the stream.
func (l *ledger) envoyConnected(v variant, process int32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.envoy, l.protocol = true, v.String()
	l.process = process
	l.note(Event{Kind: EventEnvoy, Process: int(process)})
	_, known := l.envoys[process]
	l.bookOf(process)
	for _, a := range l.types {
		a.pending, a.begun, a.Subscribed, a.Wildcard = nil, false, 0, false
		if !known {
			a.answer = StateRequested
			clear(a.rejected)
		}
	}
}

func (l *ledger) envoyDisconnected() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.envoy = false
	l.note(Event{Kind: EventEnvoyGone, Process: int(l.process)})
	if l.isConnected { // the stream upstream ends with Envoy's
		l.isConnected, l.since, l.reason = false, l.now(), "Envoy has no stream"
		l.current = l.since
	}
}

// request books what Envoy said, and logs rejections. The response that it answers, if any, is about.
func (l *ledger) request(v variant, r request, about response) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.account(r.typeURL)
	a.Requests++
	l.metrics.requests.Inc()
	if r.subscribes(v, a) {
		l.note(Event{Kind: EventSubscribe, TypeURL: a.TypeURL, Resources: len(r.names) + len(r.subscribe), Removed: len(r.unsubscribe)})
	}
	a.subscribe(v, r)
	switch {
	case r.rejected:
		a.reject(r, about, l.now())
		l.bookOf(l.process).reject(a)
		l.noteNack(a, r, about)
	case r.nonce != "" && a.acknowledge(r, l.now()):
		a.acceptResources(v, about)
		l.bookOf(l.process).acknowledge(a)
		l.note(Event{Kind: EventAck, TypeURL: a.TypeURL, Version: a.Version, Nonce: r.nonce})
		l.metrics.acks.WithLabelValues(shortType(a.TypeURL)).Inc()
		l.metrics.lastAccepted.WithLabelValues(shortType(a.TypeURL)).Set(float64(a.LastAck.UnixMilli()) / 1000)
	}
}

// noteNack books a rejection where people look; the caller holds the lock.
func (l *ledger) noteNack(a *account, r request, about response) {
	e := Event{Kind: EventNack, TypeURL: a.TypeURL, Version: a.LastNack.Version, Nonce: r.nonce, Reason: r.reason, Resources: len(about.resources)}
	for _, m := range mentioned(about.resources, r.reason) {
		if len(e.Names) < mostRejected {
			e.Names = append(e.Names, shortened(m.name))
		}
	}
	l.note(e)
	l.metrics.nacks.WithLabelValues(shortType(a.TypeURL)).Inc()
	if unsaid, say := a.said.rejection(r.reason, l.now()); say {
		attrs := []any{"type", r.typeURL, "reason", r.reason}
		if unsaid > 0 {
			attrs = append(attrs, "notLogged", unsaid)
		}
		l.log.Warn("Envoy rejected its configuration", attrs...)
	}
}

// subscribes says whether a request asks for something else than before, as far as can be told without comparing names.
func (r *request) subscribes(v variant, a *account) bool {
	if v == sotw {
		return !a.begun || len(r.names) != a.Subscribed
	}
	return !a.begun || len(r.subscribe)+len(r.unsubscribe) > 0
}

func (a *account) subscribe(v variant, r request) {
	if v == sotw {
		if !r.rejected {
			a.Subscribed = len(r.names)
			a.Wildcard = r.asksForAll() || (len(r.names) == 0 && (a.TypeURL == clusterType || a.TypeURL == listenerType))
		}
		a.begun = true
		return
	}
	more := len(r.subscribe)
	if r.asksForAll() {
		more--
	}
	a.Wildcard = a.Wildcard || r.asksForAll() || (!a.begun && len(r.subscribe) == 0)
	a.begun = true
	a.Subscribed = max(0, a.Subscribed+more-len(r.unsubscribe))
}

func (a *account) reject(r request, about response, now time.Time) {
	a.rejectResources(about, r.reason, now)
	version, _ := a.settle(r.nonce)
	a.Nacks++
	a.answer = StateRejected
	a.LastNack = &Nack{Time: now, Reason: r.reason, Version: version}
}

// acknowledge books an ACK. A request that repeats the nonce of a response long answered is a new subscription.
func (a *account) acknowledge(r request, now time.Time) bool {
	version, ok := a.settle(r.nonce)
	if !ok {
		return false
	}
	a.Acks++
	a.answer = StateAcknowledged
	a.LastAck, a.Version = now, version
	return true
}

// settle removes a response and all before it from those that wait, and gives its version.
func (a *account) settle(nonce string) (version string, ok bool) {
	for i, s := range a.pending {
		if s.nonce == nonce {
			a.pending = slices.Delete(a.pending, 0, i+1)
			return s.version, true
		}
	}
	return "", false
}

func (l *ledger) response(r response, size int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.account(r.typeURL)
	a.Responses++
	a.ResponseBytes += uint64(size)
	a.LastResponse, a.LastResources = l.now(), len(r.resources)
	l.lastResponse = a.LastResponse
	l.bookOf(l.process).answered = true
	if len(a.pending) == maxPending {
		a.pending = slices.Delete(a.pending, 0, 1)
	}
	a.pending = append(a.pending, sent{nonce: r.nonce, version: r.version})
	l.note(Event{
		Kind: EventResponse, TypeURL: a.TypeURL, Version: r.version, Nonce: r.nonce,
		Resources: len(r.resources), Removed: len(r.removed), Bytes: size,
	})
	l.metrics.responses.Inc()
	l.metrics.responseBytes.WithLabelValues(shortType(a.TypeURL)).Add(float64(size))
}

func (a *account) state() string {
	if len(a.pending) > 0 {
		return StatePending
	}
	return a.answer
}

func (l *ledger) status() Status {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := Status{
		Connected: l.isConnected, Upstream: l.upstream, Since: l.since, Reason: l.reason,
		LastResponse: l.lastResponse, EnvoyConnected: l.envoy, Protocol: l.protocol,
	}
	for _, a := range l.types {
		t := a.TypeStatus
		t.State, t.Rejected = a.state(), a.rejectedResources()
		s.Types = append(s.Types, t)
	}
	slices.SortFunc(s.Types, func(a, b TypeStatus) int { return cmp.Compare(a.TypeURL, b.TypeURL) })
	return s
}

// shortType is the last part of a type URL.
func shortType(typeURL string) string { return typeURL[strings.LastIndexAny(typeURL, "./")+1:] }

// isOrderly says whether a stream's end is nobody's fault.
func isOrderly(err error) bool {
	return errors.Is(err, io.EOF) || status.Code(err) == codes.Canceled || status.Code(err) == codes.OK
}
