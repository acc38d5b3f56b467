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

// uplink keeps one connection to a control plane ready for the next stream of Envoy. It connects before anybody asks,
// so that neither Envoy's start nor its return after an outage waits for a handshake.
type uplink struct {
	config Config
	book   *ledger
	// ready hands over the connection; whoever takes it gives it back through lease.release.
	ready chan *lease
	// down says that the newest attempt to connect failed.
	down atomic.Bool
	// several says that there was more than one target when they were looked for last.
	several atomic.Bool
	// lost is the target that was tried or used last without success.
	lost target
	// silence grows while nobody answers, refusals while somebody answers and refuses. silent is since when nobody does.
	silence, refusals dial.Backoff
	silent            time.Time
	// pace is how much rarer than configured a control plane is asked whether it lives, since one held that for an attack.
	pace atomic.Int64
	// pulse is that of the connection in use; nil for none.
	pulse atomic.Pointer[dial.Pulse]
	// wanted holds one when somebody needs a connection who has nothing to go on with.
	wanted chan struct{}
}

// lease is the use of a connection for one stream.
type lease struct {
	conn    *rawgrpc.Client
	address string
	done    chan outcome
}

// outcome says what became of a stream over a connection.
type outcome int

const (
	// reusable: the stream ended on Envoy's side.
	reusable outcome = iota
	// broken: the control plane answered at first.
	broken
	// refused: the control plane did not answer at all.
	refused
)

func (l *lease) release(o outcome) { l.done <- o }

func newUplink(config Config, book *ledger) *uplink {
	return &uplink{
		config:   config,
		book:     book,
		ready:    make(chan *lease),
		wanted:   make(chan struct{}, 1),
		silence:  dial.Backoff{Min: config.MinRetry, Max: config.MaxRetry},
		refusals: dial.Backoff{Min: config.MinRetry, Max: config.MaxRefused},
	}
}

// run connects, again and again, until the context ends.
func (u *uplink) run(ctx context.Context) {
	for ctx.Err() == nil {
		c, err := u.connectAny(ctx)
		u.down.Store(err != nil)
		if err != nil {
			u.rest(ctx)
			continue
		}
		u.beginAnew()
		u.serve(ctx, c)
	}
}

// rest waits before the next attempt. When nobody has answered for long, everybody waits for the same control plane, which
// is to come up under the load of those that it serves already, not under that of all attempts of a large mesh.
func (u *uplink) rest(ctx context.Context) {
	if u.silent.IsZero() {
		u.silent = time.Now()
	}
	if time.Since(u.silent) >= u.config.LongOutage {
		u.silence.Max = u.config.MaxLongRetry
	}
	timer := time.NewTimer(u.silence.Next())
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-u.wanted:
		u.beginAnew()
	case <-ctx.Done():
	}
}

// beginAnew forgets how long nobody has answered.
func (u *uplink) beginAnew() {
	u.silent = time.Time{}
	u.silence.Max = u.config.MaxRetry
	u.silence.Reset()
}

// want ends a long wait.
func (u *uplink) want() {
	select {
	case u.wanted <- struct{}{}:
	default:
	}
}

// connection is one that was found good: its server has shown its certificate, and speaks HTTP/2.
type connection struct {
	conn   *rawgrpc.Client
	target target
	pulse  *dial.Pulse
	err    error
}

// connectAny tries the targets until one answers. The next one is tried when an attempt has failed, and also when it takes
// long: an address from which nothing comes back must not keep the agent from the one that works.
func (u *uplink) connectAny(ctx context.Context) (connection, error) {
	targets, err := u.targets(ctx)
	if err != nil {
		return connection{}, err
	}
	attempts, cancel := context.WithCancel(ctx)
	results := make(chan connection, len(targets))
	running := 0
	defer func() {
		cancel()
		for ; running > 0; running-- { // what comes in after the first
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
		c, ok := next(results, len(targets) > 0, u.config.Stagger)
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
		u.lost, err = c.target, c.err
		u.book.connectFailed(c.target.String(), c.err)
		if running == 0 && len(targets) == 0 {
			return connection{}, err
		}
	}
}

// next waits for a result, if there are more targets only for so long.
func next(results <-chan connection, more bool, stagger time.Duration) (c connection, ok bool) {
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

// serve hands the connection to streams for as long as it is good.
func (u *uplink) serve(ctx context.Context, c connection) {
	conn := c.conn
	defer func() { _ = conn.Close() }()
	u.pulse.Store(c.pulse)
	defer u.pulse.Store(nil)
	for {
		l := &lease{conn: conn, address: c.target.String(), done: make(chan outcome, 1)}
		if !u.offer(ctx, l) {
			u.lost = c.target
			return
		}
		c.pulse.InUse(true)
		ended := <-l.done
		c.pulse.InUse(false)
		switch ended {
		case reusable:
			u.refusals.Reset()
			if !conn.Usable() {
				return
			}
		case broken:
			u.lost = c.target
			u.refusals.Reset()
			return
		case refused:
			u.lost = c.target
			_ = conn.Close()
			sleep(ctx, u.refusals.Next())
			return
		}
	}
}

// offer waits until somebody takes the connection, or until it breaks unused.
func (u *uplink) offer(ctx context.Context, l *lease) (taken bool) {
	u.book.reached(l.address)
	select {
	case u.ready <- l:
		return true
	case <-l.conn.Gone():
		u.book.disconnected(l.address, errors.New("the connection was closed"))
		return false
	case <-ctx.Done():
		return false
	}
}

// connect makes one attempt at one target. It does not even begin without the token: nobody would be let in.
func (u *uplink) connect(ctx context.Context, t target) connection {
	if _, err := u.config.Server.Header(); err != nil {
		return connection{target: t, err: err}
	}
	server := u.config.Server
	server.Pulse = &dial.Pulse{Interval: u.interval(), Timeout: u.config.KeepaliveTimeout, Heard: u.config.Awake}
	limit, cancel := context.WithTimeout(ctx, u.config.ConnectTimeout)
	defer cancel()
	conn, err := u.client(limit, server, t)
	if err != nil && ctx.Err() == nil && limit.Err() != nil {
		err = fmt.Errorf("no answer within %s", u.config.ConnectTimeout)
	}
	return connection{conn: conn, target: t, pulse: server.Pulse, err: err}
}

func (u *uplink) client(ctx context.Context, server Server, t target) (*rawgrpc.Client, error) {
	conn, err := server.Open(ctx, t.address, t.name)
	if err != nil {
		return nil, err
	}
	return rawgrpc.NewClient(ctx, conn, server.Authority(t.name), u.config.MaxResponse)
}

// mostPace bounds the pace: half an hour, with the usual interval.
const mostPace = 64

// interval is how long a control plane may be silent before it is asked.
func (u *uplink) interval() time.Duration {
	return u.config.KeepaliveInterval * time.Duration(max(u.pace.Load(), 1))
}

// ended looks at why a stream ended: gRPC's servers end connections on which there are more pings than they were set to
// take, which is one in five minutes if they were not set.
func (u *uplink) ended(err error) {
	if strings.Contains(err.Error(), "too_many_pings") {
		u.pace.Store(min(2*max(u.pace.Load(), 1), mostPace))
	}
}

// ask finds out whether the control plane still lives, at a moment at which the agent is awake anyway.
func (u *uplink) ask() {
	if p := u.pulse.Load(); p != nil {
		p.Ask()
	}
}

// open begins a stream on a connection.
func (u *uplink) open(ctx context.Context, l *lease, v variant) (*rawgrpc.ClientStream, error) {
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
