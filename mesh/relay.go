package mesh

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

const (
	// maxRelayed bounds the connections of one relay; more wait to be accepted.
	maxRelayed = 8192
	// relayDialTimeout bounds how long the other end may take.
	relayDialTimeout = 10 * time.Second
)

// relay carries TCP connections between two networks. One that ends on one side ends on the other, in the same way as
// far as that can be told.
type relay struct {
	listener net.Listener
	dial     func(ctx context.Context, from net.Conn) (net.Conn, error)
	ctx      context.Context
	cancel   context.CancelFunc
	slots    chan struct{}
	running  sync.WaitGroup
}

// newRelay serves until it is closed.
func newRelay(l net.Listener, dial func(ctx context.Context, from net.Conn) (net.Conn, error)) *relay {
	r := &relay{listener: l, dial: dial, slots: make(chan struct{}, maxRelayed)}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	r.running.Go(r.accept)
	return r
}

// close ends all connections, and returns when nothing of the relay is left.
func (r *relay) close() error {
	r.cancel()
	err := r.listener.Close()
	r.running.Wait()
	return err
}

func (r *relay) accept() {
	for {
		select {
		case r.slots <- struct{}{}:
		case <-r.ctx.Done():
			return
		}
		conn, err := r.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // out of file descriptors, for instance: others may end meanwhile
			<-r.slots
			time.Sleep(10 * time.Millisecond)
			continue
		}
		r.running.Go(func() {
			defer func() { <-r.slots }()
			r.carry(conn)
		})
	}
}

func (r *relay) carry(from net.Conn) {
	defer from.Close()
	ctx, cancel := context.WithTimeout(r.ctx, relayDialTimeout)
	to, err := r.dial(ctx, from)
	cancel()
	if err != nil {
		reset(from)
		return
	}
	defer to.Close()
	defer context.AfterFunc(r.ctx, func() { reset(from); reset(to) })()
	var both sync.WaitGroup
	both.Go(func() { pump(to, from) })
	pump(from, to)
	both.Wait()
}

// pump copies one direction. The kernel does so without the bytes coming through here.
func pump(to, from net.Conn) {
	if _, err := io.Copy(to, from); err != nil {
		reset(to)
		reset(from)
		return
	}
	if half, ok := to.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
	}
}

// reset ends a connection as one is ended that nobody serves.
func reset(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}
