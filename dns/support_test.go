package dns

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/encoding/protowire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// clock is a clock that tests advance.
type clock struct{ offset atomic.Int64 }

func (c *clock) now() time.Time          { return time.Now().Add(time.Duration(c.offset.Load())) }
func (c *clock) advance(d time.Duration) { c.offset.Add(int64(d)) }

// resolver is a fake resolver with configurable answers.
type resolver struct {
	address string
	queries atomic.Int64
	byTCP   atomic.Int64
	mu      sync.Mutex
	behave  func(w dns.ResponseWriter, r *dns.Msg)
	// closeTCP closes the TCP listener, so that the resolver responds only over UDP.
	closeTCP func()
}

func newResolver(t testing.TB, behave func(dns.ResponseWriter, *dns.Msg)) *resolver {
	t.Helper()
	s, err := listenAt("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &resolver{address: s.address().String(), behave: behave, closeTCP: func() { _ = s.tcp.Close() }}
	handler := dns.HandlerFunc(func(w dns.ResponseWriter, m *dns.Msg) {
		r.queries.Add(1)
		if w.LocalAddr().Network() == "tcp" {
			r.byTCP.Add(1)
		}
		r.mu.Lock()
		do := r.behave
		r.mu.Unlock()
		do(w, m)
	})
	var serving, started sync.WaitGroup
	t.Cleanup(serving.Wait)
	for _, server := range []*dns.Server{{PacketConn: s.udp, Handler: handler}, {Listener: s.tcp, Handler: handler}} {
		started.Add(1)
		server.NotifyStartedFunc = started.Done
		serving.Go(func() { _ = server.ActivateAndServe() })
		t.Cleanup(func() { _ = server.Shutdown() })
	}
	started.Wait()
	return r
}

func (r *resolver) become(behave func(dns.ResponseWriter, *dns.Msg)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.behave = behave
}

// records returns a handler that answers from records in zone file notation, and with NXDOMAIN for other names.
func records(zone ...string) func(dns.ResponseWriter, *dns.Msg) {
	var rrs []dns.RR
	for _, line := range zone {
		rr, err := dns.NewRR(line)
		if err != nil {
			panic(err)
		}
		rrs = append(rrs, rr)
	}
	soa, _ := dns.NewRR("example. 60 IN SOA ns.example. root.example. 1 1 1 1 60")
	return func(w dns.ResponseWriter, r *dns.Msg) {
		m := new(dns.Msg)
		m.SetReply(r)
		exists := false
		for _, rr := range rrs {
			if !strings.EqualFold(rr.Header().Name, r.Question[0].Name) {
				continue
			}
			exists = true
			if rr.Header().Rrtype == r.Question[0].Qtype {
				m.Answer = append(m.Answer, rr)
			}
		}
		if len(m.Answer) == 0 {
			m.Ns = []dns.RR{soa}
		}
		if !exists {
			m.Rcode = dns.RcodeNameError
		}
		if w.LocalAddr().Network() == "udp" {
			size := 512
			if opt := r.IsEdns0(); opt != nil {
				size = int(opt.UDPSize())
			}
			m.Truncate(size)
		}
		_ = w.WriteMsg(m)
	}
}

func silent(dns.ResponseWriter, *dns.Msg) {}

func rcode(code int) func(dns.ResponseWriter, *dns.Msg) {
	return func(w dns.ResponseWriter, r *dns.Msg) {
		m := new(dns.Msg)
		m.SetRcode(r, code)
		_ = w.WriteMsg(m)
	}
}

const search = "search shop.svc.cluster.local svc.cluster.local cluster.local\noptions ndots:5\n"

// resolvConfOf writes a resolv.conf with these resolvers and returns its path.
func resolvConfOf(t testing.TB, resolvers ...*resolver) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "resolv.conf")
	writeResolvConf(t, path, resolvers...)
	return path
}

func writeResolvConf(t testing.TB, path string, resolvers ...*resolver) {
	t.Helper()
	text := search
	for _, r := range resolvers {
		text += "nameserver " + r.address + "\n"
	}
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// start runs a server until the end of the test. The table may be nil.
func start(t testing.TB, config Config, table *Table) *Server {
	t.Helper()
	config.Listen = []string{"127.0.0.1:0"}
	config.Namespace, config.Domain = "shop", "shop.svc.cluster.local"
	s, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	if table != nil {
		s.SetNames(table)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return s
}

func exchange(t testing.TB, s *Server, name string, qtype uint16) *dns.Msg {
	t.Helper()
	m := new(dns.Msg)
	m.SetQuestion(name, qtype)
	return put(t, s, "udp", m)
}

func put(t testing.TB, s *Server, network string, m *dns.Msg) *dns.Msg {
	t.Helper()
	c := &dns.Client{Net: network, Timeout: 15 * time.Second, UDPSize: 4096}
	got, _, err := c.Exchange(m, s.Addresses()[0].String())
	if err != nil {
		t.Fatalf("%s: %v", m.Question[0].Name, err)
	}
	return got
}

// values returns the data of all answer records in sorted order.
func values(m *dns.Msg) []string {
	out := []string{}
	for _, rr := range m.Answer {
		out = append(out, strings.TrimPrefix(rr.String(), rr.Header().String()))
	}
	return out
}

func addresses(texts ...string) []netip.Addr {
	var ips []netip.Addr
	for _, text := range texts {
		ips = append(ips, netip.MustParseAddr(text))
	}
	return ips
}

func dialUDP(t testing.TB, s *Server) net.Conn {
	t.Helper()
	conn, err := net.Dial("udp", s.Addresses()[0].String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// encodeTable encodes a table as a NameTable message.
func encodeTable(t *Table) []byte {
	var wire []byte
	for host, e := range t.Hosts {
		var info []byte
		text := func(field protowire.Number, value string) {
			info = protowire.AppendString(protowire.AppendTag(info, field, protowire.BytesType), value)
		}
		for _, ip := range e.IPs {
			text(1, ip.String())
		}
		text(2, e.Registry)
		text(3, e.ShortName)
		text(4, e.Namespace)
		for _, other := range e.AltHosts {
			text(5, other)
		}
		for _, p := range e.Ports {
			text(fieldPort, fmt.Sprintf("_%s._%s %d", p.Name, p.Protocol, p.Number))
		}
		entry := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), host)
		entry = protowire.AppendBytes(protowire.AppendTag(entry, 2, protowire.BytesType), info)
		wire = protowire.AppendBytes(protowire.AppendTag(wire, 1, protowire.BytesType), entry)
	}
	return wire
}

func read(t testing.TB, wire []byte) *dns.Msg {
	t.Helper()
	m := new(dns.Msg)
	if err := m.Unpack(wire); err != nil {
		t.Fatalf("%x: %v", wire, err)
	}
	return m
}

// normalize returns the parts of a response that must be equal with and without the fast path. It omits the ID, the order
// and letter case of records, and the records of a truncated response.
func normalize(m *dns.Msg) string {
	lines := []string{}
	for _, rr := range m.Answer {
		lines = append(lines, strings.ToLower(rr.String()))
	}
	slices.Sort(lines)
	if m.Truncated {
		lines = nil
	}
	m.Id = 0
	edns := "no EDNS"
	if opt := m.IsEdns0(); opt != nil {
		edns = opt.String()
	}
	return m.MsgHdr.String() + "\n" + edns + "\n" + strings.Join(lines, "\n")
}
