package xds

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

var errStopping = status.Error(codes.Unavailable, "the control plane is stopping: connect again")

// push is one or several merged changes that a client has not been told of.
type push struct {
	state         State
	version       string
	change        Change
	since, queued time.Time
}

// connection is one client's stream. Its fields below mu are written by the stream's own goroutine only, under mu, so
// that others can read them for status; that goroutine reads them freely.
type connection struct {
	server    *Server
	wire      wire
	ctx       context.Context
	id, node  string
	peer      Peer
	proxy     Proxy
	connected time.Time
	log       *slog.Logger
	requests  chan *request
	recvErr   chan error
	wake      chan struct{} // has one element when a push is pending
	calls     chan func()
	settle    *time.Timer // running while removals wait for a reconnecting client's other requests
	settling  bool
	hold      *time.Timer // running while what is noted waits for the client's answers
	rest      *time.Timer // running while the client's requests are not read
	resting   bool
	deferred  []*request  // of a client that came back, which wait for its request for clusters
	late      *time.Timer // running while there are any
	arriving  bool        // what is answered is the first request for a type
	flushing  bool        // a push was sent whose removals were not
	since     time.Time   // of the oldest change that is noted
	owed      []*Resource // clusters whose assignments are to be sent as soon as the client asks for any, whatever it says it has
	apart     apart
	arrived   map[string]bool     // route configurations that the client came with, without their virtual hosts, until it asks for these
	whole     bool                // no virtual hosts are apart, and requests for them are not answered
	waiting   map[string]*waiting // virtual hosts that requests wait for, by the name that was asked for
	nonces    uint64
	state     State
	version   string

	pendingMu sync.Mutex
	pending   *push

	mu    sync.Mutex
	subs  map[string]*subscription
	dirty map[string]Touched // what the client may lack, by type
	// taking: a push is no longer pending, or an answer no longer awaited, and what it means is not noted or sent yet.
	taking bool
}

// serve handles one stream from its first request to its end.
func (s *Server) serve(w wire) error {
	ctx, cancel := context.WithCancel(w.Context())
	defer cancel()
	c := &connection{
		server: s, wire: w, ctx: ctx, connected: time.Now(), log: s.cfg.Logger,
		requests: make(chan *request), recvErr: make(chan error, 1), wake: make(chan struct{}, 1), calls: make(chan func()),
		apart: newApart(), subs: map[string]*subscription{}, dirty: map[string]Touched{},
	}
	identity, err := s.cfg.Identify(ctx)
	if err != nil {
		return err
	}
	leave, err := s.seat()
	if err != nil {
		return err
	}
	defer leave()
	if err := s.admit(ctx); err != nil {
		return err
	}
	c.peer = Peer{Address: peerAddress(ctx), Identity: identity, Delta: w.protocol() == deltaProtocol}
	go c.receive()
	first, err := c.first()
	if err != nil {
		return ended(err)
	}
	return c.run(first)
}

// first awaits the first request. It is a function of its own because a frame that waits for several things holds what it
// got for as long as it lasts, and the first request of a client that comes back lists all that it has.
func (c *connection) first() (*request, error) {
	select {
	case <-c.server.stopping:
		return nil, errStopping
	case err := <-c.recvErr:
		return nil, err
	case r := <-c.requests:
		return r, nil
	}
}

func peerAddress(ctx context.Context) string {
	if p, ok := peer.FromContext(ctx); ok && p.Addr != nil {
		return p.Addr.String()
	}
	return ""
}

// receive hands requests to the stream's goroutine until the stream ends.
func (c *connection) receive() {
	for {
		r, err := c.wire.recv()
		if err != nil {
			c.recvErr <- err
			return
		}
		select {
		case c.requests <- r:
		case <-c.ctx.Done():
			return
		}
	}
}

func (c *connection) run(first *request) error {
	if first.node.GetId() == "" {
		return status.Error(codes.InvalidArgument, "the first request of a stream has to carry the node with its id")
	}
	if err := checkNode(first); err != nil {
		return err
	}
	c.node = first.node.GetId()
	proxy, err := c.server.cfg.Source.Connect(c.ctx, first.node, c.peer)
	if err != nil {
		c.log.Warn("stream refused", "node", c.node, "address", c.peer.Address, "identity", c.peer.Identity, "error", err)
		return err
	}
	c.proxy = proxy
	if err := c.server.add(c); err != nil {
		return err
	}
	defer c.server.remove(c)
	c.settle = time.NewTimer(time.Hour)
	defer c.settle.Stop()
	c.hold = time.NewTimer(time.Hour)
	defer c.hold.Stop()
	c.late = time.NewTimer(time.Hour)
	defer c.late.Stop()
	c.rest = time.NewTimer(time.Hour)
	defer c.rest.Stop()
	c.log.Info("client connected", "identity", c.peer.Identity, "address", c.peer.Address, "protocol", c.wire.protocol())
	err = c.handle(first)
	if err == nil {
		err = c.loop()
	}
	err = ended(err)
	c.log.Info("client gone", "after", time.Since(c.connected).Round(time.Millisecond), "error", err)
	return err
}

// ended makes nil of the ways in which a client ends a stream.
func ended(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, context.Canceled) || status.Code(err) == codes.Canceled {
		return nil
	}
	return err
}

