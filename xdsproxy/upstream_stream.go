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

	"github.com/pilotfish-mesh/pilotfish/xdsproxy/wire"
)

// acceptedAfter is the time after which an open upstream stream counts as accepted by the control plane, even without a
// response.
const acceptedAfter = time.Second

// upstreamStream is one stream to a control plane that serves a session.
type upstreamStream struct {
	*session
	lease     *lease
	epoch     int
	stream    grpc.ClientStream
	ctx       context.Context
	outbox    outbox
	rewrites  rewriteQueues
	responded atomic.Bool
	lastHeard atomic.Int64 // uptime at the last complete response, or at the start of the stream
}

// runUpstream opens a stream on the connection, and relays messages until the stream ends. err is nil if Envoy closed
// the stream. responded reports whether the control plane sent a response, or the stream was open for acceptedAfter.
// The second is sufficient because a control plane without changes sends no response.
func (s *session) runUpstream(l *lease) (responded bool, err error) {
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
	sender.Go(a.sendRequests)
	defer sender.Wait()
	defer a.rewrites.wait()
	defer cancel(nil)
	defer s.monitorSilence(a, cancel)()
	err = a.receiveResponses()
	if cause := context.Cause(ctx); s.ctx.Err() == nil && (cause == errRestarted || cause == errSilent) {
		err = cause
	}
	return a.responded.Load() || lasted.Load(), err
}

// nextEpoch increments the number of the upstream stream and returns it. It also determines whether the initial
// requests contain the versions that Envoy has.
func (s *session) nextEpoch() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state.epoch++
	s.state.hideVersions = s.state.storesConfig && s.state.hadConfig && !s.state.hasListeners()
	return s.state.epoch
}

// sendRequests sends requests upstream: first Envoy's current subscriptions, then Envoy's further requests and the
// relay's own. It does not return errors, because receiveResponses fails with the same error.
func (a *upstreamStream) sendRequests() {
	if !a.sendAll(a.tapAll(a.initialRequests())) {
		return
	}
	health := healthReporter{relay: a.relay, source: &a.relay.appHealth, typeURL: healthType, proto: a.proto, stream: a.stream}
	degradation := healthReporter{relay: a.relay, source: &a.relay.degradation, typeURL: DegradationType, proto: a.proto, stream: a.stream}
	acceptsDegradation := false
	locals := a.relay.buildLocalRequests(a.proto, func(l LocalType) bool { return !l.Offered })
	offers := a.receiveOffers()
	for {
		// The agent's own requests are sent only on Envoy's stream.
		listening := a.hasRequestedListeners() && !a.isSecondary()
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
		degraded, err := degradation.report(listening && acceptsDegradation)
		if err != nil {
			return
		}
		select {
		case <-changed:
		case <-degraded:
		case offered := <-offers:
			offers, acceptsDegradation = nil, slices.Contains(offered, DegradationType)
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

// forwardRequests forwards the request f of Envoy and all queued requests. If ok is false, Envoy has closed its side of
// the stream, and forwardRequests closes the upstream side. It reports whether further requests can follow.
func (a *upstreamStream) forwardRequests(f *wire.Message, ok bool) bool {
	for {
		if !ok {
			a.envoyDone.Store(true)
			_ = a.stream.CloseSend() // CloseSend always returns nil
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

// sendAll sends the messages upstream and frees them. It reports whether all were sent.
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

// receiveResponses receives responses from the control plane and dispatches them until the stream ends.
func (a *upstreamStream) receiveResponses() error {
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

// markHeard records that a complete response arrived.
func (a *upstreamStream) markHeard() {
	a.lastHeard.Store(int64(uptime()))
	if !a.responded.Swap(true) {
		a.tracker.markConnected(a.lease.address)
	}
}

// receiveOffers returns a channel that receives the values of OfferHeader when the response headers of the control
// plane arrive.
func (a *upstreamStream) receiveOffers() <-chan []string {
	offers := make(chan []string, 1)
	a.relay.streams.Go(func() {
		if header, err := a.stream.Header(); err == nil && a.ctx.Err() == nil {
			offers <- header.Get(OfferHeader)
		}
	})
	return offers
}

// dispatch passes a response to Envoy, to the Rewriter of its type, or to the agent, and frees it.
func (a *upstreamStream) dispatch(f *wire.Message) error {
	r, err := wire.ParseResponse(a.proto, f.Data)
	if err != nil {
		defer f.Free()
		a.relay.log.Warn("a response of the control plane could not be parsed; it is forwarded unchanged", "error", err)
		a.sendMu.Lock()
		defer a.sendMu.Unlock()
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
	return a.sendToEnvoy(a.epoch, r, f, f)
}
