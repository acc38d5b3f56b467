package dns

import (
	"context"
	"fmt"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

var noNames = &Table{Hosts: map[string]Entry{}}

func TestCachedAnswerHasRemainingTTL(t *testing.T) {
	up := newResolver(t, records("x.example. 100 IN A 1.2.3.4"))
	c := &clock{}
	s := start(t, Config{ResolvConf: resolvConfOf(t, up), Now: c.now}, noNames)
	if got := exchange(t, s, "x.example.", dns.TypeA); got.Answer[0].Header().Ttl < 99 {
		t.Error(got)
	}
	c.advance(60 * time.Second)
	if got := exchange(t, s, "X.eXample.", dns.TypeA); got.Answer[0].Header().Ttl > 41 || got.Answer[0].Header().Name != "X.eXample." || up.queries.Load() != 1 {
		t.Errorf("%v after %d questions", got, up.queries.Load())
	}
	c.advance(60 * time.Second)
	if got := exchange(t, s, "x.example.", dns.TypeA); got.Answer[0].Header().Ttl < 99 || up.queries.Load() != 2 {
		t.Errorf("%v after %d questions", got, up.queries.Load())
	}
}

func TestNegativeAnswersAreCachedByTheirSOA(t *testing.T) {
	up := newResolver(t, records("x.example. 100 IN A 1.2.3.4"))
	c := &clock{}
	s := start(t, Config{ResolvConf: resolvConfOf(t, up), Now: c.now}, noNames)
	for range 3 {
		if got := exchange(t, s, "missing.example.", dns.TypeA); got.Rcode != dns.RcodeNameError {
			t.Error(got)
		}
		if got := exchange(t, s, "x.example.", dns.TypeAAAA); got.Rcode != dns.RcodeSuccess || len(got.Answer) != 0 {
			t.Error(got)
		}
	}
	if n := up.queries.Load(); n != 2 {
		t.Errorf("%d questions", n)
	}
	c.advance(61 * time.Second)
	exchange(t, s, "missing.example.", dns.TypeA)
	if n := up.queries.Load(); n != 3 {
		t.Errorf("%d questions", n)
	}
}

func TestFailuresAndTTLZeroAreNotCached(t *testing.T) {
	up := newResolver(t, records("x.example. 0 IN A 1.2.3.4"))
	s := start(t, Config{ResolvConf: resolvConfOf(t, up)}, noNames)
	exchange(t, s, "x.example.", dns.TypeA)
	exchange(t, s, "x.example.", dns.TypeA)
	if n := up.queries.Load(); n != 2 {
		t.Errorf("%d questions", n)
	}
	up.become(rcode(dns.RcodeServerFailure))
	if got := exchange(t, s, "y.example.", dns.TypeA); got.Rcode != dns.RcodeServerFailure {
		t.Error(got)
	}
	up.become(records("y.example. 60 IN A 1.2.3.4"))
	if got := exchange(t, s, "y.example.", dns.TypeA); got.Rcode != dns.RcodeSuccess {
		t.Error(got)
	}
}

func TestAnswersAgeWithAndWithoutAMonotonicClock(t *testing.T) {
	at := time.Now()
	a := &answer{stored: at, life: time.Minute}
	for what, c := range map[string]struct {
		now time.Time
		age time.Duration
	}{
		"with both":                           {at.Add(30 * time.Second), 30 * time.Second},
		"with the wall clock alone":           {at.Round(0).Add(8 * time.Hour), 8 * time.Hour},
		"with a wall clock that was put back": {at.Round(0).Add(-24 * time.Hour), 0},
	} {
		if got := a.age(c.now); got != c.age || a.fresh(c.now) != (c.age < time.Minute) {
			t.Errorf("%s: %s old, fresh %v", what, got, a.fresh(c.now))
		}
	}
	c := newCache(10, 10_000, func() time.Time { return at.Add(time.Hour) })
	for keep, kept := range map[time.Duration]bool{30 * time.Minute: false, 2 * time.Hour: true} {
		c.put(question{}, a, keep)
		if got := c.get(question{}) != nil; got != kept {
			t.Errorf("an answer of an hour ago that may be served for %s is still cached: %v", keep, got)
		}
	}
}

func TestStaleAnswersAreServedWithoutResolvers(t *testing.T) {
	up := newResolver(t, records("x.example. 10 IN A 1.2.3.4"))
	c := &clock{}
	s := start(t, Config{ResolvConf: resolvConfOf(t, up), Now: c.now, ForwardTimeout: 100 * time.Millisecond}, noNames)
	exchange(t, s, "x.example.", dns.TypeA)
	up.become(silent)
	c.advance(time.Minute)
	for range 3 {
		if got := exchange(t, s, "x.example.", dns.TypeA); len(got.Answer) != 1 || got.Answer[0].Header().Ttl != staleTTL {
			t.Fatal(got)
		}
	}
	if reason := s.Condition().Reason; !strings.Contains(reason, "none of the resolvers") {
		t.Errorf("health: %q", reason)
	}
	up.become(records("x.example. 10 IN A 5.6.7.8"))
	c.advance(time.Minute)
	deadline := time.Now().Add(10 * time.Second)
	for values(exchange(t, s, "x.example.", dns.TypeA))[0] != "5.6.7.8" {
		if time.Now().After(deadline) {
			t.Fatal("the resolver that has recovered is not queried")
		}
		c.advance(time.Minute)
	}
	up.become(silent)
	c.advance(3 * time.Hour)
	if got := exchange(t, s, "x.example.", dns.TypeA); got.Rcode != dns.RcodeServerFailure {
		t.Errorf("the answer is served although it is too old: %v", got)
	}
}

func TestConcurrentQueriesAreForwardedOnce(t *testing.T) {
	release := make(chan struct{})
	answer := records("x.example. 0 IN A 1.2.3.4")
	up := newResolver(t, func(w dns.ResponseWriter, r *dns.Msg) { <-release; answer(w, r) })
	s := start(t, Config{ResolvConf: resolvConfOf(t, up)}, noNames)
	var asking sync.WaitGroup
	for range 50 {
		asking.Go(func() {
			if got := exchange(t, s, "x.example.", dns.TypeA); len(got.Answer) != 1 {
				t.Error(got)
			}
		})
	}
	deadline := time.Now().Add(10 * time.Second)
	for testutil.ToFloat64(s.metrics.requests) < 50 && time.Now().Before(deadline) {
		time.Sleep(time.Millisecond)
	}
	for len(s.slots) < 50 && time.Now().Before(deadline) {
		time.Sleep(time.Millisecond)
	}
	close(release)
	asking.Wait()
	if n := up.queries.Load(); n > 2 { // the answer is not cached, so a query after the first response is forwarded again
		t.Errorf("%d questions", n)
	}
}

func TestLargeAnswersAreFetchedOverTCPAndTruncated(t *testing.T) {
	var zone []string
	for i := range 200 {
		zone = append(zone, fmt.Sprintf("big.example. 60 IN A 10.0.0.%d", i))
	}
	up := newResolver(t, records(zone...))
	s := start(t, Config{ResolvConf: resolvConfOf(t, up)}, noNames)
	m := new(dns.Msg)
	m.SetQuestion("big.example.", dns.TypeA)
	if got := put(t, s, "udp", m); !got.Truncated {
		t.Error("a response of 512 bytes contains 200 addresses")
	}
	if got := put(t, s, "tcp", m); got.Truncated || len(got.Answer) != 200 {
		t.Errorf("%d answers by TCP", len(got.Answer))
	}
	m.SetEdns0(4096, false)
	if got := put(t, s, "udp", m); got.Truncated || len(got.Answer) != 200 || got.IsEdns0() == nil {
		t.Errorf("%d answers by EDNS", len(got.Answer))
	}
	if up.queries.Load() != 2 || up.byTCP.Load() != 1 {
		t.Errorf("%d questions, %d by TCP", up.queries.Load(), up.byTCP.Load())
	}
}

func TestNextResolverIsQueriedWhenOneFails(t *testing.T) {
	good := records("x.example. 0 IN A 1.2.3.4")
	for name, behave := range map[string]func(dns.ResponseWriter, *dns.Msg){
		"silent": silent, "refuses": rcode(dns.RcodeRefused), "fails": rcode(dns.RcodeServerFailure),
		"garbage": func(w dns.ResponseWriter, _ *dns.Msg) { _, _ = w.Write([]byte("garbage")) },
		"wrong id": func(w dns.ResponseWriter, r *dns.Msg) {
			m := new(dns.Msg).SetReply(r)
			m.Id++
			_ = w.WriteMsg(m)
		},
		"wrong name": func(w dns.ResponseWriter, r *dns.Msg) {
			m := new(dns.Msg).SetReply(r)
			m.Question[0].Name = "other.example."
			_ = w.WriteMsg(m)
		},
	} {
		for _, parallel := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, parallel %v", name, parallel), func(t *testing.T) {
				s := start(t, Config{ResolvConf: resolvConfOf(t, newResolver(t, behave), newResolver(t, good)),
					ForwardParallel: parallel, ForwardTimeout: 2 * time.Second}, noNames)
				if got := exchange(t, s, "x.example.", dns.TypeA); len(got.Answer) != 1 {
					t.Error(got)
				}
			})
		}
	}
}

