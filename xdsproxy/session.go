package xdsproxy

import (
	"context"
	"errors"
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
	// stableAfter is the minimum lifetime of a stable upstream stream. The end of a stable stream resets the backoff.
	stableAfter = 10 * time.Second
	// maxQueuedRequests limits the number of Envoy's requests that wait to be processed.
	maxQueuedRequests = 16
)

// errDisplaced is the cause of the end of an Envoy's stream when a newer stream becomes active.
var errDisplaced = errors.New("a newer stream of Envoy replaced this one")

// session is one stream of Envoy, or of an application. One upstream stream at a time serves it, and the session
// continues when that stream ends.
type session struct {
	relay *Relay
	proto wire.Variant
	// downstream is the stream from Envoy.
	downstream grpc.ServerStream
	// process is the PID of the stream's client, or 0 if it is unknown.
	process int32
	// client reports whether the client of the stream is an application, and not Envoy.
	client bool
	// tracker records the status that the relay reports for the stream.
	tracker *statusTracker
	// upstream provides connections to a control plane.
	upstream *upstream
	// store stores accepted resources; nil if nothing is stored.
	store  *lastgood.Store
	ctx    context.Context // ends with the stream, or when a newer stream displaces it
	cancel context.CancelCauseFunc
	// requests receives the requests that readRequests has read. It is closed when Envoy closes its side of the stream.
	requests  chan *wire.Message
	envoyDone atomic.Bool // Envoy has closed its side of the stream
	// streamBackoff is the delay between upstream streams that control planes close soon after a response.
	streamBackoff backoff.Backoff
	// silentUpstreams counts upstream streams that were canceled with errSilent; guarded by mu.
	silentUpstreams int

	mu     sync.Mutex
	state  *streamState
	record lastGoodRecord

	retries rewriteRetry

	// sendMu serializes the sending of responses to Envoy.
	sendMu sync.Mutex
}

// serve handles one stream of Envoy. It must not send to Envoy itself: if Envoy does not read, a Send blocks until
// serve has returned. Other goroutines therefore send.
func (r *Relay) serve(v wire.Variant, stream grpc.ServerStream) error {
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	s := &session{
		relay: r, proto: v, downstream: stream, process: peerPID(stream.Context()), ctx: ctx, cancel: cancel,
		requests: make(chan *wire.Message, maxQueuedRequests), state: newStreamState(v),
		streamBackoff: backoff.Backoff{Min: r.config.MinRetry, Max: r.config.MaxRefused},
	}
	r.classifyStream(s)
	s.state.storesConfig = s.store != nil && s.store.IsUsable()
	if err := r.activate(s); err != nil {
		return err
	}
	defer r.removeSession(s)
	s.upstream.wakeUp()

	result := make(chan error, 1)
	r.streams.Go(s.readRequests)
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

// readRequests receives requests from Envoy until Envoy closes its side of the stream. It queues at most
// maxQueuedRequests. If a control plane does not read, gRPC's flow control therefore blocks Envoy.
func (s *session) readRequests() {
	defer close(s.requests)
	for {
		f := new(wire.Message)
		if err := s.downstream.RecvMsg(f); err != nil {
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

// run serves Envoy's stream until it ends. It uses one upstream stream after the other.
func (s *session) run() error {
	defer s.release()
	var delay <-chan time.Time
	for {
		l, err := s.waitLease(delay)
		if l == nil {
			return err
		}
		start := time.Now()
		responded, err := s.runUpstream(l)
		if responded {
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
		if !responded || errors.Is(err, errSilent) {
			l.release(refused)
			delay = nil
			continue
		}
		s.allowLastGood()
		l.release(broken)
		delay = s.nextDelay(time.Since(start))
	}
}

// allowLastGood allows the relay to serve the last accepted configuration again. It is called if a control plane has
// responded but failed afterwards.
func (s *session) allowLastGood() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.record.isLoaded = false
}

// nextDelay returns a channel that fires when the next upstream stream may start, or nil if there is no delay. lifetime
// is the lifetime of the stream that ended. The delay grows while control planes close streams soon after a response.
func (s *session) nextDelay(lifetime time.Duration) <-chan time.Time {
	if lifetime >= stableAfter {
		s.streamBackoff.Reset()
		return nil
	}
	return time.After(s.streamBackoff.Next())
}

// waitLease waits for a connection to a control plane. Meanwhile it processes Envoy's requests and serves the last
// accepted configuration if it is due. It returns nil when Envoy's stream ends.
func (s *session) waitLease(delay <-chan time.Time) (*lease, error) {
	ready := s.upstream.ready
	if delay != nil {
		ready = nil
	}
	for {
		offer, leases := s.loadIfDue(), ready
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
			if forward != nil { // drop a request that could not be recorded
				forward.Free()
			}
		case <-s.ctx.Done():
			return nil, s.ctx.Err()
		}
	}
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

// processRequest records the request f of Envoy. While the relay serves the last accepted configuration, it also
// responds to f. It returns the message to send upstream, or nil if there is nothing to send. connected reports whether
// an upstream stream is open.
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
	h.Reason = redact.Text(h.Reason) // Envoy may quote secrets from the configuration
	s.tracker.recordRequest(s.proto, h.Request, h.repliedTo.Response)
	if isServingLastGood && (h.first || h.changed) {
		s.serveFromLastGood(h)
		if connected {
			return s.requestType(h.TypeURL)
		}
	}
	return forward
}

// requestType returns the initial request for a type whose resources Envoy received from the last accepted
// configuration. It returns nil if Envoy does not request the type.
func (s *session) requestType(typeURL string) *wire.Message {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.state.types[typeURL]; t != nil {
		return s.state.initialRequest(t, nil)
	}
	return nil
}

// sendToEnvoy sends the response f to Envoy. original is the message to store if Envoy accepts the response; nil if it
// must not be stored. epoch is the number of the upstream stream. It is 0 for a stored response, and retryEpoch for a
// retried one.
func (s *session) sendToEnvoy(epoch int, r wire.Response, f, original *wire.Message) error {
	s.sendMu.Lock()
	defer s.sendMu.Unlock()
	out := s.prepareResponse(epoch, r, f, original)
	defer out.Free()
	return s.downstream.SendMsg(out)
}

// prepareResponse records a response before it is sent to Envoy, and returns it with the nonce for Envoy. The caller owns
// the returned message.
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

// release frees the session's messages and closes its stored configuration.
func (s *session) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state.release()
	s.record.closeSnapshot()
}
