package xdsproxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pilotfish-mesh/pilotfish/internal/backoff"
	"github.com/pilotfish-mesh/pilotfish/internal/redact"
	"github.com/pilotfish-mesh/pilotfish/xdsproxy/lastgood"
	"github.com/pilotfish-mesh/pilotfish/xdsproxy/wire"
)

const (
	// acceptedAfter is the lifetime after which an upstream stream without a response counts as accepted.
	acceptedAfter = time.Second
	// stableAfter is the lifetime of an answered stream after which its end does not increase the backoff.
	stableAfter = 10 * time.Second
	// maxQueuedRequests limits the received requests that wait to be processed.
	maxQueuedRequests = 16
)

var errDisplaced = errors.New("a newer stream replaced it")

// session is one stream of Envoy. It outlives the upstream streams that serve it one after the other.
type session struct {
	relay *Relay
	proto wire.Variant
	// downstream is Envoy's stream.
	downstream grpc.ServerStream
	// process is the PID of the stream's client, or 0 if it is unknown.
	process int32
	// client is set if the stream is that of an application, not of Envoy.
	client bool
	// tracker records the state of the stream's configuration.
	tracker *statusTracker
	// upstream provides connections to a control plane.
	upstream *upstream
	// store stores accepted resources; nil if nothing is stored.
	store  *lastgood.Store
	ctx    context.Context // ends with the stream, or when a newer stream displaces it
	cancel context.CancelCauseFunc
	// requests contains the messages of the reader. It is closed when Envoy ends its side.
	requests  chan *wire.Message
	envoyDone atomic.Bool // Envoy has ended its side
	// endBackoff grows while control planes answer and end the stream soon.
	endBackoff backoff.Backoff
	// silentUpstreams counts upstream streams that ended with errSilent; guarded by mu.
	silentUpstreams int

	mu     sync.Mutex
	state  *streamState
	record lastGoodRecord

	retries rewriteRetry

	// deliverMu is held while a response is sent to Envoy.
	deliverMu sync.Mutex
}

// serve handles one stream of Envoy. The work runs in other goroutines, because only the return of the handler unblocks
// a Send to an Envoy that does not read.
func (r *Relay) serve(v wire.Variant, stream grpc.ServerStream) error {
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	s := &session{
		relay: r, proto: v, downstream: stream, process: peerPID(stream.Context()), ctx: ctx, cancel: cancel,
		requests: make(chan *wire.Message, maxQueuedRequests), state: newStreamState(v),
		endBackoff: backoff.Backoff{Min: r.config.MinRetry, Max: r.config.MaxRefused},
	}
	r.classifyStream(s)
	s.state.storesConfig = s.store != nil && s.store.IsUsable()
	if err := r.activate(s); err != nil {
		return err
	}
	defer r.removeSession(s)
	s.upstream.wakeUp()

	result := make(chan error, 1)
	r.streams.Go(s.read)
	r.streams.Go(func() { s.runUplink(ctx) })
	r.streams.Go(func() { result <- s.run() })
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		if errors.Is(context.Cause(ctx), errDisplaced) {
			return status.Error(codes.Aborted, errDisplaced.Error())
		}
		return status.FromContextError(ctx.Err()).Err()
	}
}

// read receives requests from Envoy. At most maxQueuedRequests are in memory: a control plane that does not read blocks
// Envoy.
func (s *session) read() {
	defer close(s.requests)
	for {
		f, err := s.receive()
		if err != nil {
			s.tracker.recordEnvoyStreamEnd(err)
			return
		}
		s.tracker.metrics.observeRequest(f.Data.Len())
		select {
		case s.requests <- f:
		case <-s.ctx.Done():
			f.Free()
			return
		}
	}
}

func (s *session) receive() (*wire.Message, error) {
	f := new(wire.Message)
	if err := s.downstream.RecvMsg(f); err != nil {
		return nil, err
	}
	return f, nil
}

