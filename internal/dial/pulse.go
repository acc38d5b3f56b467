package dial

import (
	"context"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/pilotfish-mesh/pilotfish/internal/wake"
)

// Pulse tells whether the server at the other end of a connection lives: whatever comes from it is a sign, and where
// nothing came for long it is asked, by a ping of HTTP/2, which its kernel cannot answer in its place. It does what gRPC's
// keep-alive does, but does not wake the process while the server's own pings come in time, and can be asked at any time.
// It is for one connection at a time.
type Pulse struct {
	// Interval is how long nothing has to have come before the server is asked, and Timeout how long its answer is waited for
	// then; without it the connection is closed.
	Interval, Timeout time.Duration
	// Heard is called when something came after a silence of at least Interval/2, if it is set. It must not block.
	Heard func()

	inUse atomic.Bool

	mu   sync.Mutex
	conn *pulsedConn
}

// InUse says whether there is a stream on the connection. A server is asked only while there is: servers take pings on
// a connection without streams for an attack.
func (p *Pulse) InUse(yes bool) { p.inUse.Store(yes) }

// patience is how long the server is waited for: many send pings of their own in the same interval.
func (p *Pulse) patience() time.Duration { return p.Interval * 11 / 10 }

// gap is the least time between two pings: servers take more of them for an attack, Istio's more than one in 15 s.
func (p *Pulse) gap() time.Duration { return p.Interval * 6 / 10 }

// Ask asks the server whether it lives, unless it was heard of or asked lately. It is for moments at which the process is
// awake anyway, or at which something is expected of the server.
func (p *Pulse) Ask() {
	p.mu.Lock()
	conn := p.conn
	p.mu.Unlock()
	if conn != nil {
		conn.ask()
	}
}

// over has the pulse of each connection of the credentials watched.
func (p *Pulse) over(inner credentials.TransportCredentials) credentials.TransportCredentials {
	return &pulsedCredentials{TransportCredentials: inner, pulse: p}
}

type pulsedCredentials struct {
	credentials.TransportCredentials
	pulse *Pulse
}

func (c *pulsedCredentials) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := c.TransportCredentials.ClientHandshake(ctx, authority, raw)
	if err != nil {
		return nil, nil, err
	}
	return c.pulse.watch(conn), info, nil
}

func (c *pulsedCredentials) Clone() credentials.TransportCredentials {
	return &pulsedCredentials{TransportCredentials: c.TransportCredentials.Clone(), pulse: c.pulse}
}

func (p *Pulse) watch(conn net.Conn) net.Conn {
	c := &pulsedConn{Conn: conn, pulse: p, heard: time.Now()}
	c.alarm = wake.NewAlarm(c.ring)
	c.alarm.Set(p.patience())
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conn = c
	return c
}

// pulsedConn is a connection whose pulse is watched.
type pulsedConn struct {
	net.Conn
	pulse *Pulse
	alarm wake.Alarm

	mu    sync.Mutex
	heard time.Time // when something came last
	asked time.Time // when it was last decided to ping
	waits bool      // for the answer
	dead  error

	writing sync.Mutex
	frames  frameEnds
	owed    bool // a ping is to be sent
}

// Read is that of net.Conn.
func (c *pulsedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 {
		c.live()
	}
	if err != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.dead != nil {
			err = c.dead
		}
	}
	return n, err
}

// live notes a sign of life. While much comes the alarm is left as it is, and set anew when it rings.
func (c *pulsedConn) live() {
	now := time.Now()
	c.mu.Lock()
	silence := now.Sub(c.heard)
	if c.waits || silence >= c.pulse.Interval/10 {
		c.alarm.Set(c.pulse.patience())
		c.waits = false
	}
	c.heard = now
	c.mu.Unlock()
	if c.pulse.Heard != nil && silence >= c.pulse.Interval/2 {
		c.pulse.Heard()
	}
}

// ring comes when nothing was heard for a time.
func (c *pulsedConn) ring() {
	c.mu.Lock()
	defer c.mu.Unlock()
	silence, waited := time.Since(c.heard), time.Since(c.asked)
	switch {
	case c.waits && waited >= c.pulse.Timeout:
		c.dead = fmt.Errorf("nothing came for %v, and no answer to a ping within %v: %w", silence.Round(time.Second/10), c.pulse.Timeout, os.ErrDeadlineExceeded)
		_ = c.Close() // Read tells
	case c.waits:
		c.alarm.Set(c.pulse.Timeout - waited)
	case silence < c.pulse.patience():
		c.alarm.Set(c.pulse.patience() - silence)
	case c.pulse.inUse.Load():
		c.ping()
	default:
		c.alarm.Set(c.pulse.patience())
	}
}

func (c *pulsedConn) ask() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if gap := c.pulse.gap(); c.pulse.inUse.Load() && !c.waits && time.Since(c.asked) >= gap && time.Since(c.heard) >= gap {
		c.ping()
	}
}

// ping sees to it that a ping is sent; the caller holds the lock. The sending waits for what is being written, the asking
// for nothing: a server that does not even read has no more time to answer than others.
func (c *pulsedConn) ping() {
	c.asked, c.waits = time.Now(), true
	c.alarm.Set(c.pulse.Timeout)
	go func() {
		c.writing.Lock()
		defer c.writing.Unlock()
		c.owed = true
		_ = c.pay() // Read tells
	}()
}

// Write is that of net.Conn.
func (c *pulsedConn) Write(b []byte) (int, error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	n, err := c.Conn.Write(b)
	c.frames.see(b[:n])
	if err != nil {
		return n, err
	}
	return n, c.pay()
}

// pingFrame is a ping with a content that gRPC does not send, whose answer it does not look at therefore.
var pingFrame = []byte{0, 0, 8, 6, 0, 0, 0, 0, 0, 'p', 'i', 'l', 'o', 't', 'f', 's', 'h'}

// pay sends the ping that is owed as soon as a frame may begin; the caller holds the lock for writing.
func (c *pulsedConn) pay() error {
	if !c.owed || !c.frames.between() {
		return nil
	}
	c.owed = false
	_, err := c.Conn.Write(pingFrame)
	return err
}

// Close is that of net.Conn.
func (c *pulsedConn) Close() error {
	c.alarm.Close()
	return c.Conn.Close()
}
