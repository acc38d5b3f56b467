package controlplane

import (
	"cmp"
	"log/slog"
	"math"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
	"github.com/pilotfish-mesh/pilotfish/internal/loglimit"
)

const (
	// minReservedFiles is the minimum number of file descriptors reserved for configuration files, certificates and the
	// monitoring port.
	minReservedFiles = 64
	// refusalLogInterval is the minimum time between two log lines about refused connections or unauthenticated calls.
	refusalLogInterval = time.Minute
	// minEvictionIdle is the idle time after which an unauthenticated connection may be closed for a new one. Clients
	// send the next message of a handshake sooner, so the connections of a burst do not evict each other.
	minEvictionIdle = 100 * time.Millisecond
	// maxEvictionScan limits the search for the connection that has been idle longest.
	maxEvictionScan = 64
	// newConnMemory is the estimated memory of one unauthenticated connection, with its TLS state.
	newConnMemory = 64 << 10
	// maxRefusedCalls is the number of unauthenticated calls after which a connection is closed.
	maxRefusedCalls = 10
)

// openFiles returns the process's limit of open files.
func openFiles() int {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil || limit.Cur > math.MaxInt32 {
		return math.MaxInt32
	}
	return int(limit.Cur)
}

// reservedFiles returns the number of file descriptors that are not available to proxy connections.
func reservedFiles(open int) int { return max(open/8, minReservedFiles) }

// portLimit configures the limits for the connections of one port.
type portLimit struct {
	name string
	// authTimeout is the time after which an unauthenticated connection is closed; 0 disables it.
	authTimeout time.Duration
	// plaintext: connections of the port are never authenticated. A stream stops authTimeout.
	plaintext bool
}

// connLimiter limits the number of simultaneous connections of the ports that share it.
//
// A connection is new until a call on it is authenticated. New connections may use only a part of the slots, and each
// source network only a part of those; the other slots are reserved for authenticated connections. When a limit for new
// connections is reached, an idle new connection is closed for the next one, so idle connections do not lock out other
// clients.
type connLimiter struct {
	max          int // negative: no limit
	maxNew       int // unauthenticated connections
	maxNewSource int // the same, per source network
	maxPlaintext int // connections of plaintext ports with a stream
	refused      *prometheus.CounterVec
	expired      *prometheus.CounterVec
	log          *slog.Logger

	mu        sync.Mutex
	open      int // all connections
	new       int
	plaintext int                             // of plaintext ports, with a stream
	bySource  map[netip.Prefix][]*trackedConn // new connections, oldest first
	logLimit  loglimit.Limiter
}

// newConnLimiter returns a limiter with the specified number of slots. New connections may use a quarter of them,
// limited by newMemory, and those of one source network half of that. Plaintext connections may use half of the slots.
func newConnLimiter(slots int, newMemory int64, refused, expired *prometheus.CounterVec, log *slog.Logger) *connLimiter {
	maxNew := max(min(slots/4, int(newMemory/newConnMemory)), 2)
	return &connLimiter{
		max: slots, maxNew: maxNew, maxNewSource: maxNew / 2, maxPlaintext: max(slots/2, 1),
		refused: refused, expired: expired, log: log, bySource: map[netip.Prefix][]*trackedConn{},
	}
}

// wrapListener returns a listener whose connections the limiter counts. It closes excess connections without a
// handshake.
func (g *connLimiter) wrapListener(l net.Listener, limit portLimit) net.Listener {
	return &limitedListener{Listener: l, limiter: g, limit: limit}
}

type limitedListener struct {
	net.Listener
	limiter *connLimiter
	limit   portLimit
}

func (l *limitedListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		tracked := &trackedConn{Conn: conn, limiter: l.limiter, limit: l.limit, source: xds.SourceNetwork(conn.RemoteAddr())}
		if l.limiter.add(tracked) {
			return tracked, nil
		}
		_ = conn.Close()
		l.limiter.logRefusal(l.limit.name)
	}
}

// add counts a new connection. It returns false if there is no slot.
func (g *connLimiter) add(c *trackedConn) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.max >= 0 && !g.ensureSlot(c.source) {
		return false
	}
	g.open++
	g.new++
	c.activeAt.Store(time.Now().UnixNano())
	g.bySource[c.source] = append(g.bySource[c.source], c)
	if c.limit.authTimeout > 0 {
		c.timer = time.AfterFunc(c.limit.authTimeout, c.expire)
	}
	return true
}

// ensureSlot reports whether there is a slot for a new connection from source. It may evict an older new connection;
// g.mu is held.
func (g *connLimiter) ensureSlot(source netip.Prefix) bool {
	switch {
	case len(g.bySource[source]) >= g.maxNewSource:
		return g.evictIdle(source)
	case g.new >= g.maxNew || g.open >= g.max:
		return g.evictIdle(g.maxSource())
	}
	return true
}

// maxSource returns the network with the most new connections; g.mu is held.
func (g *connLimiter) maxSource() (largest netip.Prefix) {
	for source, conns := range g.bySource {
		if len(conns) > len(g.bySource[largest]) {
			largest = source
		}
	}
	return largest
}

