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

	"github.com/pilotfish-mesh/pilotfish/xdsproxy/wire"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	// maxTypes limits the number of tracked types. maxPending limits the tracked responses per type to which Envoy has
	// not replied.
	maxTypes   = 64
	maxPending = 32
	// maxLoggedReasons limits the number of addresses whose last logged connection error is stored.
	maxLoggedReasons = 2 * maxTargets

	clusterType  = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
	listenerType = "type.googleapis.com/envoy.config.listener.v3.Listener"
)

// statusTracker tracks the connections to Envoy and the control plane, and the state of each resource type.
type statusTracker struct {
	now     func() time.Time
	log     *slog.Logger
	metrics *metrics

	started     time.Time
	mu          sync.Mutex
	isConnected bool
	upstream    string
	since       time.Time
	reason      string
	// loggedReasons contains the connection errors that were logged since the last connection, by address.
	loggedReasons map[string]string
	lastResponse  time.Time
	// upToDate is the last time at which Envoy's configuration was known to be that of the control plane. lastGood:
	// Envoy received the last accepted configuration, and no control plane has responded since.
	upToDate time.Time
	lastGood bool
	hasEnvoy bool
	protocol string
	types    map[string]*typeTracker
	// envoys contains the states of Envoy processes, by PID. process is the PID of the active stream. Without one, it
	// is the PID of the last stream.
	envoys  map[int32]*envoyState
	process int32
	// events contains the latest events, and nacks the latest NACKs.
	events, nacks ring
}

// typeTracker tracks one resource type.
type typeTracker struct {
	TypeStatus
	// pending lists the responses to which Envoy has not replied, oldest first.
	pending []sentVersion
	// lastState is the state after Envoy's last ACK or NACK, or StateRequested before it.
	lastState string
	// isRequested: Envoy's current stream has requested the type.
	isRequested bool
	// rejected are the resources that Envoy rejects, by name.
	rejected map[string]*ResourceNack
	nackLog  nackLogLimiter
	metrics  typeMetrics
}

// sentVersion is the nonce and version of a response that was sent to Envoy.
type sentVersion struct{ nonce, version string }

func newStatusTracker(now func() time.Time, log *slog.Logger) *statusTracker {
	return &statusTracker{
		now: now, log: log, metrics: newMetrics(), started: now(), since: now(),
		types: make(map[string]*typeTracker), loggedReasons: make(map[string]string), envoys: make(map[int32]*envoyState),
		events: ring{capacity: maxEvents}, nacks: ring{capacity: maxNacks},
	}
}

// ensureType returns the tracker of a type, and creates it if necessary. Beyond maxTypes, all new types share the
// tracker "other". The caller holds mu.
func (l *statusTracker) ensureType(typeURL string) *typeTracker {
	a := l.types[typeURL]
	if a == nil && len(l.types) >= maxTypes {
		typeURL = "other"
		a = l.types[typeURL]
	}
	if a == nil {
		a = &typeTracker{TypeStatus: TypeStatus{TypeURL: typeURL}, lastState: StateRequested}
		l.types[typeURL] = a
		a.metrics = l.metrics.newTypeMetrics(typeURL)
	}
	return a
}

