package status

import (
	"net"
	"net/http"
	"sync"
	"time"
)

// maxConnections limits the open connections. Each connection uses about 20 KB, and any client in the cluster can open
// connections.
const maxConnections = 512

// connLimiter limits the connections to the server. At the limit, a new connection replaces the one that has been idle
// for the longest time, so that idle clients cannot exclude the kubelet.
type connLimiter struct {
	max int

	mu    sync.Mutex
	conns map[net.Conn]connState
}

// connState records whether a connection has a request in progress, and when that last changed.
type connState struct {
	busy  bool
	since time.Time
}

// onState is the server's ConnState hook. For a new connection at the limit, it closes the longest idle connection. If
// no connection is idle, it closes the new one.
func (c *connLimiter) onState(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch state {
	case http.StateNew:
		if c.conns == nil {
			c.conns = make(map[net.Conn]connState)
		}
		if len(c.conns) >= c.max && !c.closeIdlest() {
			_ = conn.Close()
		}
		c.conns[conn] = connState{since: time.Now()}
	case http.StateActive:
		c.conns[conn] = connState{busy: true, since: time.Now()}
	case http.StateIdle:
		c.conns[conn] = connState{since: time.Now()}
	case http.StateClosed, http.StateHijacked:
		delete(c.conns, conn)
	}
}

// closeIdlest closes the connection that has been idle for the longest time. It returns false if every connection has a
// request in progress. The caller holds the lock.
func (c *connLimiter) closeIdlest() bool {
	var oldest net.Conn
	for conn, p := range c.conns {
		if !p.busy && (oldest == nil || p.since.Before(c.conns[oldest].since)) {
			oldest = conn
		}
	}
	if oldest == nil {
		return false
	}
	delete(c.conns, oldest)
	_ = oldest.Close()
	return true
}