func TestSilentResolverIsSkipped(t *testing.T) {
	away, good := newResolver(t, silent), newResolver(t, records("x.example. 0 IN A 1.2.3.4"))
	c := &clock{}
	s := start(t, Config{ResolvConf: resolvConfOf(t, away, good), ForwardTimeout: 400 * time.Millisecond, Now: c.now}, noNames)
	for range 10 {
		exchange(t, s, "x.example.", dns.TypeA)
	}
	if n := away.queries.Load(); n > 3 { // on a busy machine, the silent resolver may be tested again
		t.Errorf("the silent resolver received %d queries", n)
	}
	before := away.queries.Load()
	c.advance(time.Minute)
	exchange(t, s, "x.example.", dns.TypeA)
	if away.queries.Load() == before {
		t.Error("the silent resolver is never queried again")
	}
}

func TestForgedAnswersAreDropped(t *testing.T) {
	honest := records("x.example. 60 IN A 1.2.3.4")
	forged := func(r *dns.Msg) *dns.Msg {
		m := new(dns.Msg).SetReply(r)
		rr, _ := dns.NewRR("x.example. 60 IN A 6.6.6.6")
		m.Answer = []dns.RR{rr}
		return m
	}
	for name, lie := range map[string]func(*dns.Msg) *dns.Msg{
		"wrong id":          func(r *dns.Msg) *dns.Msg { m := forged(r); m.Id ^= 1; return m },
		"wrong spelling":    func(r *dns.Msg) *dns.Msg { m := forged(r); m.Question[0].Name = "x.example."; return m },
		"wrong type":        func(r *dns.Msg) *dns.Msg { m := forged(r); m.Question[0].Qtype = dns.TypeTXT; return m },
		"not a response":    func(r *dns.Msg) *dns.Msg { m := forged(r); m.Response = false; return m },
		"no question in it": func(r *dns.Msg) *dns.Msg { m := forged(r); m.Question = nil; return m },
	} {
		t.Run(name, func(t *testing.T) {
			up := newResolver(t, func(w dns.ResponseWriter, r *dns.Msg) {
				if w.LocalAddr().Network() == "udp" && r.Question[0].Name != "x.example." {
					_ = w.WriteMsg(lie(r))
				}
				honest(w, r)
			})
			s := start(t, Config{ResolvConf: resolvConfOf(t, up)}, noNames)
			if got := values(exchange(t, s, "x.example.", dns.TypeA)); !slices.Equal(got, []string{"1.2.3.4"}) {
				t.Errorf("believed %v", got)
			}
		})
	}
}