// markReachable records a new connection to a control plane. The control plane has not sent a response yet.
func (l *statusTracker) markReachable(address string) {
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

// markConnected records that a control plane serves Envoy's stream.
func (l *statusTracker) markConnected(address string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.upstream, l.reason = address, ""
	clear(l.loggedReasons)
	if !l.isConnected {
		l.isConnected, l.since, l.lastGood = true, l.now(), false
		l.addEvent(Event{Kind: EventConnected, Address: address})
		l.log.Info("connected to the control plane", "address", address, "protocol", l.protocol)
	}
}

func (l *statusTracker) markDisconnected(address string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	reason := errorText(err)
	if l.isConnected || reason != l.loggedReasons[address] { // do not log the same reason at each attempt
		if len(l.loggedReasons) >= maxLoggedReasons {
			clear(l.loggedReasons)
		}
		l.loggedReasons[address] = reason
		l.addEvent(Event{Kind: EventDisconnected, Address: address, Reason: reason})
		l.log.Warn("not connected to the control plane", "address", address, "reason", reason)
	}
	l.upstream, l.reason = address, reason
	if l.isConnected {
		l.isConnected, l.since = false, l.now()
		l.upToDate = l.since
	}
}

func (l *statusTracker) recordConnectFailure(address string, err error) {
	l.metrics.connectFailures.Inc()
	l.markDisconnected(address, err)
}

func (l *statusTracker) recordStreamEnd(address string, err error) {
	l.metrics.countEnd(l.metrics.upstreamEnds, err)
	l.markDisconnected(address, err)
}

func (l *statusTracker) recordEnvoyStreamEnd(err error) { l.metrics.countEnd(l.metrics.envoyEnds, err) }

// errorText returns the text of err without gRPC's prefix "rpc error:". It begins with the status code, except for
// Unavailable and Unknown.
func errorText(err error) string {
	if s, ok := status.FromError(err); ok && s.Code() != codes.OK {
		if s.Code() == codes.Unavailable || s.Code() == codes.Unknown {
			return s.Message()
		}
		return fmt.Sprintf("%s: %s", s.Code(), s.Message())
	}
	return err.Error()
}

// markEnvoyConnected records a new stream of Envoy. It resets the subscriptions and pending responses, which belong to
// the previous stream.
func (l *statusTracker) markEnvoyConnected(v wire.Variant, process int32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hasEnvoy, l.protocol = true, v.String()
	l.process = process
	l.addEvent(Event{Kind: EventEnvoy, Process: int(process)})
	_, known := l.envoys[process]
	l.ensureEnvoy(process)
	for _, a := range l.types {
		a.pending, a.isRequested, a.Subscribed, a.Wildcard = nil, false, 0, false
		if !known {
			a.lastState = StateRequested
			clear(a.rejected)
		}
	}
}

func (l *statusTracker) markEnvoyDisconnected() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hasEnvoy = false
	l.addEvent(Event{Kind: EventEnvoyGone, Process: int(l.process)})
	if l.isConnected { // the upstream stream ends because Envoy's stream ended
		l.isConnected, l.since, l.reason = false, l.now(), "Envoy has no stream"
		l.upToDate = l.since
	}
}

// recordRequest records a request and logs a NACK. about is the response that the request ACKs or NACKs.
func (l *statusTracker) recordRequest(v wire.Variant, r wire.Request, about wire.Response) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.ensureType(r.TypeURL)
	a.Requests++
	l.metrics.requests.Inc()
	if a.isChangedBy(v, &r) {
		l.addEvent(Event{Kind: EventSubscribe, TypeURL: a.TypeURL, Resources: len(r.Names) + len(r.Subscribe), Removed: len(r.Unsubscribe)})
	}
	a.subscribe(v, r)
	switch {
	case r.Rejected:
		a.reject(r, about, l.now())
		l.ensureEnvoy(l.process).reject(a)
		l.recordNack(a, r, about)
	case r.Nonce != "" && a.acknowledge(r, l.now()):
		a.acceptResources(v, about)
		l.ensureEnvoy(l.process).acknowledge(a)
		l.addEvent(Event{Kind: EventAck, TypeURL: a.TypeURL, Version: a.Version, Nonce: r.Nonce})
		a.metrics.acks.Inc()
		a.metrics.lastAccepted().Set(float64(a.LastAck.UnixMilli()) / 1000)
	}
}

// recordNack adds a NACK to the history, the metrics and the log. The caller holds mu.
func (l *statusTracker) recordNack(a *typeTracker, r wire.Request, about wire.Response) {
	e := Event{Kind: EventNack, TypeURL: a.TypeURL, Version: a.LastNack.Version, Nonce: r.Nonce, Reason: r.Reason, Resources: len(about.Resources)}
	for _, m := range findMentions(about.Resources, r.Reason) {
		if len(e.Names) < maxRejected {
			e.Names = append(e.Names, truncate(m.Name))
		}
	}
	l.addEvent(e)
	a.metrics.nacks.Inc()
	if suppressed, ok := a.nackLog.allow(r.Reason, l.now()); ok {
		attrs := []any{"type", r.TypeURL, "reason", r.Reason}
		if suppressed > 0 {
			attrs = append(attrs, "notLogged", suppressed)
		}
		l.log.Warn("Envoy rejected its configuration", attrs...)
	}
}

