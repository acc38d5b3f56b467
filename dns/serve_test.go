package dns

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

func TestClientACL(t *testing.T) {
	looked := 0
	c := &clock{}
	own := addresses("10.1.2.3", "fd00::3")
	g := &clientACL{allowed: []netip.Prefix{netip.MustParsePrefix("192.168.7.0/24")}, now: c.now, own: func() []netip.Addr { looked++; return own }}
	for from, want := range map[string]bool{
		"127.0.0.1": true, "127.9.9.9": true, "::1": true, "::ffff:127.0.0.1": true,
		"10.1.2.3": true, "fd00::3": true, "::ffff:10.1.2.3": true, "192.168.7.9": true,
		"10.1.2.4": false, "8.8.8.8": false, "fd00::4": false, "192.168.8.1": false, "fe80::1%eth0": false,
	} {
		if got := g.admits(netip.MustParseAddr(from)); got != want {
			t.Errorf("%s: %v", from, got)
		}
	}
	if looked != 1 {
		t.Errorf("queries from unknown addresses made the server list its addresses %d times", looked)
	}
	own = addresses("10.1.2.4")
	c.advance(time.Minute)
	if !g.admits(own[0]) {
		t.Error("a new address of the machine is not admitted")
	}
}

func TestInvalidQueriesGetShortRefusals(t *testing.T) {
	s := start(t, Config{ResolvConf: resolvConfOf(t)}, meshTable())
	edit := func(change func(*dns.Msg)) []byte {
		m := new(dns.Msg)
		m.SetQuestion("web.", dns.TypeA)
		change(m)
		wire, err := m.Pack()
		if err != nil {
			t.Fatal(err)
		}
		return wire
	}
	for _, c := range []struct {
		name  string
		wire  []byte
		rcode int // expected response code; -1 for no response
	}{
		{"too short", []byte("hello"), -1},
		{"an answer", edit(func(m *dns.Msg) { m.Response = true }), -1},
		{"cut off", edit(func(*dns.Msg) {})[:15], dns.RcodeFormatError},
		{"an update", edit(func(m *dns.Msg) { m.Opcode = dns.OpcodeUpdate }), dns.RcodeNotImplemented},
		{"no question", edit(func(m *dns.Msg) { m.Question = nil }), dns.RcodeFormatError},
		{"two questions", edit(func(m *dns.Msg) { m.Question = append(m.Question, m.Question[0]) }), dns.RcodeFormatError},
		{"a zone transfer", edit(func(m *dns.Msg) { m.Question[0].Qtype = dns.TypeAXFR }), dns.RcodeRefused},
		{"another class", edit(func(m *dns.Msg) { m.Question[0].Qclass = dns.ClassCHAOS }), dns.RcodeRefused},
		{"EDNS of the future", edit(func(m *dns.Msg) { m.SetEdns0(1232, false); m.IsEdns0().SetVersion(1) }), dns.RcodeBadVers},
	} {
		t.Run(c.name, func(t *testing.T) {
			conn := dialUDP(t, s)
			if _, err := conn.Write(c.wire); err != nil {
				t.Fatal(err)
			}
			if c.rcode < 0 { // without a response, the next response must be to the next query
				if _, err := conn.Write(edit(func(m *dns.Msg) { m.Id = 4711 })); err != nil {
					t.Fatal(err)
				}
			}
			buffer := make([]byte, 4096)
			_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
			n, err := conn.Read(buffer)
			if err != nil {
				t.Fatal(err)
			}
			var got dns.Msg
			if err := got.Unpack(buffer[:n]); err != nil {
				t.Fatal(err)
			}
			if c.rcode < 0 && got.Id != 4711 || c.rcode >= 0 && (got.Rcode != c.rcode || n > len(c.wire)) || !got.Response {
				t.Errorf("%d bytes: %v", n, got)
			}
		})
	}
}

func TestANYIsNotForwardedOverUDP(t *testing.T) {
	up := newResolver(t, records("x.example. 60 IN A 1.2.3.4"))
	s := start(t, Config{ResolvConf: resolvConfOf(t, up)}, noNames)
	if got := exchange(t, s, "x.example.", dns.TypeANY); !got.Truncated || len(got.Answer) != 0 || up.queries.Load() != 0 {
		t.Error(got)
	}
}

func TestMeshNamesAreServedDuringFlood(t *testing.T) {
	up := newResolver(t, silent)
	s := start(t, Config{ResolvConf: resolvConfOf(t, up), ForwardTimeout: 3 * time.Second}, meshTable())
	conn := dialUDP(t, s)
	for i := range 3000 {
		m := new(dns.Msg)
		m.SetQuestion(fmt.Sprintf("n%d.example.", i), dns.TypeA)
		wire, _ := m.Pack()
		if _, err := conn.Write(wire); err != nil {
			t.Fatal(err)
		}
		if i%100 == 99 {
			if got := exchange(t, s, "web.", dns.TypeA); len(got.Answer) != 1 {
				t.Fatal(got)
			}
		}
	}
	s.forward.mu.Lock()
	flights := len(s.forward.inflight)
	s.forward.mu.Unlock()
	if flights > maxInflight || len(s.slots) > maxWaiting {
		t.Errorf("%d flights, %d wait", flights, len(s.slots))
	}
}

