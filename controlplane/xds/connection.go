package xds

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

var errStopping = status.Error(codes.Unavailable, "the control plane is stopping: connect again")

// pendingPush is a change, or several merged changes, that the server has not processed yet for a client.
type pendingPush struct {
	state             State
	version           string
	change            Change
	changedAt, queued time.Time
}

// connection is one client's stream. Only the stream's own goroutine writes the fields below mu. It locks mu to write
// them, so that other goroutines can read them for the status, and reads them without the lock.
type connection struct {
	server    *Server
	stream    stream
	ctx       context.Context
	id, node  string
	peer      Peer
	proxy     Proxy
	hooks     Hooks
	connected time.Time
	log       *slog.Logger
	requests  chan *request
	recvErr   chan error
	wake      chan struct{} // has one element when a push is pending
	calls     chan func()
	// removalTimer runs while removalsDelayed is set: removals wait until the server has responded to the other
	// requests of a reconnecting client.
	removalTimer    *time.Timer
	removalsDelayed bool
	ackTimer        *time.Timer // runs while dirty types wait for the client's ACKs
	nackTimer       *time.Timer // runs while the server does not read the client's requests
	readsPaused     bool
	deferred        []*request  // requests of a reconnected client that wait until it requests clusters
	deferredTimer   *time.Timer // runs while deferred is not empty
	firstOfType     bool        // the current request is the first one for its type
	removalsPending bool        // additions were sent, and the corresponding removals were not sent yet
	dirtySince      time.Time   // time of the oldest change in dirty
	// owedClusters contains the clusters that were sent before the client's first request for assignments. The response
	// to that request must contain their assignments, even if the client reports that it has them.
	owedClusters []*Resource
	vhds         vhdsState
	// resumedRoutes contains those route configurations that a reconnecting client reports and that have no inline
	// virtual hosts. It is nil after the client's first request for virtual hosts.
	resumedRoutes map[string]bool
	// vhdsDisabled: the server sends virtual hosts only inline, and does not answer requests for them.
	vhdsDisabled     bool
	onDemandNames    map[string]*onDemandName // names of virtual hosts for which HTTP requests wait
	quota            *quota
	chargedFootprint footprint // memory that is charged to the quota for this stream
	heldBytes        int64     // bytes that the server uses for the stream, including those that are not charged
	nodeBytes        int64     // bytes that are charged for the node, if it is large
	nonces           uint64
	state            State
	version          string

	pendingMu sync.Mutex
	pending   *pendingPush

	mu       sync.Mutex
	subs     map[string]*subscription
	degraded string               // the reason of the last report of DegradationType
	dirty    map[string]TypeScope // resources that may differ from the client's resources, by type
	// transitioning is set while a push or request is being processed, from its start until its effects are recorded in
	// dirty or sent.
	transitioning bool
}

// serve handles one stream from its first request to its end.
func (s *Server) serve(w stream) error {
	ctx, cancel := context.WithCancel(w.Context())
	defer cancel()
	c := &connection{
		server: s, stream: w, ctx: ctx, connected: time.Now(), log: s.cfg.Logger,
		requests: make(chan *request), recvErr: make(chan error, 1), wake: make(chan struct{}, 1), calls: make(chan func()),
		vhds: newVHDSState(), subs: map[string]*subscription{}, dirty: map[string]TypeScope{},
	}
	identity, err := s.cfg.Identify(ctx)
	if err != nil {
		return err
	}
	leave, err := s.countStream(identity != "")
	if err != nil {
		return err
	}
	defer leave()
	c.peer = Peer{Address: peerAddress(ctx), Identity: identity, Delta: w.protocol() == deltaProtocol}
	c.quota = s.acquireQuota(c.peer)
	defer func() { c.quota.release(c.chargedFootprint) }()
	if err := s.waitForAdmission(ctx); err != nil {
		return err
	}
	go c.receive()
	first, err := c.awaitFirstRequest()
	if err != nil {
		return ignoreClientClose(err)
	}
	// The error is ignored, because the stream itself reports it.
	_ = grpc.SendHeader(c.stream.Context(), metadata.Pairs(OfferHeader, RevocationType, OfferHeader, DegradationType))
	return c.run(first)
}

