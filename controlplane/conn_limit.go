package controlplane

import (
	"cmp"
	"log/slog"
	"math"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
	"github.com/pilotfish-mesh/pilotfish/internal/loglimit"
)

const (
	// minReservedFiles is the minimum number of file descriptors that are reserved for configuration files,
	// certificates and the monitoring port.
	minReservedFiles = 64
	// refusalLogInterval is the minimum time between two log lines about refused connections or unauthenticated calls.
	refusalLogInterval = time.Minute
	// newConnMemory is the estimated memory of one unauthenticated connection in bytes, including its TLS state.
	newConnMemory = 64 << 10
	// maxUnauthenticatedCalls is the number of calls after which an unauthenticated connection is closed.
	maxUnauthenticatedCalls = 10
)

// openFiles returns the maximum number of files that the process may have open.
func openFiles() int {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil || limit.Cur > math.MaxInt32 {
		return math.MaxInt32
	}
	return int(limit.Cur)
}

// reservedFiles returns how many of the file descriptors, whose number is open, are not available to connections of
// proxies.
func reservedFiles(open int) int { return max(open/8, minReservedFiles) }

// portLimit configures how a connLimiter treats the connections of one port.
type portLimit struct {
	name string
	// authTimeout is the time after which an unauthenticated connection is closed; 0 means no timeout.
	authTimeout time.Duration
	// plaintext: clients on this port are never authenticated. The first stream on a connection stops its
	// authentication timeout.
	plaintext bool
}

// connLimiter limits the number of simultaneous connections of the ports that share it.
//
// A connection uses a handshake slot until its TLS handshake is complete. It then uses an unauthenticated slot until a
// call on it is authenticated. Authentication promotes the connection: it then uses one of the remaining slots, which
// are reserved for promoted connections. If the client has a certificate of the mesh, the connection is promoted when
// the handshake is complete.
//
// If all slots of one kind are in use, a new connection replaces a connection of the source network that has the most
// connections, even if the replaced connection is active. Clients of one network therefore cannot lock out other
// networks. The replaced connection is chosen at random from the older half of the network's connections. If many
// clients of one network connect at the same time, some of them therefore succeed, and the others retry.
type connLimiter struct {
	max          int // negative: no limit
	maxPlaintext int // connections of plaintext ports that may have a stream
	refused      *prometheus.CounterVec
	expired      *prometheus.CounterVec
	log          *slog.Logger

	mu              sync.Mutex
	open            int // all connections
	plaintext       int // connections of plaintext ports that have a stream
	handshakes      connShare
	unauthenticated connShare
	logLimit        loglimit.Limiter
}

// connShare is the set of connections that use one kind of slot (handshake or unauthenticated). connLimiter.mu guards
// it.
type connShare struct {
	max       int
	maxSource int // per source network
	count     int
	bySource  map[netip.Prefix][]*trackedConn // oldest first
}

func newConnShare(slots int) connShare {
	return connShare{max: slots, maxSource: max(slots/2, 1), bySource: map[netip.Prefix][]*trackedConn{}}
}

// newConnLimiter returns a limiter for at most slots connections. An eighth of the slots are handshake slots, and an
// eighth are unauthenticated slots; there are fewer if their connections would use more than newMemory bytes. One
// source network may use half of each kind. Plaintext connections may use half of all slots.
func newConnLimiter(slots int, newMemory int64, refused, expired *prometheus.CounterVec, log *slog.Logger) *connLimiter {
	share := max(min(slots/8, int(newMemory/newConnMemory/2)), 2)
	return &connLimiter{
		max: slots, maxPlaintext: max(slots/2, 1), handshakes: newConnShare(share), unauthenticated: newConnShare(share),
		refused: refused, expired: expired, log: log,
	}
}

// wrapListener returns a listener that accepts the connections of l, and whose connections the limiter counts. The
// listener closes excess connections without a handshake.
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

// add counts the new connection c. If all slots are in use, it evicts a connection that is not promoted. It returns
// false if all connections are promoted: c must then be closed.
func (g *connLimiter) add(c *trackedConn) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.max >= 0 && g.open >= g.max {
		victim := cmp.Or(g.handshakes.pickVictim(), g.unauthenticated.pickVictim())
		if victim == nil {
			return false
		}
		g.evict(victim)
	}
	g.open++
	g.enter(&g.handshakes, c)
	if c.limit.authTimeout > 0 {
		c.timer = time.AfterFunc(c.limit.authTimeout, c.expire)
	}
	return true
}

// enter adds c to share. If share has no free slot for the network of c, enter evicts another connection. The caller
// must have locked g.mu.
func (g *connLimiter) enter(share *connShare, c *trackedConn) {
	switch own := share.bySource[c.source]; {
	case g.max < 0:
	case len(own) >= share.maxSource:
		g.evict(pickOld(own))
	case share.count >= share.max:
		g.evict(share.pickVictim())
	}
	c.share = share
	share.count++
	share.bySource[c.source] = append(share.bySource[c.source], c)
}

// pickVictim returns an old connection of the network with the most connections in the share, or nil if the share is
// empty.
func (s *connShare) pickVictim() *trackedConn {
	var largest []*trackedConn
	for _, conns := range s.bySource {
		if len(conns) > len(largest) {
			largest = conns
		}
	}
	if len(largest) == 0 {
		return nil
	}
	return pickOld(largest)
}

// pickOld returns a random connection from the older half of conns.
func pickOld(conns []*trackedConn) *trackedConn { return conns[rand.IntN((len(conns)+1)/2)] }

