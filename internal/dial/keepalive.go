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

	"github.com/pilotfish-mesh/pilotfish/internal/timerfd"
)

// Keepalive detects that the server of a connection no longer answers. Any received data shows that the server is
// alive. After a silence it sends an HTTP/2 ping, which the server's kernel cannot answer. In contrast to gRPC's
// keepalive, it does not wake the process while the server's own pings arrive in time, and Probe can be called at any
// time. A Keepalive monitors one connection at a time.
type Keepalive struct {
	// Interval is the silence after which a ping is sent. Timeout limits the wait for its answer, after which the
	// connection is closed.
	Interval, Timeout time.Duration
	// OnActivity, if set, is called when data arrives after a silence of at least Interval/2. It must not block.
	OnActivity func()

	inUse atomic.Bool

	mu   sync.Mutex
	conn *keepaliveConn
}

// SetInUse sets whether there is a stream on the connection. Pings are sent only if there is one, because servers treat
// pings on a connection without streams as an attack.
func (k *Keepalive) SetInUse(yes bool) { k.inUse.Store(yes) }

// idleTimeout is the silence after which a ping is sent. It is longer than Interval, because many servers send their
// own pings at that interval.
func (k *Keepalive) idleTimeout() time.Duration { return k.Interval * 11 / 10 }

// minPingInterval is the minimum time between two pings. Servers treat more frequent pings as an attack; Istio's limit
// is one in 15 s.
func (k *Keepalive) minPingInterval() time.Duration { return k.Interval * 6 / 10 }

// Probe sends a ping, unless data arrived or a ping was sent recently. Call it when the process is awake anyway, or
// when an answer of the server is expected.
func (k *Keepalive) Probe() {
	k.mu.Lock()
	conn := k.conn
	k.mu.Unlock()
	if conn != nil {
		conn.probe()
	}
}

// wrapCredentials returns credentials whose connections are monitored.
func (k *Keepalive) wrapCredentials(inner credentials.TransportCredentials) credentials.TransportCredentials {
	return &keepaliveCredentials{TransportCredentials: inner, keepalive: k}
}

type keepaliveCredentials struct {
	credentials.TransportCredentials
	keepalive *Keepalive
}

func (c *keepaliveCredentials) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := c.TransportCredentials.ClientHandshake(ctx, authority, raw)
	if err != nil {
		return nil, nil, err
	}
	return c.keepalive.wrapConn(conn), info, nil
}

func (c *keepaliveCredentials) Clone() credentials.TransportCredentials {
	return &keepaliveCredentials{TransportCredentials: c.TransportCredentials.Clone(), keepalive: c.keepalive}
}

func (k *Keepalive) wrapConn(conn net.Conn) net.Conn {
	c := &keepaliveConn{Conn: conn, keepalive: k, lastReceived: time.Now()}
	c.alarm = timerfd.NewAlarm(c.onAlarm)
	c.alarm.Set(k.idleTimeout())
	k.mu.Lock()
	defer k.mu.Unlock()
	k.conn = c
	return c
}

// keepaliveConn is a monitored connection.
type keepaliveConn struct {
	net.Conn
	keepalive *Keepalive
	alarm     timerfd.Alarm

	mu           sync.Mutex
	lastReceived time.Time // when data last arrived
	lastPing     time.Time // when the last ping was queued
	pingPending  bool      // nothing arrived since the last ping was queued
	closeErr     error

	writeMu    sync.Mutex
	frames     frameTracker
	pingQueued bool // a ping is sent at the next frame boundary
}

// Read implements net.Conn.
func (c *keepaliveConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 {
		c.markAlive()
	}
	if err != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.closeErr != nil {
			err = c.closeErr
		}
	}
	return n, err
}

// markAlive records that data arrived. At a high rate it does not reset the alarm on each read; onAlarm does so when it
// fires.
func (c *keepaliveConn) markAlive() {
	now := time.Now()
	c.mu.Lock()
	silence := now.Sub(c.lastReceived)
	if c.pingPending || silence >= c.keepalive.Interval/10 {
		c.alarm.Set(c.keepalive.idleTimeout())
		c.pingPending = false
	}
	c.lastReceived = now
	c.mu.Unlock()
	if c.keepalive.OnActivity != nil && silence >= c.keepalive.Interval/2 {
		c.keepalive.OnActivity()
	}
}

// onAlarm is called after a silence. It queues a ping, or closes the connection if a ping was not answered in time.
func (c *keepaliveConn) onAlarm() {
	c.mu.Lock()
	defer c.mu.Unlock()
	silence, waited := time.Since(c.lastReceived), time.Since(c.lastPing)
	switch {
	case c.pingPending && waited >= c.keepalive.Timeout:
		c.closeErr = fmt.Errorf("no data for %v and no answer to a ping within %v: %w", silence.Round(time.Second/10), c.keepalive.Timeout, os.ErrDeadlineExceeded)
		_ = c.Close() // Read returns closeErr
	case c.pingPending:
		c.alarm.Set(c.keepalive.Timeout - waited)
	case silence < c.keepalive.idleTimeout():
		c.alarm.Set(c.keepalive.idleTimeout() - silence)
	case c.keepalive.inUse.Load():
		c.queuePing()
	default:
		c.alarm.Set(c.keepalive.idleTimeout())
	}
}

func (c *keepaliveConn) probe() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if gap := c.keepalive.minPingInterval(); c.keepalive.inUse.Load() && !c.pingPending && time.Since(c.lastPing) >= gap && time.Since(c.lastReceived) >= gap {
		c.queuePing()
	}
}

// queuePing sends a ping in another goroutine; the caller holds mu. The ping waits for a Write in progress, but its
// timeout starts now: a server that does not read has no more time to answer than any other.
func (c *keepaliveConn) queuePing() {
	c.lastPing, c.pingPending = time.Now(), true
	c.alarm.Set(c.keepalive.Timeout)
	go func() {
		c.writeMu.Lock()
		defer c.writeMu.Unlock()
		c.pingQueued = true
		_ = c.sendQueuedPing() // Read returns the error
	}()
}

// Write implements net.Conn.
func (c *keepaliveConn) Write(b []byte) (int, error) {
	c.writeMu.Lock()
	defer c.writeMu.Unlock()
	n, err := c.Conn.Write(b)
	c.frames.track(b[:n])
	if err != nil {
		return n, err
	}
	return n, c.sendQueuedPing()
}

// pingFrame is a ping with a payload that gRPC never sends, so that gRPC ignores the answer.
var pingFrame = []byte{0, 0, 8, 6, 0, 0, 0, 0, 0, 'p', 'i', 'l', 'o', 't', 'f', 's', 'h'}

// sendQueuedPing sends a queued ping if a frame can start here; the caller holds writeMu.
func (c *keepaliveConn) sendQueuedPing() error {
	if !c.pingQueued || !c.frames.isAtBoundary() {
		return nil
	}
	c.pingQueued = false
	_, err := c.Conn.Write(pingFrame)
	return err
}

// Close implements net.Conn.
func (c *keepaliveConn) Close() error {
	c.alarm.Close()
	return c.Conn.Close()
}