func TestResolverWithoutCaseAndTCPIsQueriedTwice(t *testing.T) {
	forget := func(w dns.ResponseWriter, r *dns.Msg) {
		r.Question[0].Name = strings.ToLower(r.Question[0].Name)
		records("a-name-of-many-letters-is-drawn-alike-by-no-chance.example. 60 IN A 1.2.3.4")(w, r)
	}
	up := newResolver(t, forget)
	up.closeTCP()
	s := start(t, Config{ResolvConf: resolvConfOf(t, up)}, noNames)
	if got := values(exchange(t, s, "a-name-of-many-letters-is-drawn-alike-by-no-chance.example.", dns.TypeA)); !slices.Equal(got, []string{"1.2.3.4"}) || up.queries.Load() != 2 {
		t.Errorf("got %v after %d queries", got, up.queries.Load())
	}
	// A single response with the wrong case is not accepted.
	up.become(func(w dns.ResponseWriter, r *dns.Msg) {
		if up.queries.Load()%2 == 1 {
			forget(w, r)
		}
	})
	s = start(t, Config{ResolvConf: resolvConfOf(t, up), ForwardTimeout: 200 * time.Millisecond}, noNames)
	if got := exchange(t, s, "a-name-of-many-letters-is-drawn-alike-by-no-chance.example.", dns.TypeA); got.Rcode != dns.RcodeServerFailure {
		t.Errorf("believed %v", got)
	}
}