// awaitFirstRequest returns the first request, or an error if none arrives in time. It is a separate function so that
// serve's stack frame has no reference to the request. The request can then be freed. It is large if a reconnecting
// client lists all its resources.
func (c *connection) awaitFirstRequest() (*request, error) {
	timer := time.NewTimer(firstRequestTimeout)
	defer timer.Stop()
	select {
	case <-c.server.stopping:
		return nil, errStopping
	case err := <-c.recvErr:
		return nil, err
	case r := <-c.requests:
		return r, nil
	case <-c.ctx.Done():
		return nil, c.ctx.Err()
	case <-timer.C:
		return nil, status.Errorf(codes.DeadlineExceeded, "no request arrived within %s", firstRequestTimeout)
	}
}

func peerAddress(ctx context.Context) string {
	if p, ok := peer.FromContext(ctx); ok && p.Addr != nil {
		return p.Addr.String()
	}
	return ""
}

// receive reads requests and passes them to the stream's goroutine until the stream ends.
func (c *connection) receive() {
	for {
		r, err := c.stream.recv(c)
		if err != nil {
			c.fail(err)
			return
		}
		select {
		case c.requests <- r:
		case <-c.ctx.Done():
			r.releaseBudget()
			return
		}
	}
}

func (c *connection) run(first *request) error {
	if first.node.GetId() == "" {
		return status.Error(codes.InvalidArgument, "the first request of a stream must contain the node with its id")
	}
	if first.release != nil {
		defer first.release()
	}
	if err := c.checkNode(first); err != nil {
		return err
	}
	c.node = first.node.GetId()
	proxy, err := c.server.cfg.Source.Connect(c.ctx, first.node, c.peer)
	if err != nil {
		c.logRefusal(err)
		return err
	}
	c.proxy, c.hooks = proxy, proxy.Hooks()
	if err := c.server.add(c); err != nil {
		return err
	}
	defer c.server.remove(c)
	defer c.releaseDeferred()
	c.removalTimer = time.NewTimer(time.Hour)
	defer c.removalTimer.Stop()
	c.ackTimer = time.NewTimer(time.Hour)
	defer c.ackTimer.Stop()
	c.deferredTimer = time.NewTimer(time.Hour)
	defer c.deferredTimer.Stop()
	c.nackTimer = time.NewTimer(time.Hour)
	defer c.nackTimer.Stop()
	logEnd := c.logConnect()
	err = c.handle(first)
	if err == nil {
		err = c.loop()
	}
	err = ignoreClientClose(err)
	logEnd(err)
	return err
}

// clientLogInterval is the minimum time between two log lines of one kind about clients without an identity.
const clientLogInterval = time.Minute

// logConnect logs that the client connected, and returns a function that logs the end of the stream. It limits the rate
// of log lines about clients without an identity. If it skips the first line, the returned function logs nothing.
func (c *connection) logConnect() (logEnd func(error)) {
	log := c.log
	if c.peer.Identity == "" {
		unlogged, ok := c.server.connects.Allow(time.Now(), clientLogInterval)
		if !ok {
			return func(error) {}
		}
		log = log.With("suppressedLines", unlogged)
	}
	log.Info("a client connected", "identity", c.peer.Identity, "address", c.peer.Address, "protocol", c.stream.protocol())
	return func(err error) {
		c.log.Info("a client disconnected", "duration", time.Since(c.connected).Round(time.Millisecond), "error", err)
	}
}

// logRefusal logs that the stream was refused. It limits the rate of log lines about clients without an identity.
func (c *connection) logRefusal(err error) {
	log := c.log
	if c.peer.Identity == "" {
		unlogged, ok := c.server.refusals.Allow(time.Now(), clientLogInterval)
		if !ok {
			return
		}
		log = log.With("suppressedLines", unlogged)
	}
	log.Warn("refused a stream", "node", c.node, "address", c.peer.Address, "identity", c.peer.Identity, "error", err)
}

// ignoreClientClose returns nil if err only reports that the client closed the stream.
func ignoreClientClose(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, context.Canceled) || status.Code(err) == codes.Canceled {
		return nil
	}
	return err
}

// loop handles requests and pushes until the stream ends. It handles requests before pushes, because a push before an
// unread request would use outdated subscriptions.
func (c *connection) loop() error {
	for {
		err := c.drainRequests()
		if err == nil {
			err = c.advance() // a request just handled may be the ACK for which dirty types wait
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
		case r := <-c.readableRequests():
			err = c.handleWithBackoff(r, c.handle)
		case <-c.nackTimer.C:
			c.readsPaused = false
		case f := <-c.calls:
			f()
		case <-c.removalTimer.C:
			c.removalsDelayed = false
			c.removalsPending = true
		case <-c.ackTimer.C:
		case <-c.deferredTimer.C:
			err = c.handleDeferred()
		case <-c.wake:
			c.takePush()
			err = c.checkReconnect()
		}
		if err != nil {
			return err
		}
	}
}

