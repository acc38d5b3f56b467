package controlplane

import (
	"context"
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc/peer"
)

// testConn is a connection from an address. It records whether it was closed.
type testConn struct {
	net.Conn
	from   string
	closed chan struct{}
}

func (c *testConn) RemoteAddr() net.Addr {
	addr, _ := net.ResolveTCPAddr("tcp", c.from)
	return addr
}

func (c *testConn) Close() error {
	close(c.closed)
	return nil
}

// testListener accepts the connections that the test sends.
type testListener struct {
	net.Listener
	conns chan net.Conn
}

func (l testListener) Accept() (net.Conn, error) {
	conn, ok := <-l.conns
	if !ok {
		return nil, net.ErrClosed
	}
	return conn, nil
}

// limiterHarness is a connLimiter with a listener per kind of port.
type limiterHarness struct {
	t *testing.T
	*connLimiter
}

func newLimiterHarness(t *testing.T, slots int) limiterHarness {
	counter := func(name string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name}, []string{"port"})
	}
	return limiterHarness{t, newConnLimiter(slots, 1<<40, counter("refused"), counter("expired"), slog.New(slog.DiscardHandler))}
}

// connect opens a connection, and returns nil if the limiter refuses it.
func (r limiterHarness) connect(from string, limit portLimit) *trackedConn {
	conns := make(chan net.Conn, 1)
	conns <- &testConn{from: from, closed: make(chan struct{})}
	close(conns)
	conn, err := r.wrapListener(testListener{conns: conns}, limit).Accept()
	if err != nil {
		return nil
	}
	return conn.(*trackedConn)
}

func (c *trackedConn) isClosed() bool {
	select {
	case <-c.Conn.(*testConn).closed:
		return true
	case <-time.After(10 * time.Millisecond):
		return false
	}
}

// makeIdle sets a connection's last activity to the specified time ago.
func (c *trackedConn) makeIdle(d time.Duration) { c.activeAt.Store(time.Now().Add(-d).UnixNano()) }

var securePort, plainPort = portLimit{name: "secure"}, portLimit{name: "plain", plaintext: true}

func TestNewConnectionsMayUseAQuarterOfTheSlots(t *testing.T) {
	r := newLimiterHarness(t, 16)
	for _, c := range []struct {
		from string
		ok   bool
	}{
		{"192.0.2.1:1", true}, {"192.0.2.1:2", true}, {"192.0.2.1:3", false},
		{"[2001:db8::1]:1", true}, {"[2001:db8::2]:1", true}, {"[2001:db8::3]:1", false}, // one /64
		{"192.0.2.9:1", false}, // the limit is reached
	} {
		if got := r.connect(c.from, securePort) != nil; got != c.ok {
			t.Errorf("%s: accepted is %v, want %v", c.from, got, c.ok)
		}
	}
	if n := testutil.ToFloat64(r.refused.WithLabelValues("secure")); n != 3 {
		t.Errorf("%v refused connections are counted, want 3", n)
	}
}

func TestIdleConnectionIsEvictedFromSameOrLargestNetwork(t *testing.T) {
	r := newLimiterHarness(t, 16)
	idle, active := r.connect("192.0.2.1:1", securePort), r.connect("192.0.2.1:2", securePort)
	idle.makeIdle(time.Second)
	third := r.connect("192.0.2.1:3", securePort)
	if third == nil || !idle.isClosed() || active.isClosed() {
		t.Fatal("a new connection does not replace the idle one")
	}
	r.connect("192.0.2.2:1", securePort)
	r.connect("192.0.2.3:1", securePort)
	third.makeIdle(time.Second)
	if r.connect("192.0.2.4:1", securePort) == nil || !third.isClosed() {
		t.Error("a new connection does not replace an idle one of the network with the most")
	}
	if n := testutil.ToFloat64(r.expired.WithLabelValues("secure")); n != 2 {
		t.Errorf("%v closed connections are counted, want 2", n)
	}
}

func TestAuthenticatedConnectionsUseTheReservedSlots(t *testing.T) {
	r := newLimiterHarness(t, 16)
	for n := range 16 {
		conn := r.connect("192.0.2.1:1", securePort)
		if conn == nil || !conn.promote() {
			t.Fatalf("connection %d of an authenticated client is refused", n)
		}
	}
	if r.connect("192.0.2.2:1", securePort) != nil {
		t.Error("there are more connections than slots")
	}
}

func TestPlaintextConnectionsMayUseHalfOfTheSlots(t *testing.T) {
	r := newLimiterHarness(t, 16)
	var first *trackedConn
	for n := range 9 {
		conn := r.connect("192.0.2.1:1", plainPort)
		if ok := conn.promote(); ok != (n < 8) {
			t.Errorf("connection %d: promoted is %v", n, ok)
		}
		if n == 0 {
			first = conn
		}
		if n == 8 {
			_ = first.Close()
			if !conn.promote() {
				t.Error("the slot of a closed connection is not free")
			}
		}
	}
}

func TestUnauthenticatedConnectionIsClosedAfterTheTimeout(t *testing.T) {
	r := newLimiterHarness(t, 16)
	limit := portLimit{name: "secure", authTimeout: 20 * time.Millisecond}
	authenticated, silent := r.connect("192.0.2.1:1", limit), r.connect("192.0.2.1:2", limit)
	authenticated.promote()
	<-silent.Conn.(*testConn).closed
	if authenticated.isClosed() {
		t.Error("an authenticated connection is closed")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.open != 1 || r.new != 0 || len(r.bySource) != 0 {
		t.Errorf("open %d, new %d, networks %d", r.open, r.new, len(r.bySource))
	}
}

func TestConnectionIsClosedAfterManyUnauthenticatedCalls(t *testing.T) {
	r := newLimiterHarness(t, 16)
	conn := r.connect("192.0.2.1:1", securePort)
	ctx := peer.NewContext(context.Background(), &peer.Peer{Addr: conn.RemoteAddr()})
	for range maxRefusedCalls - 1 {
		connectionOf(ctx).countRefusal()
	}
	if conn.isClosed() {
		t.Fatal("it is closed too early")
	}
	connectionOf(ctx).countRefusal()
	<-conn.Conn.(*testConn).closed
}