func TestUnrelatedRecordsOfAResolverAreRemoved(t *testing.T) {
	up := newResolver(t, func(w dns.ResponseWriter, r *dns.Msg) {
		m := new(dns.Msg).SetReply(r)
		for _, line := range []string{"x.example. 60 IN CNAME y.example.", "y.example. 60 IN A 1.2.3.4", "bank.example. 60 IN A 6.6.6.6"} {
			rr, _ := dns.NewRR(line)
			m.Answer = append(m.Answer, rr)
		}
		rr, _ := dns.NewRR("bank.example. 60 IN A 6.6.6.6")
		m.Extra = append(m.Extra, rr)
		_ = w.WriteMsg(m)
	})
	s := start(t, Config{ResolvConf: resolvConfOf(t, up)}, noNames)
	got := exchange(t, s, "x.example.", dns.TypeA)
	if want := []string{"y.example.", "1.2.3.4"}; !slices.Equal(values(got), want) || len(got.Extra) != 0 {
		t.Error(got)
	}
}

func TestForwardedQueriesHaveRandomCaseAndID(t *testing.T) {
	var mu sync.Mutex
	names, ids, ports := make(map[string]bool), make(map[uint16]bool), make(map[string]bool)
	up := newResolver(t, func(w dns.ResponseWriter, r *dns.Msg) {
		mu.Lock()
		names[r.Question[0].Name], ids[r.Id], ports[w.RemoteAddr().String()] = true, true, true
		mu.Unlock()
		rcode(dns.RcodeNameError)(w, r)
	})
	s := start(t, Config{ResolvConf: resolvConfOf(t, up)}, noNames)
	for range 30 {
		exchange(t, s, "a-rather-long-name.example.", dns.TypeA)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(names) < 25 || len(ids) < 25 || len(ports) < 15 {
		t.Errorf("%d spellings, %d ids, %d ports in 30 questions", len(names), len(ids), len(ports))
	}
}

func TestResolvConfIsReadAgainWhenItChanges(t *testing.T) {
	one, two := newResolver(t, records("x.example. 60 IN A 1.1.1.1")), newResolver(t, records("x.example. 60 IN A 2.2.2.2"))
	path := resolvConfOf(t, one)
	c := &clock{}
	s := start(t, Config{ResolvConf: path, Now: c.now}, noNames)
	exchange(t, s, "x.example.", dns.TypeA)
	writeResolvConf(t, path, two, two)
	c.advance(2 * time.Second)
	if got := values(exchange(t, s, "x.example.", dns.TypeA)); !slices.Equal(got, []string{"2.2.2.2"}) {
		t.Errorf("after resolv.conf changed: %v", got)
	}
	writeResolvConf(t, path, one)
	c.advance(-24 * time.Hour) // the clock is set back to the correct time
	if got := values(exchange(t, s, "x.example.", dns.TypeA)); !slices.Equal(got, []string{"1.1.1.1"}) {
		t.Errorf("after the clock was set back: %v", got)
	}
	writeResolvConf(t, path, two)
	c.advance(2 * time.Second)
	exchange(t, s, "x.example.", dns.TypeA)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	c.advance(2 * time.Minute)
	if got := values(exchange(t, s, "x.example.", dns.TypeA)); !slices.Equal(got, []string{"2.2.2.2"}) {
		t.Errorf("after resolv.conf was removed: %v", got)
	}
	if reason := s.Condition().Reason; !strings.Contains(reason, "resolv.conf") {
		t.Errorf("health: %q", reason)
	}
}

func TestNamedPipeAsResolvConfDoesNotBlock(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "resolv.conf")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	s := start(t, Config{ResolvConf: pipe}, meshTable())
	if c := s.Condition(); !c.OK || !strings.Contains(c.Reason, "not a regular file") {
		t.Errorf("%+v", c)
	}
}