// checkReconnect returns an error that ends the stream if the client has to reconnect. The client retains its resources
// and reports them on the next stream.
func (c *connection) checkReconnect() error {
	if c.hooks.ReconnectReason == nil {
		return nil
	}
	if reason := c.hooks.ReconnectReason(); reason != nil {
		return status.Errorf(codes.Unavailable, "%v: connect again", reason)
	}
	return nil
}

func (c *connection) drainRequests() error {
	for {
		select {
		case r := <-c.readableRequests():
			if err := c.handleWithBackoff(r, c.handle); err != nil {
				return err
			}
		default:
			return nil
		}
	}
}

func (c *connection) handle(r *request) error {
	if c.removalsDelayed {
		c.removalTimer.Reset(c.server.cfg.Settle)
	}
	if c.shouldDefer(r) && len(c.deferred) < maxDeferred {
		c.deferred = append(c.deferred, r)
		c.deferredTimer.Reset(c.server.cfg.Settle)
		return nil
	}
	if err := c.handleNow(r); err != nil || r.typeURL != ClusterType {
		return err
	}
	return c.handleDeferred()
}

func (c *connection) handleNow(r *request) error {
	defer r.releaseBudget()
	defer c.charge()
	defer c.beginTransition()()
	sub, known := c.subs[r.typeURL]
	c.firstOfType = !known || !sub.requested
	defer func() { c.firstOfType = false }()
	if c.stream.protocol() == sotwProtocol {
		return c.handleSotw(r)
	}
	return c.handleDelta(r)
}

// shouldDefer reports whether the response to r must wait until the client requests clusters: a reconnected client
// requests resources that may refer to clusters. If the server responded immediately, the client would route traffic to
// clusters that it does not have yet.
func (c *connection) shouldDefer(r *request) bool {
	switch r.typeURL {
	case ListenerType, RouteType, VirtualHostType:
		if _, requested := c.subs[ClusterType]; requested {
			return false
		}
		// Without listeners, the client requests only resources to which its static listeners refer.
		_, listens := c.subs[ListenerType]
		return r.resumes || len(c.deferred) > 0 || c.stream.protocol() == deltaProtocol && r.typeURL != ListenerType && !listens
	}
	return false
}

// beginTransition sets transitioning until end is called. The status then reports Pushing.
func (c *connection) beginTransition() (end func()) {
	set := func(taking bool) {
		c.mu.Lock()
		c.transitioning = taking
		c.mu.Unlock()
	}
	set(true)
	return func() { set(false) }
}

func (c *connection) handleDeferred() error {
	for len(c.deferred) > 0 {
		r := c.deferred[0]
		c.deferred = c.deferred[1:]
		if err := c.handleNow(r); err != nil {
			return err
		}
	}
	c.deferred = nil
	return nil
}

func (c *connection) releaseDeferred() {
	for _, r := range c.deferred {
		r.releaseBudget()
	}
}

// enqueue makes p the pending push, or merges it into the pending push. It does not block.
func (c *connection) enqueue(p pendingPush) {
	c.pendingMu.Lock()
	defer c.pendingMu.Unlock()
	if c.pending == nil {
		c.pending = &p
	} else {
		c.pending.state, c.pending.version = p.state, p.version
		c.pending.change = mergeChanges(c.pending.change, p.change)
	}
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

func mergeChanges(a, b Change) Change {
	if a == nil || b == nil {
		return nil // unknown change: everything may differ
	}
	return a.Merge(b)
}

func (c *connection) takePending() *pendingPush {
	c.pendingMu.Lock()
	defer c.pendingMu.Unlock()
	p := c.pending
	c.pending = nil
	return p
}

// runInStream runs f in the stream's goroutine and waits for it. There, f may use the client's state and its Proxy.
// runInStream returns an error if the stream or ctx ends before f starts.
func (c *connection) runInStream(ctx context.Context, f func()) error {
	done := make(chan struct{})
	select {
	case c.calls <- func() { defer close(done); f() }:
	case <-ctx.Done():
		return fmt.Errorf("client %s is busy: %w", c.id, ctx.Err())
	case <-c.ctx.Done():
		return fmt.Errorf("client %s has disconnected", c.id)
	}
	<-done
	return nil
}

// add registers c and assigns its id and the newest state. From then on, c receives all pushes.
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
