package xdsproxy

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"

	"github.com/pilotfish-mesh/pilotfish/internal/dial"
)

// uplink keeps one connection to a control plane ready for the next stream of Envoy. It connects before anybody asks,
// so that neither Envoy's start nor its return after an outage waits for a handshake.
type uplink struct {
	config Config
	book   *ledger
	// ready hands over the connection; whoever takes it gives it back through lease.release.
	ready chan *lease
	// addresses are tried in turn.
	addresses []string
	next      int
	// silence grows while nobody answers, refusals while somebody answers and refuses.
	silence, refusals dial.Backoff
}

// lease is the use of a connection for one stream.
type lease struct {
	conn    *grpc.ClientConn
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
	addresses := append([]string(nil), config.Upstreams...)
	rand.Shuffle(len(addresses), func(i, j int) { addresses[i], addresses[j] = addresses[j], addresses[i] })
	return &uplink{
		config:    config,
		book:      book,
		ready:     make(chan *lease),
		addresses: addresses,
		silence:   dial.Backoff{Min: config.MinRetry, Max: config.MaxRetry},
		refusals:  dial.Backoff{Min: config.MinRetry, Max: config.MaxRefused},
	}
}

// run connects, again and again, until the context ends.
func (u *uplink) run(ctx context.Context) {
	for ctx.Err() == nil {
		conn, address, err := u.connectAny(ctx)
		if err != nil {
			sleep(ctx, u.silence.Next())
			continue
		}
		u.silence.Reset()
		u.serve(ctx, conn, address)
	}
}

// connectAny tries each address once.
func (u *uplink) connectAny(ctx context.Context) (conn *grpc.ClientConn, address string, err error) {
	for range u.addresses {
		address = u.addresses[u.next]
		if conn, err = u.connect(ctx, address); err == nil {
			return conn, address, nil
		}
		u.advance()
		if ctx.Err() != nil {
			return nil, "", err
		}
		u.book.connectFailed(address, err)
	}
	return nil, "", err
}

func (u *uplink) advance() { u.next = (u.next + 1) % len(u.addresses) }

// serve hands the connection to streams for as long as it is good.
func (u *uplink) serve(ctx context.Context, conn *grpc.ClientConn, address string) {
	defer func() { _ = conn.Close() }()
	for {
		l := &lease{conn: conn, address: address, done: make(chan outcome, 1)}
		if !u.offer(ctx, l) {
			return
		}
		switch <-l.done {
		case reusable:
			u.refusals.Reset()
			if conn.GetState() != connectivity.Ready {
				return
			}
		case broken:
			u.refusals.Reset()
			return
		case refused:
			u.advance()
			_ = conn.Close()
			sleep(ctx, u.refusals.Next())
			return
		}
	}
}

// offer waits until somebody takes the connection, or until it breaks unused.
func (u *uplink) offer(ctx context.Context, l *lease) (taken bool) {
	watchCtx, stop := context.WithCancel(ctx)
	lost := make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() {
		if l.conn.WaitForStateChange(watchCtx, connectivity.Ready) {
			close(lost)
		}
	})
	defer watch.Wait()
	defer stop()
	u.book.reached(l.address)
	select {
	case u.ready <- l:
		return true
	case <-lost:
		u.book.disconnected(l.address, errors.New("the connection was closed"))
		return false
	case <-ctx.Done():
		return false
	}
}

// connect makes one attempt at one address. It does not even begin without the token: nobody would be let in.
func (u *uplink) connect(ctx context.Context, address string) (*grpc.ClientConn, error) {
	if _, err := u.config.Server.Header(); err != nil {
		return nil, err
	}
	return u.config.Server.Connect(ctx, address, u.config.ConnectTimeout,
		grpc.WithDefaultCallOptions(
			grpc.ForceCodecV2(codec{}),
			grpc.MaxCallRecvMsgSize(math.MaxInt32),
			grpc.MaxCallSendMsgSize(math.MaxInt32)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: u.config.KeepaliveInterval, Timeout: u.config.KeepaliveTimeout}),
		grpc.WithDisableRetry())
}

// open begins a stream on a connection.
func (u *uplink) open(ctx context.Context, l *lease, v variant) (grpc.ClientStream, error) {
	header, err := u.config.Server.Header()
	if err != nil {
		return nil, err
	}
	desc := &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}
	return l.conn.NewStream(metadata.NewOutgoingContext(ctx, header), desc, v.method())
}

func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