func TestServerDoesNotQueryItself(t *testing.T) {
	path := filepath.Join(t.TempDir(), "resolv.conf")
	s := start(t, Config{ResolvConf: path}, noNames)
	s.forward.use(parseResolvConf([]byte("nameserver " + s.Addresses()[0].String())))
	if got := exchange(t, s, "x.example.", dns.TypeA); got.Rcode != dns.RcodeServerFailure || testutil.ToFloat64(s.metrics.requests) != 1 {
		t.Error(got)
	}
}

func TestCacheLimits(t *testing.T) {
	c := newCache(100, 50_000, time.Now)
	now := time.Now()
	for i := range 1000 {
		c.put(question{name: fmt.Sprint(i)}, &answer{wire: make([]byte, i), stored: now}, time.Hour)
		if c.len() > 100 || c.held > 50_000 {
			t.Fatalf("%d entries, %d bytes", c.len(), c.held)
		}
	}
	if c.get(question{name: "999"}) == nil || c.get(question{name: "1"}) != nil {
		t.Error("the cache did not evict the least recently used entries")
	}
	c.put(question{name: "large"}, &answer{wire: make([]byte, 20_000), stored: now}, time.Hour)
	if c.get(question{name: "large"}) != nil {
		t.Error("one large answer evicts many others")
	}
	c.clear()
	if c.len() != 0 || c.held != 0 {
		t.Errorf("%d entries, %d bytes after clear", c.len(), c.held)
	}
}

func TestLookupExplains(t *testing.T) {
	up := newResolver(t, records("x.example. 60 IN A 1.2.3.4"))
	s := start(t, Config{ResolvConf: resolvConfOf(t, up)}, meshTable())
	for _, c := range []struct{ name, rrtype, source, answer, why string }{
		{"web", "A", "mesh", "10.96.0.1", "host web.shop.svc.cluster.local of the mesh, found by name"},
		{"web", "aaaa", "mesh", "", "does not have an address of this family"},
		{"pay.bank", "A", "mesh", "10.96.0.2", "first search domain"},
		{"x.example", "A", "resolver", "1.2.3.4", up.address},
		{"x.example.", "A", "cache", "1.2.3.4", up.address},
		{"1.0.96.10.in-addr.arpa.", "PTR", "mesh", "web.shop", "the address belongs to a host of the mesh"},
	} {
		e, err := s.Lookup(context.Background(), c.name, c.rrtype)
		if err != nil {
			t.Fatal(err)
		}
		explained := false
		for _, step := range e.Steps {
			explained = explained || strings.Contains(step.Why, c.why)
		}
		if e.Source != c.source || !explained || !strings.Contains(strings.Join(e.Answers, " "), c.answer) {
			t.Errorf("%s: %+v", c.name, e)
		}
	}
	if _, err := s.Lookup(context.Background(), "web", "BOGUS"); err == nil {
		t.Error("BOGUS is accepted as a record type")
	}
	if _, err := s.Lookup(context.Background(), "a..b", "A"); err == nil {
		t.Error("a..b is accepted as a name")
	}
}

