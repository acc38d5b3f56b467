package dns

import (
	"net"
	"sync"
	"time"
)

// connLimit limits the number of open TCP connections of a listener to maxConnections. At the limit, a new connection
// replaces the one that has been idle the longest. Clients that connect without sending queries therefore cannot
// exclude other clients.
type connLimit struct {
	mu    sync.Mutex
	conns map[*clientConn]struct{}
}

// clientConn is a TCP connection of a client. The mutex of connLimit guards its fields.
type clientConn struct {
	*net.TCPConn
	pending   int       // queries that wait for a resolver
	idleSince time.Time // time of the last response or, before it, of the accept
}

// admit adds a connection. At the limit it closes the longest idle connection and returns true for evicted. If all
// connections have pending queries, it returns nil, and the caller closes conn.
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

// findIdlest returns the connection that has been idle the longest, or nil if all have pending queries. The caller
// holds the mutex.
func (l *connLimit) findIdlest() (longest *clientConn) {
	for c := range l.conns {
		if c.pending == 0 && (longest == nil || c.idleSince.Before(longest.idleSince)) {
			longest = c
		}
	}
	return longest
}

// begin records that a query of the connection waits for a resolver.
func (l *connLimit) begin(c *clientConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c.pending++
}

// touch records a response that was sent without querying a resolver.
func (l *connLimit) touch(c *clientConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c.idleSince = time.Now()
}

// end records the response to a query for which begin was called.
func (l *connLimit) end(c *clientConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c.pending--
	c.idleSince = time.Now()
}

// remove removes a closed connection.
func (l *connLimit) remove(c *clientConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.conns, c)
}
