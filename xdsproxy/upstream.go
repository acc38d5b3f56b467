package xdsproxy

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/dial"
	"github.com/pilotfish-mesh/pilotfish/internal/rawgrpc"
)

// uplink maintains one connection to a control plane for the next stream of Envoy. It connects in advance, so that
// Envoy does not wait for a handshake at its start or after an outage.
type uplink struct {
	config  Config
	tracker *statusTracker
	// ready hands over the connection. The receiver returns it with lease.release.
	ready chan *lease
	// isDown: the last attempt to connect failed.
	isDown atomic.Bool
	// hasAlternatives: the last lookup returned more than one target.
	hasAlternatives atomic.Bool
	// lastFailed is the target that failed last.
	lastFailed target
	// noAnswerBackoff grows while no control plane answers, since noAnswerSince. refusedBackoff grows while control
	// planes answer and refuse.
	noAnswerBackoff, refusedBackoff dial.Backoff
	noAnswerSince                   time.Time
	// pingSlowdown multiplies the keepalive interval, after a control plane has treated pings as an attack.
	pingSlowdown atomic.Int64
	// keepalive is that of the connection in use, or nil.
	keepalive atomic.Pointer[dial.Keepalive]
	// wake contains a value when a new stream needs a connection, and ends a long backoff.
	wake chan struct{}
}

// lease is the use of a connection for one stream.
type lease struct {
	conn    *rawgrpc.Client
	address string
	done    chan outcome
}

// outcome is how a stream on a connection ended.
type outcome int

const (
	// reusable: the stream ended on Envoy's side.
	reusable outcome = iota
	// broken: the control plane answered at first.
	broken
	// refused: the control plane did not answer.
	refused
)

func (l *lease) release(o outcome) { l.done <- o }

func newUplink(config Config, book *statusTracker) *uplink {
	return &uplink{
		config:          config,
		tracker:         book,
		ready:           make(chan *lease),
		wake:            make(chan struct{}, 1),
		noAnswerBackoff: dial.Backoff{Min: config.MinRetry, Max: config.MaxRetry},
		refusedBackoff:  dial.Backoff{Min: config.MinRetry, Max: config.MaxRefused},
	}
}

// run connects and serves connections until ctx ends.
func (u *uplink) run(ctx context.Context) {
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

// waitRetry waits before the next attempt. In a long outage the backoff grows further, because all proxies of a mesh
// wait for the same control plane, and their attempts would overload it when it starts.
func (u *uplink) waitRetry(ctx context.Context) {
	if u.noAnswerSince.IsZero() {
		u.noAnswerSince = time.Now()
	}
	if time.Since(u.noAnswerSince) >= u.config.LongOutage {
		u.noAnswerBackoff.Max = u.config.MaxLongRetry
	}
	timer := time.NewTimer(u.noAnswerBackoff.Next())
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-u.wake:
		u.resetBackoff()
	case <-ctx.Done():
	}
}

// resetBackoff resets the backoff and the start of the outage.
func (u *uplink) resetBackoff() {
	u.noAnswerSince = time.Time{}
	u.noAnswerBackoff.Max = u.config.MaxRetry
	u.noAnswerBackoff.Reset()
}

// wakeUp ends a wait for the next attempt.
func (u *uplink) wakeUp() {
	select {
	case u.wake <- struct{}{}:
	default:
	}
}

// connection is the result of an attempt: a connection whose server has a valid certificate and speaks HTTP/2, or an
// error.
type connection struct {
	conn      *rawgrpc.Client
	target    target
	keepalive *dial.Keepalive
	err       error
}