func TestNamesHandler(t *testing.T) {
	s := start(t, Config{ResolvConf: resolvConfOf(t)}, nil)
	w := httptest.NewRecorder()
	s.NamesHandler().ServeHTTP(w, httptest.NewRequest("GET", "/debug/ndsz", nil))
	if w.Code != 404 || w.Body.String() != "{}" {
		t.Error(w.Code, w.Body)
	}
	s.SetNames(meshTable())
	w = httptest.NewRecorder()
	s.NamesHandler().ServeHTTP(w, httptest.NewRequest("GET", "/debug/ndsz", nil))
	if w.Code != 200 || !strings.Contains(w.Body.String(), `"web.shop.svc.cluster.local":{"ips":["10.96.0.1"],"registry":"Kubernetes","shortname":"web","namespace":"shop"}`) {
		t.Error(w.Code, w.Body)
	}
}

func TestAnswersAreCountedBySource(t *testing.T) {
	up := newResolver(t, records("x.example. 60 IN A 1.2.3.4"))
	registry := prometheus.NewRegistry()
	s := start(t, Config{ResolvConf: resolvConfOf(t, up), Registerer: registry}, meshTable())
	for _, name := range []string{"web.", "x.example.", "x.example."} {
		exchange(t, s, name, dns.TypeA)
	}
	for source, want := range map[string]float64{sourceMesh: 1, sourceResolver: 1, sourceCache: 1} {
		if got := testutil.ToFloat64(s.metrics.answers.WithLabelValues(source)); got != want {
			t.Errorf("%s: %v", source, got)
		}
	}
	if problems, err := testutil.GatherAndLint(registry); err != nil || len(problems) > 0 {
		t.Error(problems, err)
	}
}

// A slow answer does not delay other answers on its connection. It is sent even after the client has closed its side.
func TestAnswersOverTCPAreSentOutOfOrder(t *testing.T) {
	answer, hold := records("slow.example. 0 IN A 10.0.0.1", "quick.example. 0 IN A 10.0.0.2"), make(chan struct{})
	up := newResolver(t, func(w dns.ResponseWriter, m *dns.Msg) {
		if strings.HasPrefix(strings.ToLower(m.Question[0].Name), "slow.") {
			<-hold
		}
		answer(w, m)
	})
	s := start(t, Config{ResolvConf: resolvConfOf(t, up)}, noNames)
	conn, err := net.Dial("tcp", s.Addresses()[0].String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	talk := &dns.Conn{Conn: conn}
	for _, name := range []string{"slow.example.", "quick.example."} {
		if err := talk.WriteMsg(new(dns.Msg).SetQuestion(name, dns.TypeA)); err != nil {
			t.Fatal(err)
		}
	}
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"quick.example.", "slow.example."} {
		m, err := talk.ReadMsg()
		if err != nil {
			t.Fatalf("waiting for the answer to %s: %v", name, err)
		}
		if m.Question[0].Name != name || len(m.Answer) != 1 {
			t.Errorf("the answer is %v, want one for %s", m, name)
		}
		if name == "quick.example." {
			close(hold)
		}
	}
}