// evictIdle closes the longest idle of a network's oldest new connections. It reports whether it closed one; g.mu is
// held.
func (g *connLimiter) evictIdle(source netip.Prefix) bool {
	conns := g.bySource[source]
	if len(conns) == 0 {
		return false
	}
	victim := slices.MinFunc(conns[:min(len(conns), maxEvictionScan)], func(a, b *trackedConn) int {
		return cmp.Compare(a.activeAt.Load(), b.activeAt.Load())
	})
	if time.Now().UnixNano()-victim.activeAt.Load() < int64(minEvictionIdle) {
		return false
	}
	g.release(victim)
	g.expired.WithLabelValues(victim.limit.name).Inc()
	go func() { _ = victim.Conn.Close() }() // may block
	return true
}

// release frees the slot of a connection, once; g.mu is held.
func (g *connLimiter) release(c *trackedConn) {
	if c.released {
		return
	}
	c.released = true
	g.open--
	if c.promoted {
		if c.limit.plaintext {
			g.plaintext--
		}
		return
	}
	g.removeNew(c)
}

// removeNew removes a connection from the new ones; g.mu is held.
func (g *connLimiter) removeNew(c *trackedConn) {
	g.new--
	if c.timer != nil {
		c.timer.Stop()
	}
	conns := g.bySource[c.source]
	for i, other := range conns {
		if other == c {
			conns = append(conns[:i], conns[i+1:]...)
			break
		}
	}
	if g.bySource[c.source] = conns; len(conns) == 0 {
		delete(g.bySource, c.source)
	}
}

func (g *connLimiter) logRefusal(port string) {
	g.refused.WithLabelValues(port).Inc()
	unlogged, ok := g.logLimit.Allow(time.Now(), refusalLogInterval)
	if !ok {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.log.Error("connections are refused because a limit is reached: raise the limit of open files (ulimit -n) or --max-connections",
		"port", port, "connections", g.open, "maxConnections", g.max, "notAuthenticated", g.new, "maxNotAuthenticated", g.maxNew, "maxNotAuthenticatedPerNetwork", g.maxNewSource, "unlogged", unlogged)
}

// trackedConn is a connection that occupies a slot until it is closed. gate.mu guards the fields below activeAt.
type trackedConn struct {
	net.Conn
	limiter *connLimiter
	limit   portLimit
	source  netip.Prefix

	activeAt atomic.Int64 // time of the last received bytes, in nanoseconds since 1970
	timer    *time.Timer
	promoted bool // a call was authenticated or, on a plaintext port, a stream was accepted
	released bool
	refusals int
}

func (c *trackedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.activeAt.Store(time.Now().UnixNano())
	return n, err
}

// SyscallConn lets gRPC wait for readability before it allocates a read buffer of 32 KiB, as for a net.TCPConn.
func (c *trackedConn) SyscallConn() (syscall.RawConn, error) {
	if conn, ok := c.Conn.(syscall.Conn); ok {
		return conn.SyscallConn()
	}
	return nil, syscall.ENOTSUP
}

// RemoteAddr returns an address from which connectionOf finds the connection of a gRPC call.
func (c *trackedConn) RemoteAddr() net.Addr { return trackedAddr{c.Conn.RemoteAddr(), c} }

type trackedAddr struct {
	net.Addr
	conn *trackedConn
}

// Close closes the connection and frees its slot.
func (c *trackedConn) Close() error {
	c.limiter.mu.Lock()
	c.limiter.release(c)
	c.limiter.mu.Unlock()
	return c.Conn.Close()
}

// expire closes a connection that was not authenticated in time.
func (c *trackedConn) expire() {
	c.limiter.mu.Lock()
	due := !c.promoted && !c.released
	c.limiter.mu.Unlock()
	if due {
		c.limiter.expired.WithLabelValues(c.limit.name).Inc()
		_ = c.Close()
	}
}

// promote moves an authenticated connection out of the limits for new ones. It returns false if the limit for plaintext
// connections is reached.
func (c *trackedConn) promote() bool {
	g := c.limiter
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case c.promoted || c.released:
		return true
	case c.limit.plaintext && g.max >= 0 && g.plaintext >= g.maxPlaintext:
		return false
	case c.limit.plaintext:
		g.plaintext++
	}
	g.removeNew(c)
	c.promoted = true
	return true
}

// countRefusal counts an unauthenticated call, which costs the server more than the client, and closes the connection
// after maxRefusedCalls.
func (c *trackedConn) countRefusal() {
	c.limiter.mu.Lock()
	c.refusals++
	due := c.refusals >= maxRefusedCalls && !c.promoted && !c.released
	c.limiter.mu.Unlock()
	if due {
		// The status of the last call is written within this time.
		time.AfterFunc(refusedCallLinger, func() { _ = c.Close() })
	}
}

// refusedCallLinger is the time in which the last refusals reach the client before its connection is closed.
const refusedCallLinger = 100 * time.Millisecond
