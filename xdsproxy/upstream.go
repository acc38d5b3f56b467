package xdsproxy

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"

	"github.com/pilotfish-mesh/pilotfish/internal/backoff"
	"github.com/pilotfish-mesh/pilotfish/xdsproxy/wire"
)

// upstream maintains one connection to a control plane. It connects before Envoy's stream needs the connection, so that
// Envoy does not wait for a handshake at its start or after an outage.
type upstream struct {
	config  Config
	tracker *statusTracker
	// ready passes the lease of the connection to a session. The session must return it with lease.release.
	ready chan *lease
	// isDown: in the last round of attempts, all targets failed.
	isDown atomic.Bool
	// hasAlternatives: the last lookup returned more than one target.
	hasAlternatives atomic.Bool
	// lastFailed is the target that failed last. The next round tries it at the end.
	lastFailed target
	// unreachableBackoff is the backoff while no control plane is reachable. unreachableSince is the start of that
	// state. refusedBackoff is the backoff while control planes accept connections but refuse streams.
	unreachableBackoff, refusedBackoff backoff.Backoff
	unreachableSince                   time.Time
	// pingSlowdown is the factor by which the keepalive interval is multiplied. It grows each time a server refuses the
	// rate of pings.
	pingSlowdown atomic.Int64
	// wake receives a value when a new stream needs a connection. It interrupts the backoff.
	wake chan struct{}
}

// lease permits a session to open one upstream stream on the connection.
type lease struct {
	connection
	address string
	done    chan outcome
}

// outcome is how an upstream stream ended.
type outcome int

const (
	// reusable: Envoy or the relay closed the stream. The connection can be used again.
	reusable outcome = iota
	// broken: the stream failed after the control plane had sent a response.
	broken
	// refused: the stream failed before the control plane had sent a response, or the control plane was silent.
	refused
)

func (l *lease) release(o outcome) { l.done <- o }

func newUpstream(config Config, tracker *statusTracker) *upstream {
	return &upstream{
		config:             config,
		tracker:            tracker,
		ready:              make(chan *lease),
		wake:               make(chan struct{}, 1),
		unreachableBackoff: backoff.Backoff{Min: config.MinRetry, Max: config.MaxRetry},
		refusedBackoff:     backoff.Backoff{Min: config.MinRetry, Max: config.MaxRefused},
	}
}

// run connects, and offers the connection to sessions. It repeats this until ctx ends.
func (u *upstream) run(ctx context.Context) {
	for ctx.Err() == nil {
		c, err := u.connectAny(ctx)
		u.isDown.Store(err != nil)
		if err != nil {
			u.waitRetry(ctx)
			continue
		}
		u.resetBackoff()
		u.serve(ctx, c)
	}
}

// waitRetry waits before the next attempt to connect. In a long outage the maximum backoff is larger. Otherwise the
// attempts of all proxies in a mesh would overload a control plane that starts again.
func (u *upstream) waitRetry(ctx context.Context) {
	if u.unreachableSince.IsZero() {
		u.unreachableSince = time.Now()
	}
	if time.Since(u.unreachableSince) >= u.config.LongOutage {
		u.unreachableBackoff.Max = u.config.MaxLongRetry
	}
	timer := time.NewTimer(u.unreachableBackoff.Next())
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-u.wake:
		u.resetBackoff()
	case <-ctx.Done():
	}
}

// resetBackoff sets the backoff to its minimum delay and its limit to MaxRetry. The next failure to connect then starts
// a new outage.
func (u *upstream) resetBackoff() {
	u.unreachableSince = time.Time{}
	u.unreachableBackoff.Max = u.config.MaxRetry
	u.unreachableBackoff.Reset()
}

// wakeUp interrupts waitRetry.
func (u *upstream) wakeUp() {
	select {
	case u.wake <- struct{}{}:
	default:
	}
}

// connection is the result of an attempt to connect to target. Either err is set, or conn is connected to a server that
// has a valid certificate and speaks HTTP/2.
type connection struct {
	conn   *grpc.ClientConn
	target target
	// received counts the bytes from the control plane, including those of incomplete messages.
	received *atomic.Int64
	err      error
}

// connectAny connects to the first target that accepts a connection. It tries the next target when an attempt fails or
// takes longer than Stagger, so that an unreachable address does not delay the connection.
func (u *upstream) connectAny(ctx context.Context) (connection, error) {
	targets, err := u.resolveTargets(ctx)
	if err != nil {
		return connection{}, err
	}
	attempts, cancel := context.WithCancel(ctx)
	results := make(chan connection, len(targets))
	running := 0
	defer func() {
		cancel()
		for ; running > 0; running-- { // close the connections of attempts that succeed later
			if late := <-results; late.err == nil {
				_ = late.conn.Close()
			}
		}
	}()
	for {
		if len(targets) > 0 {
			t := targets[0]
			targets = targets[1:]
			running++
			go func() { results <- u.connect(attempts, t) }()
		}
		c, ok := nextResult(results, len(targets) > 0, u.config.Stagger)
		if !ok {
			continue
		}
		running--
		if c.err == nil {
			return c, nil
		}
		if ctx.Err() != nil {
			return connection{}, ctx.Err()
		}
		u.lastFailed, err = c.target, c.err
		u.tracker.recordConnectFailure(c.target.String(), c.err)
		if running == 0 && len(targets) == 0 {
			return connection{}, err
		}
	}
}