// run relays over one upstream stream after the other until Envoy's stream ends.
func (s *session) run() error {
	defer s.release()
	var delay <-chan time.Time
	for {
		l, err := s.waitLease(delay)
		if l == nil {
			return err
		}
		start := time.Now()
		answered, err := s.runUpstream(l)
		if answered {
			s.confirmUpToDate()
		}
		switch {
		case s.ctx.Err() != nil:
			l.release(reusable)
			return s.ctx.Err()
		case err == nil:
			l.release(reusable)
			return nil
		case errors.Is(err, errRestarted):
			s.record.isDue = true
			l.release(reusable)
			delay = nil
			continue
		}
		s.upstream.onStreamEnd(err)
		s.tracker.recordStreamEnd(l.address, err)
		s.record.isDue = true
		if !answered || errors.Is(err, errSilent) {
			l.release(refused)
			delay = nil
			continue
		}
		s.allowLastGood()
		l.release(broken)
		delay = s.nextDelay(time.Since(start))
	}
}

// allowLastGood allows the last good configuration to be served again, because a control plane failed after it started
// to answer.
func (s *session) allowLastGood() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.record.isLookedUp = false
}

// nextDelay returns a timer for the next upstream stream, after one that lived for the duration. It returns nil for no
// delay. The delay grows while control planes end the streams that they have started to answer.
func (s *session) nextDelay(lifetime time.Duration) <-chan time.Time {
	if lifetime >= stableAfter {
		s.endBackoff.Reset()
		return nil
	}
	return time.After(s.endBackoff.Next())
}

// waitLease waits for a connection to a control plane, and processes Envoy's requests meanwhile. It returns nil when
// Envoy's stream ends.
func (s *session) waitLease(delay <-chan time.Time) (*lease, error) {
	ready := s.upstream.ready
	if delay != nil {
		ready = nil
	}
	for {
		offer, leases := s.offerLastGood(), ready
		if s.record.loadWait != nil {
			leases = nil
		}
		select {
		case <-offer:
			s.record.isDue = true
		case <-s.record.loadWait:
			s.record.loadWait = nil
		case snapshot := <-s.record.loading:
			if err := s.serveLastGood(snapshot); err != nil {
				return nil, err
			}
		case <-delay:
			delay, ready = nil, s.upstream.ready
		case l := <-leases:
			return l, nil
		case f, ok := <-s.requests:
			if !ok {
				return nil, nil
			}
			forward := s.processRequest(f, false)
			f.Free()
			if forward != nil { // not parseable, so it cannot be sent later
				forward.Free()
			}
		case <-s.ctx.Done():
			return nil, s.ctx.Err()
		}
	}
}

// upstreamStream is one upstream stream of a session.
type upstreamStream struct {
	*session
	lease     *lease
	epoch     int
	stream    grpc.ClientStream
	ctx       context.Context
	outbox    outbox
	rewrites  rewriteQueues
	answered  atomic.Bool
	lastHeard atomic.Int64 // uptime when data last arrived
}

// runUpstream relays over one connection until its stream ends. It returns nil if both sides ended it orderly. A
// control plane without changes does not answer, so a stream that lives for acceptedAfter counts as answered.
func (s *session) runUpstream(l *lease) (answered bool, err error) {
	ctx, cancel := context.WithCancelCause(s.ctx)
	defer cancel(nil)
	stream, err := s.upstream.openStream(ctx, l, s.proto)
	if err != nil {
		return false, err
	}
	var lasted atomic.Bool
	timer := time.AfterFunc(acceptedAfter, func() {
		if ctx.Err() == nil {
			lasted.Store(true)
			s.tracker.markConnected(l.address)
		}
	})
	defer timer.Stop()

	a := &upstreamStream{session: s, lease: l, epoch: s.nextEpoch(), stream: stream, ctx: ctx, outbox: newOutbox()}
	var sender sync.WaitGroup
	sender.Go(a.send)
	defer sender.Wait()
	defer a.rewrites.wait()
	defer cancel(nil)
	defer s.monitorSilence(a, cancel)()
	err = a.receive()
	if cause := context.Cause(ctx); s.ctx.Err() == nil && (cause == errRestarted || cause == errSilent) {
		err = cause
	}
	return a.answered.Load() || lasted.Load(), err
}

