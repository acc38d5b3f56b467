package dns

import (
	"net"
	"sync"
	"time"
)

// connLimit limits the open TCP connections of a listener. When all slots are used, a new connection replaces the one
// that has been idle the longest: clients that connect and send no query cannot exclude other clients.
type connLimit struct {
	mu    sync.Mutex
	conns map[*clientConn]struct{}
}

// clientConn is a connection that uses a slot. The limiter's mutex guards its fields.
type clientConn struct {
	*net.TCPConn
	pending   int       // queries without a response
	idleSince time.Time // of the connection's start, or its last response
}

// admit adds a connection. evicted reports that an idle connection was closed for it. When every connection has a pending
// query, admit returns nil.
func (l *connLimit) admit(conn *net.TCPConn) (c *clientConn, evicted bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.conns) >= maxConnections {
		idle := l.findIdlest()
		if idle == nil {
			return nil, false
		}
		_ = idle.Close()
		delete(l.conns, idle)
		evicted = true
	}
	c = &clientConn{TCPConn: conn, idleSince: time.Now()}
	l.conns[c] = struct{}{}
	return c, evicted
}

// findIdlest returns the connection that has had no pending query for the longest time, or nil. The caller holds the
// mutex.
func (l *connLimit) findIdlest() (longest *clientConn) {
	for c := range l.conns {
		if c.pending == 0 && (longest == nil || c.idleSince.Before(longest.idleSince)) {
			longest = c
		}
	}
	return longest
}

// begin counts a query that waits for a resolver.
func (l *connLimit) begin(c *clientConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c.pending++
}

// touch records a response that needed no resolver.
func (l *connLimit) touch(c *clientConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c.idleSince = time.Now()
}

// end counts the response to a query.
func (l *connLimit) end(c *clientConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c.pending--
	c.idleSince = time.Now()
}

// remove returns a connection's slot.
func (l *connLimit) remove(c *clientConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.conns, c)
}
