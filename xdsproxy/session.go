package xdsproxy

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pilotfish-mesh/pilotfish/internal/dial"
	"github.com/pilotfish-mesh/pilotfish/internal/rawgrpc"
	"github.com/pilotfish-mesh/pilotfish/internal/redact"
)

const (
	// settled is how long a stream has to live to count as accepted when the control plane has nothing to say on it.
	settled = time.Second
	// steady is how long a stream that was answered has to live for its end to be no sign of trouble.
	steady = 10 * time.Second
)

var errDisplaced = errors.New("a newer stream took its place")

// session is one stream of Envoy. It outlives the streams upstream that serve it, one after the other.
type session struct {
	relay *Relay
	proto variant
	envoy *rawgrpc.ServerStream
	// process is the id of the Envoy that the stream belongs to, or 0.
	process int32
	// client is set when the stream is of no Envoy but of an application.
	client bool
	// book is where it is kept what becomes of the stream's configuration.
	book *ledger
	// uplink gives connections to a control plane.
	uplink *uplink
	// keeper keeps what Envoy accepts; nil where nothing is kept.
	keeper *keeper
	// disk is the keeper whose spare keeper may be; it is in force again when its disk goes on.
	disk   *keeper
	ctx    context.Context // ends with the stream, or when a newer one displaces it
	cancel context.CancelCauseFunc
	// requests come from the reader; it is closed when Envoy has nothing more to say.
	requests chan *frame
	finished atomic.Bool // Envoy has ended its side
	// woken holds one when there may be a last good configuration where there was none.
	woken chan struct{}
	// trouble grows while control planes answer and end the stream soon.
	trouble dial.Backoff
	// silences counts the control planes that were left because nothing came from them. The session's lock guards it.
	silences int

	mu      sync.Mutex
	state   *streamState
	keeping keeping

	again again

	// delivering is held while something is sent to Envoy.
	delivering sync.Mutex
}

// serve is the handler of one stream of Envoy. What the stream needs runs beside it, because only the handler's return
// frees who is stuck in sending to an Envoy that does not read.
func (r *Relay) serve(v variant, stream *rawgrpc.ServerStream) error {
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	s := &session{
		relay: r, proto: v, envoy: stream, process: processOf(stream.Context()), ctx: ctx, cancel: cancel,
		requests: make(chan *frame), woken: make(chan struct{}, 1), state: newStreamState(v),
		trouble: dial.Backoff{Min: r.config.MinRetry, Max: r.config.MaxRefused},
	}
	r.tellApart(s)
	s.state.keeps = s.keeper != nil
	if err := r.await(s); err != nil {
		return err
	}
	defer r.leave(s)
	s.uplink.want()

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

// read receives from Envoy, one message at a time: the next is not read before this one was taken, so that a control
// plane that does not read holds Envoy back, not memory.
func (s *session) read() {
	defer close(s.requests)
	for {
		f, err := s.receive()
		if err != nil {
			s.book.envoyEnded(err)
			return
		}
		s.book.metrics.received(f.data.Len())
		select {
		case s.requests <- f:
		case <-s.ctx.Done():
			f.free()
			return
		}
	}
}

func (s *session) receive() (*frame, error) {
	if _, err := s.envoy.Next(); err != nil {
		return nil, err
	}
	data, err := s.envoy.Rest(nil)
	return &frame{data: data}, err
}

// run relays over one stream upstream after the other until Envoy has had enough.
func (s *session) run() error {
	defer s.forget()
	var calm <-chan time.Time
	for {
		l, err := s.lease(calm)
		if l == nil {
			return err
		}
		began := time.Now()
		answered, err := s.over(l)
		if answered {
			s.keepSeen()
		}
		switch {
		case s.ctx.Err() != nil:
			l.release(reusable)
			return s.ctx.Err()
		case err == nil:
			l.release(reusable)
			return nil
		case errors.Is(err, errRenewed):
			s.keeping.due = true
			l.release(reusable)
			calm = nil
			continue
		}
		s.uplink.ended(err)
		s.book.streamEnded(l.address, err)
		s.keeping.due = true
		if !answered || errors.Is(err, errSilent) {
			l.release(refused)
			calm = nil
			continue
		}
		s.offerAgain()
		l.release(broken)
		calm = s.pause(time.Since(began))
	}
}

// offerAgain lets the last good configuration be looked for again, if Envoy has not had all yet: a control plane has begun to
// answer and given out.
func (s *session) offerAgain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keeping.offered = false
}