// nextEpoch returns the number of the next upstream stream.
func (s *session) nextEpoch() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state.epoch++
	s.state.hideVersions = s.state.storesConfig && s.state.hadConfig && !s.state.hasListeners()
	return s.state.epoch
}

// send sends requests upstream: first Envoy's subscriptions so far, then its further requests, and the relay's own
// requests. receive reports its errors.
func (a *upstreamStream) send() {
	if !a.sendAll(a.tapAll(a.initialRequests())) {
		return
	}
	health := healthReporter{relay: a.relay, proto: a.proto, stream: a.stream}
	locals := a.relay.buildLocalRequests(a.proto, func(l LocalType) bool { return !l.Offered })
	offers := a.receiveOffers()
	for {
		listening := a.hasRequestedListeners() && !a.isSecondary() // otherwise Envoy's stream sends the agent's requests
		if listening {
			if !a.sendAll(a.tapAll(locals)) {
				return
			}
			locals = nil
		}
		changed, err := health.report(listening)
		if err != nil {
			return
		}
		select {
		case <-changed:
		case offered := <-offers:
			offers = nil
			locals = append(locals, a.relay.buildLocalRequests(a.proto, func(l LocalType) bool { return l.Offered && slices.Contains(offered, l.TypeURL) })...)
		case <-a.outbox.ready:
			if !a.sendAll(a.tapAll(a.outbox.drain())) {
				return
			}
		case f, ok := <-a.requests:
			if !a.forwardRequests(f, ok) {
				return
			}
		case <-a.ctx.Done():
			return
		}
	}
}

// forwardRequests forwards a request of Envoy and those that are queued. ok is false at the end of Envoy's side. It
// reports whether further requests can be forwarded.
func (a *upstreamStream) forwardRequests(f *wire.Message, ok bool) bool {
	for {
		if !ok {
			a.envoyDone.Store(true)
			_ = a.stream.CloseSend() // it returns no error
			return false
		}
		forward := a.processRequest(f, true)
		f.Free()
		if forward != nil && !a.sendAll([]*wire.Message{forward}) {
			return false
		}
		select {
		case f, ok = <-a.requests:
		default:
			return true
		}
	}
}

// sendAll sends and frees the messages, and reports whether all were sent.
func (a *upstreamStream) sendAll(messages []*wire.Message) bool {
	var err error
	for _, f := range messages {
		if err == nil {
			err = a.stream.SendMsg(f)
		}
		f.Free()
	}
	return err == nil
}

func (s *session) initialRequests() []*wire.Message {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state.initialRequests()
}

func (s *session) hasRequestedListeners() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state.listenersRequested
}

// processRequest records a request of Envoy and returns the message to send upstream, or nil.
func (s *session) processRequest(f *wire.Message, connected bool) *wire.Message {
	s.tap(envoySide, controlPlaneSide, f)
	s.mu.Lock()
	isServingLastGood := s.record.snapshot != nil
	forward, h, err := s.state.processRequest(f, connected && !isServingLastGood)
	if err == nil {
		s.recordRequest(h)
	}
	s.mu.Unlock()
	if err != nil {
		s.relay.log.Warn("a request of Envoy could not be parsed; it is forwarded unchanged", "error", err)
		return forward
	}
	h.Reason = redact.Text(h.Reason) // Envoy may quote the configuration
	s.tracker.recordRequest(s.proto, h.Request, h.answered.Response)
	if isServingLastGood && (h.first || h.changed) {
		s.answerFromLastGood(h)
		if connected {
			return s.requestType(h.TypeURL)
		}
	}
	return forward
}