// evict closes c and frees its slots. The caller must have locked g.mu.
func (g *connLimiter) evict(c *trackedConn) {
	g.release(c)
	g.expired.WithLabelValues(c.limit.name).Inc()
	go func() { _ = c.Conn.Close() }() // Close may block
}

// release frees the slots of c. A second call has no effect. The caller must have locked g.mu.
func (g *connLimiter) release(c *trackedConn) {
	if c.released {
		return
	}
	c.released = true
	g.open--
	c.stopTimer()
	if c.promoted && c.limit.plaintext {
		g.plaintext--
	}
	c.leaveShare()
}

func (g *connLimiter) logRefusal(port string) {
	g.refused.WithLabelValues(port).Inc()
	unlogged, ok := g.logLimit.Allow(time.Now(), refusalLogInterval)
	if !ok {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.log.Error("refusing connections because a limit is reached: raise the limit of open files (ulimit -n) or --max-connections",
		"port", port, "connections", g.open, "maxConnections", g.max, "handshakes", g.handshakes.count, "maxHandshakes", g.handshakes.max,
		"notAuthenticated", g.unauthenticated.count, "maxNotAuthenticated", g.unauthenticated.max, "maxPerNetwork", g.handshakes.maxSource, "suppressedLines", unlogged)
}

// trackedConn is a connection that occupies a slot until it is closed. limiter.mu guards the fields after source.
type trackedConn struct {
	net.Conn
	limiter *connLimiter
	limit   portLimit
	source  netip.Prefix

	share    *connShare  // nil after promotion
	timer    *time.Timer // closes the connection if no call is authenticated in time; nil if there is no timeout
	promoted bool        // the client has an identity, or the connection is on a plaintext port and has a stream
	released bool
	calls    int // number of calls before promotion
}

// leaveShare removes the connection from its share. The caller must have locked limiter.mu.
func (c *trackedConn) leaveShare() {
	share := c.share
	if share == nil {
		return
	}
	c.share = nil
	share.count--
	conns := share.bySource[c.source]
	if n := slices.Index(conns, c); n >= 0 {
		conns = slices.Delete(conns, n, n+1)
	}
	if share.bySource[c.source] = conns; len(conns) == 0 {
		delete(share.bySource, c.source)
	}
}

// SyscallConn implements syscall.Conn. Because of it, gRPC allocates the read buffer (32 KiB) only when the connection
// is readable, as for a net.TCPConn.
func (c *trackedConn) SyscallConn() (syscall.RawConn, error) {
	if conn, ok := c.Conn.(syscall.Conn); ok {
		return conn.SyscallConn()
	}
	return nil, syscall.ENOTSUP
}

// RemoteAddr returns an address that contains the connection itself. connectionOf uses it to find the connection of a
// gRPC call.
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

// expire closes the connection, because no call on it was authenticated in time.
func (c *trackedConn) expire() {
	c.limiter.mu.Lock()
	due := c.timer != nil
	c.limiter.mu.Unlock()
	if due {
		c.limiter.expired.WithLabelValues(c.limit.name).Inc()
		_ = c.Close()
	}
}

// stopTimer stops the authentication timeout. The caller must have locked limiter.mu.
func (c *trackedConn) stopTimer() {
	if c.timer != nil {
		c.timer.Stop()
		c.timer = nil
	}
}

// finishHandshake moves the connection from its handshake slot to an unauthenticated slot. If identified is true,
// because the client certificate is valid, it promotes the connection instead. It returns false if the connection was
// evicted.
func (c *trackedConn) finishHandshake(identified bool) bool {
	g := c.limiter
	g.mu.Lock()
	defer g.mu.Unlock()
	if c.released {
		return false
	}
	c.leaveShare()
	if c.promoted = identified; !identified {
		g.enter(&g.unauthenticated, c)
	}
	return true
}

// authenticate promotes the connection, because a call on it was authenticated, and stops the authentication timeout.
// It returns false if the limit of plaintext connections is reached.
func (c *trackedConn) authenticate() bool {
	g := c.limiter
	g.mu.Lock()
	defer g.mu.Unlock()
	if c.released {
		return true
	}
	if c.limit.plaintext && !c.promoted {
		if g.max >= 0 && g.plaintext >= g.maxPlaintext {
			return false
		}
		g.plaintext++
	}
	c.stopTimer()
	c.leaveShare()
	c.promoted = true
	return true
}

// countCall counts a call before the server allocates memory for the call. If the connection has had
// maxUnauthenticatedCalls calls and none of them was authenticated, countCall closes the connection and returns false.
func (c *trackedConn) countCall() bool {
	c.limiter.mu.Lock()
	if !c.promoted {
		c.calls++
	}
	ok := c.calls <= maxUnauthenticatedCalls || c.promoted
	c.limiter.mu.Unlock()
	if !ok {
		_ = c.Close()
	}
	return ok
}

// refuseCall is called after an unauthenticated call was refused. It closes the connection if this was its last
// permitted call.
func (c *trackedConn) refuseCall() {
	c.limiter.mu.Lock()
	due := c.calls >= maxUnauthenticatedCalls && !c.promoted && !c.released
	c.limiter.mu.Unlock()
	if due {
		// The delay lets the server write the status of the call.
		time.AfterFunc(refusedCallLinger, func() { _ = c.Close() })
	}
}

// refusedCallLinger is the time between the last refusal and the close of the connection, so that the client receives
// the refusals.
const refusedCallLinger = 100 * time.Millisecond
