package xdsproxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	// maxKept and maxKeptBytes bound the requests that are kept to be said again to the next control plane, until one
	// has answered. Envoy begins with about one request a type.
	maxKept      = 64
	maxKeptBytes = 4 << 20
	// settled is how long a stream has to live to count as accepted when the control plane has nothing to say on it.
	settled = time.Second
)

var errDisplaced = errors.New("a newer stream took its place")

// session is one stream of Envoy.
type session struct {
	relay *Relay
	proto variant
	envoy grpc.ServerStream
	// process is the id of the Envoy that the stream belongs to, or 0.
	process int32
	ctx     context.Context // ends with the stream, or when a newer one displaces it
	cancel  context.CancelCauseFunc
	// requests come from the reader; it is closed when Envoy has nothing more to say.
	requests chan *frame
	finished atomic.Bool // Envoy has ended its side

	mu sync.Mutex
	// kept are the requests so far, while no control plane has answered; overflowed says that there were too many.
	kept       []*frame
	keptBytes  int
	answered   bool
	overflowed bool
	// listening says that Envoy has asked for listeners. Only send, of which there is one at a time, uses it.
	listening bool
}

// serve is the handler of one stream of Envoy. What the stream needs runs beside it, because only the handler's return
// frees who is stuck in sending to an Envoy that does not read.
func (r *Relay) serve(v variant, stream grpc.ServerStream) error {
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	s := &session{relay: r, proto: v, envoy: stream, process: processOf(stream.Context()), ctx: ctx, cancel: cancel, requests: make(chan *frame)}
	if err := r.await(s); err != nil {
		return status.FromContextError(err).Err()
	}
	defer r.leave(s)

	result := make(chan error, 1)
	r.streams.Go(s.read)
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
		f := new(frame)
		if err := s.envoy.RecvMsg(f); err != nil {
			s.relay.book.envoyEnded(err)
			return
		}
		select {
		case s.requests <- f:
		case <-s.ctx.Done():
			f.free()
			return
		}
	}
}

// run relays over one connection after the other until a control plane has answered and gone, or Envoy has.
func (s *session) run() error {
	defer s.forget()
	for {
		var l *lease
		select {
		case l = <-s.relay.uplink.ready:
		case <-s.ctx.Done():
			return s.ctx.Err()
		}
		err := s.over(l)
		switch {
		case s.ctx.Err() != nil:
			l.release(reusable)
			return s.ctx.Err()
		case err == nil:
			l.release(reusable)
			return nil
		}
		s.relay.book.streamEnded(l.address, err)
		if !s.isAnswered() {
			l.release(refused)
			if s.canRepeat() {
				continue
			}
		} else {
			l.release(broken)
		}
		return status.Errorf(codes.Unavailable, "control plane %s: %v", l.address, err)
	}
}

// over relays over one connection until it ends. Nil means that both sides were done.
func (s *session) over(l *lease) error {
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	upstream, err := s.relay.uplink.open(ctx, l, s.proto)
	if err != nil {
		return err
	}
	timer := time.AfterFunc(settled, func() {
		if ctx.Err() == nil {
			s.relay.book.connected(l.address)
		}
	})
	defer timer.Stop()

	var sender sync.WaitGroup
	sender.Go(func() { s.send(ctx, upstream) })
	defer sender.Wait()
	defer cancel()
	return s.receive(l, upstream)
}

// send carries Envoy's requests upstream, beginning with those that an earlier control plane left unanswered. Its
// errors show in receive.
func (s *session) send(ctx context.Context, upstream grpc.ClientStream) {
	for _, f := range s.unanswered() {
		err := upstream.SendMsg(f)
		f.free()
		if err != nil {
			return
		}
	}
	health := healthTeller{relay: s.relay, proto: s.proto, upstream: upstream}
	for {
		changed, err := health.tell(s.listening)
		if err != nil {
			return
		}
		select {
		case <-changed:
		case f, ok := <-s.requests:
			if !ok {
				s.finished.Store(true)
				_ = upstream.CloseSend()
				return
			}
			s.observe(f)
			s.keep(f)
			err := upstream.SendMsg(f)
			f.free()
			if err != nil {
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

func (s *session) observe(f *frame) {
	r, err := peekRequest(s.proto, f.data)
	if err != nil {
		s.relay.log.Warn("a request of Envoy could not be read; it is passed on as it is", "error", err)
		return
	}
	s.listening = s.listening || r.typeURL == listenerType
	if nack := s.relay.book.request(s.proto, r); nack {
		s.relay.log.Warn("Envoy rejected its configuration", "type", r.typeURL, "reason", r.reason)
	}
}

// receive carries responses to Envoy.
func (s *session) receive(l *lease, upstream grpc.ClientStream) error {
	for {
		var f frame
		err := upstream.RecvMsg(&f)
		if errors.Is(err, io.EOF) {
			if s.finished.Load() {
				return nil
			}
			return errors.New("the control plane ended the stream")
		}
		if err != nil {
			return err
		}
		s.settle(l)
		if err := s.pass(&f); err != nil {
			s.cancel(fmt.Errorf("sending to Envoy: %w", err))
			return err
		}
	}
}

func (s *session) pass(f *frame) error {
	defer f.free()
	r, err := peekResponse(s.proto, f.data)
	if err != nil {
		s.relay.log.Warn("a response of the control plane could not be read; it is passed on as it is", "error", err)
	} else {
		s.relay.book.response(r, f.data.Len())
	}
	return s.envoy.SendMsg(f)
}

// settle notes that the control plane answers.
func (s *session) settle(l *lease) {
	s.mu.Lock()
	first := !s.answered
	s.answered = true
	s.drop()
	s.mu.Unlock()
	if first {
		s.relay.book.connected(l.address)
	}
}

func (s *session) isAnswered() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.answered
}

func (s *session) canRepeat() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.answered && !s.overflowed
}

// keep remembers a request until a control plane has answered.
func (s *session) keep(f *frame) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.answered || s.overflowed {
		return
	}
	size := f.data.Len()
	if len(s.kept) == maxKept || s.keptBytes+size > maxKeptBytes {
		s.overflowed = true
		s.drop()
		return
	}
	f.data.Ref()
	s.kept = append(s.kept, &frame{data: f.data})
	s.keptBytes += size
}

// unanswered gives the kept requests, each with a reference of the caller's own.
func (s *session) unanswered() []*frame {
	s.mu.Lock()
	defer s.mu.Unlock()
	frames := make([]*frame, len(s.kept))
	for i, f := range s.kept {
		f.data.Ref()
		frames[i] = &frame{data: f.data}
	}
	return frames
}

// drop frees what was kept; the caller holds the lock.
func (s *session) drop() {
	for _, f := range s.kept {
		f.free()
	}
	s.kept, s.keptBytes = nil, 0
}

// forget frees everything at the end.
func (s *session) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.overflowed = true
	s.drop()
}