// requestType returns the initial request of a type that Envoy received from the last good configuration.
func (s *session) requestType(typeURL string) *wire.Message {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.state.types[typeURL]; t != nil {
		return s.state.initialRequest(t, nil)
	}
	return nil
}

// receive forwards responses to Envoy, and those of local types to the agent.
func (a *upstreamStream) receive() error {
	for {
		f := new(wire.Message)
		err := a.stream.RecvMsg(f)
		if errors.Is(err, io.EOF) {
			if a.envoyDone.Load() {
				return nil
			}
			return errors.New("the control plane ended the stream")
		}
		if err != nil {
			return err
		}
		a.markHeard()
		a.relay.memory.observe(f.Data.Len())
		if err := a.dispatch(f); err != nil {
			a.cancel(fmt.Errorf("sending to Envoy: %w", err))
			return err
		}
	}
}

// markHeard records that a response arrived.
func (a *upstreamStream) markHeard() {
	a.lastHeard.Store(int64(uptime()))
	if !a.answered.Swap(true) {
		a.tracker.markConnected(a.lease.address)
	}
}

// receiveOffers returns a channel that receives the values of OfferHeader when the control plane's headers arrive.
func (a *upstreamStream) receiveOffers() <-chan []string {
	offers := make(chan []string, 1)
	a.relay.streams.Go(func() {
		if header, err := a.stream.Header(); err == nil && a.ctx.Err() == nil {
			offers <- header.Get(OfferHeader)
		}
	})
	return offers
}

// dispatch sends a response to Envoy, its rewriter or the agent, and frees it.
func (a *upstreamStream) dispatch(f *wire.Message) error {
	r, err := wire.ParseResponse(a.proto, f.Data)
	if err != nil {
		defer f.Free()
		a.relay.log.Warn("a response of the control plane could not be parsed; it is forwarded unchanged", "error", err)
		a.deliverMu.Lock()
		defer a.deliverMu.Unlock()
		return a.downstream.SendMsg(f)
	}
	if local, ok := a.relay.localTypes[r.TypeURL]; ok {
		defer f.Free()
		a.tap(controlPlaneSide, agentSide, f)
		a.outbox.put(a.applyLocal(local, r, f))
		return nil
	}
	if rewrite, ok := a.relay.config.Rewrite[r.TypeURL]; ok {
		return a.rewrites.enqueue(a, rewrite, r, f)
	}
	defer f.Free()
	return a.deliver(a.epoch, r, f, f)
}

// deliver sends a response to Envoy and records it as received (original).
func (s *session) deliver(epoch int, r wire.Response, f, original *wire.Message) error {
	s.deliverMu.Lock()
	defer s.deliverMu.Unlock()
	out := s.prepareResponse(epoch, r, f, original)
	defer out.Free()
	return s.downstream.SendMsg(out)
}

// prepareResponse records a response before it is sent to Envoy, and returns it with Envoy's nonce. The caller owns the
// returned message.
func (s *session) prepareResponse(epoch int, r wire.Response, f, original *wire.Message) (out *wire.Message) {
	s.mu.Lock()
	nonce := s.state.addPending(r, epoch, s.recordResponse(r, original))
	upToDate := s.record.upToDate
	s.mu.Unlock()
	if nonce != r.Nonce {
		out = f.WithField(wire.ResponseNonce, nonce)
		r.Nonce = nonce
	} else {
		out = f.Share()
	}
	if epoch == 0 {
		s.tracker.recordStoredResponse(r, upToDate)
	} else {
		s.tracker.recordResponse(r, out.Data.Len())
	}
	s.tap(controlPlaneSide, envoySide, out)
	return out
}

// release frees the resources of the session.
func (s *session) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state.release()
	s.record.closeSnapshot()
}