// pause is how long the next stream upstream is to wait for, after one that lived so long: not at all, unless control
// planes keep ending what they have begun to answer.
func (s *session) pause(lived time.Duration) <-chan time.Time {
	if lived >= steady {
		s.trouble.Reset()
		return nil
	}
	return time.After(s.trouble.Next())
}

// lease waits for a connection to a control plane, and listens to Envoy meanwhile. It gives none when Envoy is done.
func (s *session) lease(calm <-chan time.Time) (*lease, error) {
	ready := s.uplink.ready
	if calm != nil {
		ready = nil
	}
	for {
		offer, err := s.offer()
		if err != nil {
			return nil, err
		}
		select {
		case <-offer:
			s.keeping.due = true
		case <-s.woken:
		case <-calm:
			calm, ready = nil, s.uplink.ready
		case l := <-ready:
			return l, nil
		case f, ok := <-s.requests:
			if !ok {
				return nil, nil
			}
			forward := s.hear(f, false)
			f.free()
			if forward != nil { // not readable, and of no use to anybody later
				forward.free()
			}
		case <-s.ctx.Done():
			return nil, s.ctx.Err()
		}
	}
}

// ascent is a session's one stream upstream.
type ascent struct {
	*session
	lease    *lease
	epoch    int
	upstream *rawgrpc.ClientStream
	ctx      context.Context
	own      outbox
	rewrites rewrites
	answered atomic.Bool
	heard    atomic.Int64 // when something came last, as an uptime
}

// over relays over one connection until its stream ends. No error means that both sides were done. A control plane from
// which nothing differs has nothing to answer; that it took the stream has to do.
func (s *session) over(l *lease) (answered bool, err error) {
	ctx, cancel := context.WithCancelCause(s.ctx)
	defer cancel(nil)
	upstream, err := s.uplink.open(ctx, l, s.proto)
	if err != nil {
		return false, err
	}
	var lasted atomic.Bool
	timer := time.AfterFunc(settled, func() {
		if ctx.Err() == nil {
			lasted.Store(true)
			s.book.connected(l.address)
		}
	})
	defer timer.Stop()

	a := &ascent{session: s, lease: l, epoch: s.begin(), upstream: upstream, ctx: ctx, own: newOutbox()}
	var beside sync.WaitGroup
	beside.Go(a.send)
	defer beside.Wait()
	defer a.rewrites.wait()
	defer cancel(nil)
	defer s.watch(a, cancel)()
	err = a.receive()
	if cause := context.Cause(ctx); s.ctx.Err() == nil && (cause == errRenewed || cause == errSilent) {
		err = cause
	}
	return a.answered.Load() || lasted.Load(), err
}

// begin counts the streams upstream.
func (s *session) begin() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state.epoch++
	s.state.blank = s.keeping.refetches()
	return s.state.epoch
}

// send carries requests upstream: at first what Envoy has asked for so far, then what it asks for and answers, and what
// the relay has to say itself. Its errors show in receive.
func (a *ascent) send() {
	if !a.sendAll(a.tapAll(a.opening())) {
		return
	}
	health := healthTeller{relay: a.relay, proto: a.proto, upstream: a.upstream}
	locals := a.relay.localRequests(a.proto)
	for {
		listening := a.isListening() && !a.beside() // then Envoy's stream tells and asks
		if listening {
			if !a.sendAll(a.tapAll(locals)) {
				return
			}
			locals = nil
		}
		changed, err := health.tell(listening)
		if err != nil {
			return
		}
		select {
		case <-changed:
		case <-a.own.filled:
			if !a.sendAll(a.tapAll(a.own.take())) {
				return
			}
		case f, ok := <-a.requests:
			if !ok {
				a.finished.Store(true)
				a.upstream.CloseSend()
				return
			}
			forward := a.hear(f, true)
			f.free()
			if forward != nil && !a.sendAll([]*frame{forward}) {
				return
			}
			a.uplink.ask()
		case <-a.ctx.Done():
			return
		}
	}
}