// loop handles what comes, requests before pushes: a push on top of an unread request would be sent by old subscriptions.
func (c *connection) loop() error {
	for {
		err := c.drainRequests()
		if err == nil {
			err = c.advance() // what was drained may be the answer that what is noted waits for
		}
		if err != nil {
			return err
		}
		select {
		case <-c.ctx.Done():
			return c.ctx.Err()
		case <-c.server.stopping:
			return errStopping
		case err = <-c.recvErr:
		case r := <-c.readable():
			err = c.rested(r, c.handle)
		case <-c.rest.C:
			c.resting = false
		case f := <-c.calls:
			f()
		case <-c.settle.C:
			c.settling = false
			c.flushing = true
		case <-c.hold.C:
		case <-c.late.C:
			err = c.handleDeferred()
		case <-c.wake:
			c.takePush()
			err = c.leave()
		}
		if err != nil {
			return err
		}
	}
}

// leave ends the stream of a client that has to come anew, which keeps what it has and says so when it does.
func (c *connection) leave() error {
	if leaver, ok := c.proxy.(Leaver); ok {
		if reason := leaver.Leave(); reason != nil {
			return status.Errorf(codes.Unavailable, "%v: connect again", reason)
		}
	}
	return nil
}

func (c *connection) drainRequests() error {
	for {
		select {
		case r := <-c.readable():
			if err := c.rested(r, c.handle); err != nil {
				return err
			}
		default:
			return nil
		}
	}
}

func (c *connection) handle(r *request) error {
	if c.settling {
		c.settle.Reset(c.server.cfg.Settle)
	}
	if c.tooEarly(r) && len(c.deferred) < maxDeferred {
		c.deferred = append(c.deferred, r)
		c.late.Reset(c.server.cfg.Settle)
		return nil
	}
	if err := c.handleNow(r); err != nil || r.typeURL != ClusterType {
		return err
	}
	return c.handleDeferred()
}

func (c *connection) handleNow(r *request) error {
	defer c.take()()
	sub, known := c.subs[r.typeURL]
	c.arriving = !known || !sub.asked
	defer func() { c.arriving = false }()
	if c.wire.protocol() == sotwProtocol {
		return c.handleSotw(r)
	}
	return c.handleDelta(r)
}

// tooEarly says whether a client that came back asks for what may lead to clusters before it has asked for these: it would
// lead traffic to clusters that it does not have yet.
func (c *connection) tooEarly(r *request) bool {
	switch r.typeURL {
	case ListenerType, RouteType, VirtualHostType:
		if _, asked := c.subs[ClusterType]; asked {
			return false
		}
		_, listens := c.subs[ListenerType] // only what listeners refer to is asked for otherwise
		return r.resumes || len(c.deferred) > 0 || c.wire.protocol() == deltaProtocol && r.typeURL != ListenerType && !listens
	}
	return false
}

// take has nobody believe, until what it returns is called, that nothing waits to be sent.
func (c *connection) take() (taken func()) {
	set := func(taking bool) {
		c.mu.Lock()
		c.taking = taking
		c.mu.Unlock()
	}
	set(true)
	return func() { set(false) }
}

func (c *connection) handleDeferred() error {
	waited := c.deferred
	c.deferred = nil
	for _, r := range waited {
		if err := c.handleNow(r); err != nil {
			return err
		}
	}
	return nil
}

// enqueue merges a push into what is pending. It does not block.
func (c *connection) enqueue(p push) {
	c.pendingMu.Lock()
	defer c.pendingMu.Unlock()
	if c.pending == nil {
		c.pending = &p
	} else {
		c.pending.state, c.pending.version = p.state, p.version
		c.pending.change = merge(c.pending.change, p.change)
	}
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

func merge(a, b Change) Change {
	if a == nil || b == nil {
		return nil // nothing is known of what changed
	}
	return a.Merge(b)
}

func (c *connection) takePending() *push {
	c.pendingMu.Lock()
	defer c.pendingMu.Unlock()
	p := c.pending
	c.pending = nil
	return p
}

// do runs f in the stream's goroutine, where the client's state may be read and its Proxy be called.
func (c *connection) do(ctx context.Context, f func()) error {
	done := make(chan struct{})
	select {
	case c.calls <- func() { defer close(done); f() }:
	case <-ctx.Done():
		return fmt.Errorf("client %s is busy: %w", c.id, ctx.Err())
	case <-c.ctx.Done():
		return fmt.Errorf("client %s is gone", c.id)
	}
	<-done
	return nil
}

// add makes a connection known, so that it gets pushes from the state on that it starts with.
func (s *Server) add(c *connection) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.stopped:
		return errStopping
	case s.pushes == 0:
		return status.Error(codes.Unavailable, "the control plane has no configuration yet: connect again")
	}
	s.serial++
	c.id = fmt.Sprintf("%s-%d", c.node, s.serial)
	c.log = s.cfg.Logger.With("client", c.id)
	c.state, c.version = s.state, s.version()
	s.connections[c.id] = c
	s.metrics.clients.Set(float64(len(s.connections)))
	return nil
}

func (s *Server) remove(c *connection) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.connections, c.id)
	s.metrics.clients.Set(float64(len(s.connections)))
}