func TestNewConnectionsGetTheSlotsOfIdleOnes(t *testing.T) {
	up := newResolver(t, silent)
	s := start(t, Config{ResolvConf: resolvConfOf(t, up), ForwardTimeout: 30 * time.Second}, meshTable())
	query := func(name string) []byte {
		m := new(dns.Msg)
		m.SetQuestion(name, dns.TypeA)
		wire, _ := m.Pack()
		return append(binary.BigEndian.AppendUint16(nil, uint16(len(wire))), wire...)
	}
	dial := func() net.Conn {
		conn, err := net.Dial("tcp", s.Addresses()[0].String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	isServed := func(conn net.Conn) error {
		_, _ = conn.Write(query("web."))
		_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
		answer, err := readFramed(conn)
		if err == nil && len(answer) <= len(query("web.")) {
			err = fmt.Errorf("%d bytes", len(answer))
		}
		return err
	}

	waiting := dial()
	_, _ = waiting.Write(query("outside.example."))
	testenv.Eventually(t, "the query waits for the resolver", func() error {
		if len(s.slots) != 1 {
			return errors.New("the server has not read the query yet")
		}
		return nil
	})
	idle, active := dial(), dial()
	for range 3 {
		if err := isServed(active); err != nil {
			t.Fatal(err)
		}
	}
	for range maxConnections - 3 {
		dial()
	}
	if err := isServed(active); err != nil {
		t.Fatal(err)
	}
	if err := isServed(dial()); err != nil {
		t.Errorf("a new client without a free slot: %v", err)
	}
	_ = idle.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := idle.Read(make([]byte, 1)); err != io.EOF && !strings.Contains(fmt.Sprint(err), "reset") {
		t.Errorf("the connection that was idle for longest was not closed: %v", err)
	}
	for range maxConnections - 10 { // the remaining idle connections
		dial()
	}
	if got := testutil.ToFloat64(s.metrics.dropped.WithLabelValues(dropIdle)); got == 0 {
		t.Error("closed connections are not counted")
	}
	_ = waiting.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	if _, err := waiting.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a connection with a pending query was closed: %v", err)
	}
}

func TestConnectionsWithPendingQueriesAreNotClosedForNewOnes(t *testing.T) {
	limit := &connLimit{conns: map[*clientConn]struct{}{}}
	for range maxConnections {
		c, _ := limit.admit(new(net.TCPConn))
		limit.begin(c)
	}
	if c, evicted := limit.admit(new(net.TCPConn)); c != nil || evicted {
		t.Error("a connection was admitted without a free slot")
	}
}

func TestListenOnLocalhostAndOccupiedPort(t *testing.T) {
	config := Config{Listen: []string{"localhost:0"}, ResolvConf: resolvConfOf(t)}
	s, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	defer closeAll(s.sockets)
	if s.Addresses()[0].Addr() != netip.MustParseAddr("127.0.0.1") {
		t.Error(s.Addresses())
	}
	if six, err := net.Listen("tcp", "[::1]:0"); err == nil {
		defer func() { _ = six.Close() }()
		taken := fmt.Sprintf("localhost:%d", six.Addr().(*net.TCPAddr).Port)
		if s, err := New(Config{Listen: []string{taken}, ResolvConf: config.ResolvConf}); err == nil {
			s.Close()
			t.Error("New ignored that another process listens on ::1")
		}
	}
	config.Listen = []string{s.Addresses()[0].String()}
	if _, err := New(config); err == nil || !strings.Contains(err.Error(), config.Listen[0]) {
		t.Error(err)
	}
	for _, listen := range [][]string{nil, {"nothing"}, {"127.0.0.1:x"}} {
		if _, err := New(Config{Listen: listen, ResolvConf: config.ResolvConf}); err == nil {
			t.Errorf("%q is taken", listen)
		}
	}
}

func TestRunEndsWithPendingQueries(t *testing.T) {
	up := newResolver(t, silent)
	s, err := New(Config{Listen: []string{"127.0.0.1:0"}, ResolvConf: resolvConfOf(t, up), ForwardTimeout: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	s.SetNames(noNames)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	for i := range 10 {
		m := new(dns.Msg)
		m.SetQuestion(fmt.Sprintf("n%d.example.", i), dns.TypeA)
		wire, _ := m.Pack()
		_, _ = dialUDP(t, s).Write(wire)
	}
	for deadline := time.Now().Add(10 * time.Second); up.queries.Load() < 10 && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	cancel()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("Run does not return")
	}
}

func FuzzQuery(f *testing.F) {
	for _, name := range []string{"web.", "x.example.", "1.0.96.10.in-addr.arpa.", "_http._tcp.web.", "."} {
		for _, qtype := range []uint16{dns.TypeA, dns.TypePTR, dns.TypeSRV, dns.TypeANY, dns.TypeHTTPS} {
			m := new(dns.Msg)
			m.SetQuestion(name, qtype).SetEdns0(1232, true)
			wire, _ := m.Pack()
			f.Add(wire, false)
			f.Add(wire, true)
		}
	}
	s := &Server{config: Config{}.withDefaults(), metrics: newMetrics(), conf: &confFile{path: "/nonexistent"}}
	s.forward = &forwarder{cache: newCache(10, 1000, time.Now)}
	s.index.Store(newIndex(meshTable(), workloadDomain{"shop", "svc.cluster.local"}, []string{"shop.svc.cluster.local."}))
	f.Fuzz(func(t *testing.T, wire []byte, tcp bool) {
		quick := s.serveFast(wire, nil)
		q, out := s.receive(wire, tcp)
		if quick != nil && !tcp {
			if one, other := read(t, quick), read(t, out); normalize(one) != normalize(other) || len(quick) > q.size {
				t.Fatalf("response of the fast path\n%s\nresponse without it\n%s", normalize(one), normalize(other))
			}
		}
		if len(out) == 0 {
			return
		}
		var m dns.Msg
		if err := m.Unpack(out); err != nil || !m.Response || m.Id != binary.BigEndian.Uint16(wire) {
			t.Fatalf("%v: %v", err, m)
		}
		if q != nil && len(out) > q.size {
			t.Fatalf("%d bytes for one who takes %d", len(out), q.size)
		}
	})
}

func FuzzResolverAnswer(f *testing.F) {
	m := new(dns.Msg)
	m.SetQuestion("x.example.", dns.TypeA)
	for _, line := range []string{"x.example. 60 IN CNAME y.example.", "y.example. 60 IN A 1.2.3.4"} {
		rr, _ := dns.NewRR(line)
		m.Answer = append(m.Answer, rr)
	}
	m.Response = true
	m.Compress = true
	wire, _ := m.Pack()
	f.Add(wire)
	f.Fuzz(func(t *testing.T, wire []byte) {
		_, _ = findTTLs(wire)
		got := new(dns.Msg)
		if got.Unpack(wire) != nil || len(got.Question) != 1 {
			return
		}
		now := time.Now()
		a, err := newAnswer(removeUnrelated(got), "r", false, now)
		if err != nil {
			return
		}
		asked := &query{id: 7, size: minUDP, edns: true, spelling: []byte("\x01X\x07example\x00")}
		out := a.write(asked, now.Add(time.Minute))
		var again dns.Msg
		if len(out) > minUDP || len(out) > 0 && again.Unpack(out) != nil {
			t.Fatalf("%d bytes: %v", len(out), again)
		}
	})
}

func FuzzResolvConf(f *testing.F) {
	f.Add([]byte("# x\nnameserver 10.0.0.1\nnameserver fe80::1%eth0\nsearch a b.c\noptions ndots:5 rotate use-vc\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		conf := parseResolvConf(text)
		if len(conf.servers) > maxResolvers || len(conf.search) > maxSearchDomains || conf.ndots < 0 || conf.ndots > 15 {
			t.Fatalf("%+v", conf)
		}
	})
}

func BenchmarkMeshName(b *testing.B) { benchmark(b, "web.shop.svc.cluster.local.") }

func BenchmarkCachedAnswer(b *testing.B) { benchmark(b, "x.example.") }

// benchmark measures the server without the network.
func benchmark(b *testing.B, name string) {
	up := newResolver(b, records("x.example. 3600 IN A 1.2.3.4"))
	s := start(b, Config{ResolvConf: resolvConfOf(b, up)}, meshTable())
	exchange(b, s, name, dns.TypeA)
	m := new(dns.Msg)
	m.SetQuestion(name, dns.TypeA).SetEdns0(1232, false)
	wire, _ := m.Pack()
	b.ReportAllocs()
	room := make([]byte, 0, 4096)
	for b.Loop() {
		if out := s.serveFast(wire, room); len(out) == 0 {
			b.Fatal("no answer")
		}
	}
}

// BenchmarkOverUDP measures a query and its response over loopback, with several clients.
func BenchmarkOverUDP(b *testing.B) {
	s := start(b, Config{ResolvConf: resolvConfOf(b)}, meshTable())
	m := new(dns.Msg)
	m.SetQuestion("web.", dns.TypeA)
	wire, _ := m.Pack()
	clients := sync.Pool{New: func() any { return dialUDP(b, s) }}
	b.RunParallel(func(pb *testing.PB) {
		conn := clients.Get().(net.Conn)
		defer clients.Put(conn)
		buffer := make([]byte, 512)
		for pb.Next() {
			_, _ = conn.Write(wire)
			if _, err := conn.Read(buffer); err != nil {
				b.Error(err)
				return
			}
		}
	})
}

// A client can forge its source address. The response must not exceed the size that the query permits.
func TestUDPAnswersFitTheClientsLimit(t *testing.T) {
	var ips []netip.Addr
	for i := range 300 {
		ips = append(ips, netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}))
	}
	large := &Table{Hosts: map[string]Entry{"large.example": {IPs: ips}}}
	up := newResolver(t, func(w dns.ResponseWriter, r *dns.Msg) {
		m := new(dns.Msg)
		m.SetReply(r)
		for i := range 300 {
			rr, _ := dns.NewRR(fmt.Sprintf("%s 60 IN A 10.0.%d.%d", r.Question[0].Name, i/256, i%256))
			m.Answer = append(m.Answer, rr)
		}
		if w.LocalAddr().Network() == "udp" {
			m.Truncate(512)
		}
		_ = w.WriteMsg(m)
	})
	s := start(t, Config{ResolvConf: resolvConfOf(t, up)}, large)
	for _, name := range []string{"large.example.", "forwarded.example."} {
		for size, most := range map[uint16]int{0: 512, 100: 512, 1232: 1232, 4096: 4096, 65535: 4096} {
			m := new(dns.Msg)
			m.SetQuestion(name, dns.TypeA)
			if size > 0 {
				m.SetEdns0(size, false)
			}
			for range 2 { // the second response is from the cache
				conn := dialUDP(t, s)
				wire, _ := m.Pack()
				if _, err := conn.Write(wire); err != nil {
					t.Fatal(err)
				}
				buffer := make([]byte, 65535)
				_ = conn.SetReadDeadline(time.Now().Add(15 * time.Second))
				n, err := conn.Read(buffer)
				if err != nil {
					t.Fatal(err)
				}
				if got := read(t, buffer[:n]); n > most || !got.Truncated {
					t.Errorf("%s for one who takes %d: %d bytes, truncated %v", name, size, n, got.Truncated)
				}
			}
		}
	}
}

