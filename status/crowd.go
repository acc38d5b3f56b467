package status

import (
	"net"
	"net/http"
	"sync"
	"time"
)

// mostConnections are open at a time. Each costs some 20 KB, and anybody in the cluster can open them.
const mostConnections = 512

// crowd bounds the connections to the server. When there is one too many, the one goes on which nothing has been asked
// for the longest: whoever only holds connections open does not keep a kubelet out.
type crowd struct {
	most int

	mu    sync.Mutex
	conns map[net.Conn]presence
}

// presence is how a connection is.
type presence struct {
	busy  bool
	since time.Time
}

// note is the server's ConnState hook.
func (c *crowd) note(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch state {
	case http.StateNew:
		if c.conns == nil {
			c.conns = make(map[net.Conn]presence)
		}
		if len(c.conns) >= c.most && !c.makeRoom() {
			_ = conn.Close()
		}
		c.conns[conn] = presence{since: time.Now()}
	case http.StateActive:
		c.conns[conn] = presence{busy: true, since: time.Now()}
	case http.StateIdle:
		c.conns[conn] = presence{since: time.Now()}
	case http.StateClosed, http.StateHijacked:
		delete(c.conns, conn)
	}
}

// makeRoom closes the connection that has been idle for the longest; the caller holds the lock. None is when all are
// being answered.
func (c *crowd) makeRoom() bool {
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
