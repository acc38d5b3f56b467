package controlplane

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"sync"
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
	once   sync.Once
}

func (c *testConn) RemoteAddr() net.Addr {
	addr, _ := net.ResolveTCPAddr("tcp", c.from)
	return addr
}

func (c *testConn) Close() error {
	c.once.Do(func() { close(c.closed) })
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

// connect opens a connection. It returns nil if the limiter refuses the connection.
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
	c.limiter.mu.Lock()
	defer c.limiter.mu.Unlock()
	return c.released
}

var securePort, plainPort = portLimit{name: "secure"}, portLimit{name: "plain", plaintext: true}

// count returns the number of open connections.
func count(conns []*trackedConn) (n int) {
	for _, c := range conns {
		if !c.isClosed() {
			n++
		}
	}
	return n
}

func TestConnectionsInTheHandshakeMayUseAnEighthOfTheSlots(t *testing.T) {
	r := newLimiterHarness(t, 64)
	var one, other []*trackedConn // one: all connections come from the same IPv4 address; other: all come from the same IPv6 network
	for n := range 20 {
		one = append(one, r.connect("192.0.2.1:1", securePort))
		other = append(other, r.connect(fmt.Sprintf("[2001:db8::%d]:1", n), securePort))
	}
	if count(one) != 4 || count(other) != 4 {
		t.Errorf("the networks have %d and %d connections, want 4 each", count(one), count(other))
	}
	if n := testutil.ToFloat64(r.expired.WithLabelValues("secure")); n != 32 {
		t.Errorf("%v closed connections are counted, want 32", n)
	}
}

func TestConnectionsOfTheLargestNetworkAreReplaced(t *testing.T) {
	r := newLimiterHarness(t, 64)
	client := r.connect("192.0.2.3:1", securePort)
	var attacker []*trackedConn
	for range 20 {
		attacker = append(attacker, r.connect("192.0.2.1:1", securePort), r.connect("192.0.2.2:1", securePort))
	}
	second := r.connect("192.0.2.4:1", securePort)
	if client.isClosed() || second.isClosed() {
		t.Error("connections of networks with more connections replaced the connection of a client")
	}
	if n := count(attacker); n != 6 {
		t.Errorf("the networks with more connections have %d in total, want 6", n)
	}
}

func TestHandshakesDoNotReplaceConnectionsThatFinishedTheirs(t *testing.T) {
	r := newLimiterHarness(t, 64)
	client := r.connect("192.0.2.1:1", securePort)
	if !client.finishHandshake(false) {
		t.Fatal("the connection is closed after its handshake")
	}
	var attacker []*trackedConn
	for range 20 {
		attacker = append(attacker, r.connect("192.0.2.1:1", securePort))
	}
	if client.isClosed() {
		t.Fatal("a connection in the handshake replaced the established connection")
	}
	for _, c := range attacker {
		if !c.isClosed() && !c.finishHandshake(false) {
			t.Error("a connection is closed after its handshake")
		}
	}
	if n := count(append(attacker, client)); n != 4 {
		t.Errorf("the network has %d connections after the handshake, want 4", n)
	}
}

func TestConnectionThatWasReplacedDoesNotFinishItsHandshake(t *testing.T) {
	r := newLimiterHarness(t, 16)
	first := r.connect("192.0.2.1:1", securePort)
	r.connect("192.0.2.1:2", securePort)
	if !first.isClosed() || first.finishHandshake(true) {
		t.Error("a closed connection uses a slot again")
	}
}

func TestClientsWithCertificatesUseTheReservedSlotsFromTheirHandshake(t *testing.T) {
	r := newLimiterHarness(t, 16)
	for n := range 16 {
		conn := r.connect("192.0.2.1:1", securePort)
		if conn == nil || !conn.finishHandshake(true) {
			t.Fatalf("connection %d of a client with a certificate is refused", n)
		}
	}
	if r.connect("192.0.2.2:1", securePort) != nil {
		t.Error("there are more connections than slots")
	}
}

func TestAuthenticatedConnectionsUseTheReservedSlots(t *testing.T) {
	r := newLimiterHarness(t, 16)
	for n := range 16 {
		conn := r.connect("192.0.2.1:1", securePort)
		if conn == nil || !conn.finishHandshake(false) || !conn.authenticate() {
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
		if ok := conn.authenticate(); ok != (n < 8) {
			t.Errorf("connection %d: promoted is %v", n, ok)
		}
		if n == 0 {
			first = conn
		}
		if n == 8 {
			_ = first.Close()
			if !conn.authenticate() {
				t.Error("the slot of a closed connection is not free")
			}
		}
	}
}

func TestUnauthenticatedConnectionIsClosedAfterTheTimeout(t *testing.T) {
	r := newLimiterHarness(t, 32)
	limit := portLimit{name: "secure", authTimeout: 20 * time.Millisecond}
	authenticated, silent, certified := r.connect("192.0.2.1:1", limit), r.connect("192.0.2.2:1", limit), r.connect("192.0.2.3:1", limit)
	authenticated.authenticate()
	certified.finishHandshake(true)
	<-silent.Conn.(*testConn).closed
	<-certified.Conn.(*testConn).closed // no call was authenticated
	if authenticated.isClosed() {
		t.Error("an authenticated connection is closed")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.open != 1 || r.handshakes.count != 0 || len(r.handshakes.bySource) != 0 {
		t.Errorf("open %d, handshakes %d, networks %d", r.open, r.handshakes.count, len(r.handshakes.bySource))
	}
}

func TestConnectionIsClosedAfterManyUnauthenticatedCalls(t *testing.T) {
	r := newLimiterHarness(t, 16)
	conn := r.connect("192.0.2.1:1", securePort)
	ctx := peer.NewContext(context.Background(), &peer.Peer{Addr: conn.RemoteAddr()})
	call := func() {
		if _, err := limitCalls(ctx, nil); err != nil {
			t.Fatal(err)
		}
		connectionOf(ctx).refuseCall()
	}
	for range maxUnauthenticatedCalls - 1 {
		call()
	}
	if conn.isClosed() {
		t.Fatal("the connection is closed too early")
	}
	call()
	<-conn.Conn.(*testConn).closed
}

func TestManySimultaneousUnauthenticatedCallsCloseTheConnectionAtOnce(t *testing.T) {
	r := newLimiterHarness(t, 16)
	conn := r.connect("192.0.2.1:1", securePort)
	ctx := peer.NewContext(context.Background(), &peer.Peer{Addr: conn.RemoteAddr()})
	for range maxUnauthenticatedCalls {
		if _, err := limitCalls(ctx, nil); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := limitCalls(ctx, nil); err == nil {
		t.Error("one more call is accepted")
	}
	<-conn.Conn.(*testConn).closed
}

func TestAuthenticatedConnectionsMayHaveManyCalls(t *testing.T) {
	r := newLimiterHarness(t, 16)
	conn := r.connect("192.0.2.1:1", securePort)
	conn.authenticate()
	ctx := peer.NewContext(context.Background(), &peer.Peer{Addr: conn.RemoteAddr()})
	for range 2 * maxUnauthenticatedCalls {
		if _, err := limitCalls(ctx, nil); err != nil {
			t.Fatal(err)
		}
	}
	if conn.isClosed() {
		t.Error("the connection is closed")
	}
}