func TestSocketErrorsAreRetried(t *testing.T) {
	s, err := New(Config{Listen: []string{"127.0.0.1:0"}, ResolvConf: resolvConfOf(t)})
	if err != nil {
		t.Fatal(err)
	}
	s.SetNames(meshTable())
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	fail := func(until time.Time) { // as reads and accepts fail while all file descriptors are in use
		_ = s.sockets[0].udp.SetReadDeadline(until)
		_ = s.sockets[0].tcp.SetDeadline(until)
	}
	fail(time.Unix(1, 0))
	select {
	case err := <-ended:
		t.Fatalf("Run returned: %v", err)
	case <-time.After(1500 * time.Millisecond):
	}
	fail(time.Time{})
	for _, network := range []string{"udp", "tcp"} {
		m := new(dns.Msg)
		m.SetQuestion("web.shop.svc.cluster.local.", dns.TypeA)
		client := dns.Client{Net: network, Timeout: 10 * time.Second}
		if answer, _, err := client.Exchange(m, s.Addresses()[0].String()); err != nil || len(answer.Answer) == 0 {
			t.Errorf("by %s: %v, %v", network, answer, err)
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestAnswersAreSentFromTheQueriedAddress(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only on Linux is all of 127.0.0.0/8 local")
	}
	for _, listen := range []string{"0.0.0.0:0", ":0"} {
		s, err := New(Config{Listen: []string{listen}, ResolvConf: resolvConfOf(t, newResolver(t, records("x.example. 60 IN A 1.2.3.4")))})
		if err != nil {
			t.Fatal(err)
		}
		s.SetNames(meshTable())
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- s.Run(ctx) }()
		port := s.Addresses()[0].Port()
		reached := []string{"127.0.0.1", "127.163.30.1"}
		if six, err := net.Listen("tcp", "[::1]:0"); err == nil {
			_ = six.Close()
			reached = append(reached, "::1")
		}
		for _, at := range reached {
			for _, name := range []string{"web.shop.svc.cluster.local.", "x.example."} {
				m := new(dns.Msg)
				m.SetQuestion(name, dns.TypeA)
				client := dns.Client{Timeout: 5 * time.Second}
				answer, _, err := client.Exchange(m, netip.AddrPortFrom(netip.MustParseAddr(at), port).String())
				if err != nil || len(answer.Answer) == 0 {
					t.Errorf("%s asked at %s: %v, %v", listen, at, answer, err)
				}
			}
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}