// isChangedBy reports whether a request changes the subscription. In SotW it compares only the number of names.
func (a *typeTracker) isChangedBy(v wire.Variant, r *wire.Request) bool {
	if v == wire.SotW {
		return !a.isRequested || len(r.Names) != a.Subscribed
	}
	return !a.isRequested || len(r.Subscribe)+len(r.Unsubscribe) > 0
}

// subscribe updates the subscription. For delta, it counts the names without a check for duplicates.
func (a *typeTracker) subscribe(v wire.Variant, r wire.Request) {
	if v == wire.SotW {
		if !r.Rejected {
			a.Subscribed = len(r.Names)
			a.Wildcard = r.HasWildcard() || (len(r.Names) == 0 && (a.TypeURL == clusterType || a.TypeURL == listenerType))
		}
		a.isRequested = true
		return
	}
	more := len(r.Subscribe)
	if r.HasWildcard() {
		more--
	}
	a.Wildcard = a.Wildcard || r.HasWildcard() || (!a.isRequested && len(r.Subscribe) == 0)
	a.isRequested = true
	a.Subscribed = max(0, a.Subscribed+more-len(r.Unsubscribe))
}

func (a *typeTracker) reject(r wire.Request, about wire.Response, now time.Time) {
	a.rejectResources(about, r.Reason, now)
	version, _ := a.removePending(r.Nonce)
	a.Nacks++
	a.lastState = StateRejected
	a.LastNack = &Nack{Time: now, Reason: r.Reason, Version: version}
}

// acknowledge records an ACK. It returns false if r contains the nonce of a response that is no longer pending. Such a
// request only changes the subscription.
func (a *typeTracker) acknowledge(r wire.Request, now time.Time) bool {
	version, ok := a.removePending(r.Nonce)
	if !ok {
		return false
	}
	a.Acks++
	a.lastState = StateAcknowledged
	a.LastAck, a.Version = now, version
	return true
}

// removePending removes the response with this nonce, and all earlier ones, from the pending responses. It returns the
// version of the response with this nonce. ok is false if there is none.
func (a *typeTracker) removePending(nonce string) (version string, ok bool) {
	for i, s := range a.pending {
		if s.nonce == nonce {
			a.pending = slices.Delete(a.pending, 0, i+1)
			return s.version, true
		}
	}
	return "", false
}

func (l *statusTracker) recordResponse(r wire.Response, size int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.ensureType(r.TypeURL)
	a.Responses++
	a.ResponseBytes += uint64(size)
	a.LastResponse, a.LastResources = l.now(), len(r.Resources)
	l.lastResponse = a.LastResponse
	l.ensureEnvoy(l.process).hasResponse = true
	if len(a.pending) == maxPending {
		a.pending = slices.Delete(a.pending, 0, 1)
	}
	a.pending = append(a.pending, sentVersion{nonce: r.Nonce, version: r.Version})
	l.addEvent(Event{
		Kind: EventResponse, TypeURL: a.TypeURL, Version: r.Version, Nonce: r.Nonce,
		Resources: len(r.Resources), Removed: len(r.Removed), Bytes: size,
	})
	l.metrics.responses.Inc()
	a.metrics.responseBytes.Add(float64(size))
}

func (a *typeTracker) state() string {
	if len(a.pending) > 0 {
		return StatePending
	}
	return a.lastState
}

func (l *statusTracker) status() Status {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := Status{
		Connected: l.isConnected, Upstream: l.upstream, Since: l.since, Reason: l.reason,
		LastResponse: l.lastResponse, EnvoyConnected: l.hasEnvoy, Protocol: l.protocol,
	}
	for _, a := range l.types {
		t := a.TypeStatus
		t.State, t.Rejected = a.state(), a.rejectedResources()
		s.Types = append(s.Types, t)
	}
	slices.SortFunc(s.Types, func(a, b TypeStatus) int { return cmp.Compare(a.TypeURL, b.TypeURL) })
	return s
}

// shortType returns the last part of a type URL.
func shortType(typeURL string) string { return typeURL[strings.LastIndexAny(typeURL, "./")+1:] }

// isOrderly reports whether err is the normal end of a stream, including cancellation.
func isOrderly(err error) bool {
	return errors.Is(err, io.EOF) || status.Code(err) == codes.Canceled || status.Code(err) == codes.OK
}
