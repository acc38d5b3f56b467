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
	// maxForwarded is the maximum number of connections of one forwarder. Further connections wait in the listener's
	// queue.
	maxForwarded = 8192
	// forwardDialTimeout is the timeout of the connection to the destination.
	forwardDialTimeout = 10 * time.Second
)

// tcpForwarder forwards TCP connections between two networks. If one side closes a connection with FIN or RST, it
// closes the other side in the same way, as far as it can detect which of the two it was.
type tcpForwarder struct {
	listener net.Listener
	dial     func(ctx context.Context, from net.Conn) (net.Conn, error)
	ctx      context.Context
	cancel   context.CancelFunc
	slots    chan struct{}
	running  sync.WaitGroup
}

// newTCPForwarder returns a forwarder that serves the listener until the forwarder is closed.
func newTCPForwarder(l net.Listener, dial func(ctx context.Context, from net.Conn) (net.Conn, error)) *tcpForwarder {
	r := &tcpForwarder{listener: l, dial: dial, slots: make(chan struct{}, maxForwarded)}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	r.running.Go(r.accept)
	return r
}

// close ends all connections, and waits for the forwarder's goroutines.
func (r *tcpForwarder) close() error {
	r.cancel()
	err := r.listener.Close()
	r.running.Wait()
	return err
}

func (r *tcpForwarder) accept() {
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
		if err != nil { // for example out of file descriptors: retry, because other connections may end
			<-r.slots
			time.Sleep(10 * time.Millisecond)
			continue
		}
		r.running.Go(func() {
			defer func() { <-r.slots }()
			r.forward(conn)
		})
	}
}

func (r *tcpForwarder) forward(from net.Conn) {
	defer from.Close()
	ctx, cancel := context.WithTimeout(r.ctx, forwardDialTimeout)
	to, err := r.dial(ctx, from)
	cancel()
	if err != nil {
		resetConn(from)
		return
	}
	defer to.Close()
	defer context.AfterFunc(r.ctx, func() { resetConn(from); resetConn(to) })()
	var both sync.WaitGroup
	both.Go(func() { copyDirection(to, from) })
	copyDirection(from, to)
	both.Wait()
}

// copyDirection copies the data of one direction of a connection. The kernel copies the data without user space
// (splice).
func copyDirection(to, from net.Conn) {
	if _, err := io.Copy(to, from); err != nil {
		resetConn(to)
		resetConn(from)
		return
	}
	if half, ok := to.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
	}
}

// resetConn closes a connection with a TCP reset.
func resetConn(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}