// nextResult waits for the next result of connect. If more is true, further targets remain, and it waits at most for
// stagger. ok is false if there was no result in that time.
func nextResult(results <-chan connection, more bool, stagger time.Duration) (c connection, ok bool) {
	if !more {
		return <-results, true
	}
	timer := time.NewTimer(stagger)
	defer timer.Stop()
	select {
	case c = <-results:
		return c, true
	case <-timer.C:
		return c, false
	}
}

// serve leases the connection to one session after the other. It returns when the connection fails.
func (u *upstream) serve(ctx context.Context, c connection) {
	defer func() { _ = c.conn.Close() }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	closed := make(chan struct{})
	go func() { defer close(closed); c.waitClosed(ctx) }()
	for {
		l := &lease{connection: c, address: c.target.String(), done: make(chan outcome, 1)}
		if !u.offerLease(ctx, l, closed) {
			u.lastFailed = c.target
			return
		}
		switch <-l.done {
		case reusable:
			u.refusedBackoff.Reset()
			if !c.isOpen() {
				return
			}
		case broken:
			u.lastFailed = c.target
			u.refusedBackoff.Reset()
			return
		case refused:
			u.lastFailed = c.target
			_ = c.conn.Close()
			backoff.Sleep(ctx, u.refusedBackoff.Next())
			return
		}
	}
}

func (c connection) isOpen() bool { return c.conn.GetState() == connectivity.Ready }

// waitClosed waits until the connection is closed or ctx ends.
func (c connection) waitClosed(ctx context.Context) {
	for c.isOpen() && c.conn.WaitForStateChange(ctx, connectivity.Ready) {
	}
}

// offerLease waits until a session accepts the lease l, and returns true. If the connection is closed or ctx ends
// first, it returns false.
func (u *upstream) offerLease(ctx context.Context, l *lease, closed <-chan struct{}) bool {
	u.tracker.markReachable(l.address)
	select {
	case u.ready <- l:
		return true
	case <-closed:
		u.tracker.markDisconnected(l.address, errors.New("the connection was closed"))
		return false
	case <-ctx.Done():
		return false
	}
}

// connect makes one attempt to connect to one target. If the credentials are missing, it returns an error without an
// attempt, because the server would refuse the connection.
func (u *upstream) connect(ctx context.Context, t target) connection {
	c := connection{target: t, received: new(atomic.Int64)}
	if _, c.err = u.config.Server.Header(); c.err != nil {
		return c
	}
	server := u.config.Server
	server.Received = c.received
	c.conn, c.err = server.ConnectTo(ctx, t.name, t.address, u.config.ConnectTimeout,
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: u.interval(), Timeout: u.config.KeepaliveTimeout}),
		grpc.WithDisableRetry(),
		grpc.WithStaticStreamWindowSize(windowSize), grpc.WithStaticConnWindowSize(windowSize),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(wire.Codec{}), grpc.MaxCallRecvMsgSize(u.config.MaxResponse)),
	)
	return c
}

// maxPingSlowdown is the maximum of pingSlowdown, by which the keepalive interval grows: from the default of 30 s to 32
// minutes.
const maxPingSlowdown = 64

// interval returns the keepalive interval: how long gRPC waits for data before it sends a ping.
func (u *upstream) interval() time.Duration {
	return u.config.KeepaliveInterval * time.Duration(max(u.pingSlowdown.Load(), 1))
}

// onStreamEnd increases pingSlowdown if the server closed the stream because of too many pings. By default, gRPC
// servers accept one ping in 5 minutes.
func (u *upstream) onStreamEnd(err error) {
	if strings.Contains(err.Error(), "too_many_pings") {
		u.pingSlowdown.Store(min(2*max(u.pingSlowdown.Load(), 1), maxPingSlowdown))
	}
}

// openStream opens a stream on the leased connection. The stream ends at the latest when ctx ends.
func (u *upstream) openStream(ctx context.Context, l *lease, v wire.Variant) (grpc.ClientStream, error) {
	header, err := u.config.Server.Header()
	if err != nil {
		return nil, err
	}
	return l.conn.NewStream(metadata.NewOutgoingContext(ctx, header), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, v.Method())
}