// sendAll sends and frees the frames, and says whether all were sent.
func (a *ascent) sendAll(frames []*frame) bool {
	var err error
	for _, f := range frames {
		if err == nil {
			err = a.upstream.Send(f.data)
		}
		f.free()
	}
	return err == nil
}

func (s *session) opening() []*frame {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state.opening()
}

func (s *session) isListening() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state.listening
}

// hear books a request of Envoy, and gives what is to go upstream.
func (s *session) hear(f *frame, connected bool) *frame {
	s.tap(envoySide, planeSide, f)
	s.mu.Lock()
	instead := s.keeping.snapshot != nil
	forward, h, err := s.state.hear(f, connected && !instead)
	if err == nil {
		s.keepHeard(h)
	}
	s.mu.Unlock()
	if err != nil {
		s.relay.log.Warn("a request of Envoy could not be read; it is passed on as it is", "error", err)
		return forward
	}
	h.reason = redact.Text(h.reason) // Envoy may cite the configuration
	s.book.request(s.proto, h.request, h.about.response)
	if instead && (h.first || h.changed) {
		s.answerLastGood(h)
		if connected {
			return s.askAgain(h.typeURL)
		}
	}
	return forward
}

// askAgain asks the control plane for a type of which Envoy got the last good configuration.
func (s *session) askAgain(typeURL string) *frame {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.state.types[typeURL]; t != nil {
		return s.state.ask(t, nil)
	}
	return nil
}

// receive carries responses to Envoy, and to the agent what is for itself.
func (a *ascent) receive() error {
	for {
		_, err := a.upstream.Next()
		if errors.Is(err, io.EOF) {
			if a.finished.Load() {
				return nil
			}
			return errors.New("the control plane ended the stream")
		}
		if err != nil {
			return err
		}
		if err := a.carry(); err != nil {
			return err
		}
	}
}

// take sees a response to where it belongs, and frees it. Where another one is there already, Envoy gets it together with that.
func (a *ascent) take(f *frame, more bool) error {
	r, err := peekResponse(a.proto, f.data)
	if err != nil {
		defer f.free()
		a.relay.log.Warn("a response of the control plane could not be read; it is passed on as it is", "error", err)
		a.delivering.Lock()
		defer a.delivering.Unlock()
		return a.envoy.Send(f.data, false)
	}
	if local, ok := a.relay.locals[r.typeURL]; ok {
		defer f.free()
		a.tap(planeSide, agentSide, f)
		a.own.put(a.applyLocal(local, r, f))
		return a.envoy.Flush()
	}
	if rewrite, ok := a.relay.config.Rewrite[r.typeURL]; ok {
		if err := a.envoy.Flush(); err != nil {
			return err
		}
		return a.rewrites.put(a, rewrite, r, f)
	}
	defer f.free()
	return a.pass(a.epoch, r, f, f, more)
}

// deliver sends a response to Envoy, and keeps it as it came.
func (s *session) deliver(epoch int, r response, f, asItCame *frame) error {
	return s.pass(epoch, r, f, asItCame, false)
}

func (s *session) pass(epoch int, r response, f, asItCame *frame, more bool) error {
	s.delivering.Lock()
	defer s.delivering.Unlock()
	out := s.enter(epoch, r, f, asItCame)
	defer out.free()
	return s.envoy.Send(out.data, more)
}

// enter books a response that is about to go to Envoy, and gives it as Envoy is to get it; the caller has a reference.
func (s *session) enter(epoch int, r response, f, asItCame *frame) (out *frame) {
	s.mu.Lock()
	stage := s.keepResponse(epoch, r, asItCame)
	nonce := s.state.sent(r, epoch, stage)
	upToDate := s.keeping.upToDate
	s.mu.Unlock()
	if nonce != r.nonce {
		out = f.with(responseNonce, nonce)
		r.nonce = nonce
	} else {
		out = f.share()
	}
	if epoch == 0 {
		s.book.servedLastGood(r, upToDate)
	} else {
		s.book.response(r, out.data.Len())
	}
	s.tap(planeSide, envoySide, out)
	return out
}

// forget frees everything at the end.
func (s *session) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state.release()
	s.keeping.end()
}