// connectAny tries the targets until one answers. It tries the next target when an attempt fails or takes longer than
// Stagger, so that an address without an answer does not delay the connection.
func (u *uplink) connectAny(ctx context.Context) (connection, error) {
	targets, err := u.resolveTargets(ctx)
	if err != nil {
		return connection{}, err
	}
	attempts, cancel := context.WithCancel(ctx)
	results := make(chan connection, len(targets))
	running := 0
	defer func() {
		cancel()
		for ; running > 0; running-- { // close connections that arrive after the first
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

// nextResult waits for a result. If there are more targets, it waits at most for stagger.
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

// serve leases the connection to one stream after the other until it fails.
func (u *uplink) serve(ctx context.Context, c connection) {
	conn := c.conn
	defer func() { _ = conn.Close() }()
	u.keepalive.Store(c.keepalive)
	defer u.keepalive.Store(nil)
	for {
		l := &lease{conn: conn, address: c.target.String(), done: make(chan outcome, 1)}
		if !u.offerLease(ctx, l) {
			u.lastFailed = c.target
			return
		}
		c.keepalive.SetInUse(true)
		ended := <-l.done
		c.keepalive.SetInUse(false)
		switch ended {
		case reusable:
			u.refusedBackoff.Reset()
			if !conn.CanOpenStream() {
				return
			}
		case broken:
			u.lastFailed = c.target
			u.refusedBackoff.Reset()
			return
		case refused:
			u.lastFailed = c.target
			_ = conn.Close()
			sleep(ctx, u.refusedBackoff.Next())
			return
		}
	}
}

// offerLease waits until a stream uses the connection, and reports whether one does. It returns false if the connection
// is closed first.
func (u *uplink) offerLease(ctx context.Context, l *lease) (taken bool) {
	u.tracker.markReachable(l.address)
	select {
	case u.ready <- l:
		return true
	case <-l.conn.Closed():
		u.tracker.markDisconnected(l.address, errors.New("the connection was closed"))
		return false
	case <-ctx.Done():
		return false
	}
}

// connect makes one attempt at one target. It fails without connecting if the credentials are missing, because the
// server would refuse it.
func (u *uplink) connect(ctx context.Context, t target) connection {
	if _, err := u.config.Server.Header(); err != nil {
		return connection{target: t, err: err}
	}
	server := u.config.Server
	server.Keepalive = &dial.Keepalive{Interval: u.interval(), Timeout: u.config.KeepaliveTimeout, OnActivity: u.config.OnActivity}
	limit, cancel := context.WithTimeout(ctx, u.config.ConnectTimeout)
	defer cancel()
	conn, err := u.newClient(limit, server, t)
	if err != nil && ctx.Err() == nil && limit.Err() != nil {
		err = fmt.Errorf("no answer within %s", u.config.ConnectTimeout)
	}
	return connection{conn: conn, target: t, keepalive: server.Keepalive, err: err}
}

func (u *uplink) newClient(ctx context.Context, server Server, t target) (*rawgrpc.Client, error) {
	conn, err := server.Open(ctx, t.address, t.name)
	if err != nil {
		return nil, err
	}
	return rawgrpc.NewClient(ctx, conn, server.Authority(t.name), u.config.MaxResponse)
}

// maxPingSlowdown limits pingSlowdown: half an hour at the default interval.
const maxPingSlowdown = 64

// interval returns the silence after which a ping is sent.
func (u *uplink) interval() time.Duration {
	return u.config.KeepaliveInterval * time.Duration(max(u.pingSlowdown.Load(), 1))
}

// onStreamEnd reduces the rate of pings if the server ended the stream because of them. gRPC servers accept one ping in
// 5 minutes by default.
func (u *uplink) onStreamEnd(err error) {
	if strings.Contains(err.Error(), "too_many_pings") {
		u.pingSlowdown.Store(min(2*max(u.pingSlowdown.Load(), 1), maxPingSlowdown))
	}
}

// probe sends a ping if necessary, when the agent is awake anyway.
func (u *uplink) probe() {
	if p := u.keepalive.Load(); p != nil {
		p.Probe()
	}
}

// openStream starts a stream on a connection.
func (u *uplink) openStream(ctx context.Context, l *lease, v variant) (*rawgrpc.ClientStream, error) {
	header, err := u.config.Server.Header()
	if err != nil {
		return nil, err
	}
	return l.conn.Stream(ctx, v.method(), header)
}

func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
