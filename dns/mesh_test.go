package dns

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"
)

func meshTable() *Table {
	return &Table{Hosts: map[string]Entry{
		"web.shop.svc.cluster.local": {IPs: addresses("10.96.0.1"), Registry: kubernetes, ShortName: "web", Namespace: "shop",
			Ports: []Port{{Name: "http", Protocol: "tcp", Number: 80}, {Name: "dns", Protocol: "udp", Number: 53}}},
		"Pay.bank.svc.cluster.local":       {IPs: addresses("10.96.0.2", "fd00::2"), Registry: kubernetes, ShortName: "pay", Namespace: "bank"},
		"db.shop.svc.cluster.local":        {IPs: addresses("10.0.0.1", "10.0.0.2"), Registry: kubernetes, ShortName: "db", Namespace: "shop"},
		"db-0.db.shop.svc.cluster.local":   {IPs: addresses("10.0.0.1"), Registry: kubernetes, ShortName: "db-0.db", Namespace: "shop"},
		"api.example.com":                  {IPs: addresses("240.240.0.1"), Registry: "External", AltHosts: []string{"api-alt.example.com"}},
		"*.wild.example.com":               {IPs: addresses("240.240.0.2"), Registry: "External"},
		"*.deep.wild.example.com":          {IPs: addresses("240.240.0.3"), Registry: "External"},
		"exact.wild.example.com":           {IPs: addresses("fd00::9"), Registry: "External"},
		"east.bank.svc.other.local":        {IPs: addresses("10.97.0.1"), Registry: kubernetes, ShortName: "east", Namespace: "bank"},
		"noaddress.shop.svc.cluster.local": {Registry: kubernetes, ShortName: "noaddress", Namespace: "shop"},
		"external.shop.svc.cluster.local":  {IPs: addresses("240.240.0.4"), Registry: "External", ShortName: "external", Namespace: "shop"},
		"mapped.example.com":               {IPs: addresses("::ffff:10.1.1.1"), Registry: "External"},
		"six.shop.svc.cluster.local":       {IPs: addresses("fd00::6"), Registry: kubernetes, ShortName: "six", Namespace: "shop"},
	}}
}

func TestMeshNames(t *testing.T) {
	up := newResolver(t, records(`_http._tcp.api.example.com. 60 IN SRV 1 1 8443 api.example.com.`))
	s := start(t, Config{ResolvConf: resolvConfOf(t, up)}, meshTable())
	const ok, no = dns.RcodeSuccess, dns.RcodeNameError
	for _, c := range []struct {
		rule, name string
		qtype      uint16
		rcode      int
		want       []string
	}{
		{"full name", "web.shop.svc.cluster.local.", dns.TypeA, ok, []string{"10.96.0.1"}},
		{"case does not matter", "WEB.Shop.svc.cluster.LOCAL.", dns.TypeA, ok, []string{"10.96.0.1"}},
		{"case of the table does not matter", "pay.bank.svc.cluster.local.", dns.TypeA, ok, []string{"10.96.0.2"}},
		{"own namespace by first label", "web.", dns.TypeA, ok, []string{"10.96.0.1"}},
		{"by the second search domain", "web.shop.", dns.TypeA, ok, []string{"10.96.0.1"}},
		{"by the third search domain", "web.shop.svc.", dns.TypeA, ok, []string{"10.96.0.1"}},
		{"other namespace not by first label", "pay.", dns.TypeA, no, nil},
		{"other namespace", "pay.bank.", dns.TypeA, ok, []string{"10.96.0.2"}},
		{"other family", "pay.bank.", dns.TypeAAAA, ok, []string{"fd00::2"}},
		{"missing IPv6", "web.shop.svc.cluster.local.", dns.TypeAAAA, ok, nil},
		{"missing IPv4", "six.shop.svc.cluster.local.", dns.TypeA, ok, nil},
		{"IPv4 written as IPv6", "mapped.example.com.", dns.TypeA, ok, []string{"10.1.1.1"}},
		{"search domain added to a short form", "pay.bank.shop.svc.cluster.local.", dns.TypeA, ok, []string{"pay.bank.", "10.96.0.2"}},
		{"search domain added to an outer name", "api.example.com.shop.svc.cluster.local.", dns.TypeA, ok, []string{"api.example.com.", "240.240.0.1"}},
		{"search domain added, missing family", "api.example.com.shop.svc.cluster.local.", dns.TypeAAAA, ok, []string{"api.example.com."}},
		{"second search domain added is left to resolvers", "api.example.com.svc.cluster.local.", dns.TypeA, no, nil},
		{"other name", "api-alt.example.com.", dns.TypeA, ok, []string{"240.240.0.1"}},
		{"other cluster domain, in full", "east.bank.svc.other.local.", dns.TypeA, ok, []string{"10.97.0.1"}},
		{"other cluster domain, not by name.namespace", "east.bank.", dns.TypeA, no, nil},
		{"no short form of other registries", "external.", dns.TypeA, no, nil},
		{"no addresses, no name", "noaddress.shop.svc.cluster.local.", dns.TypeA, no, nil},
		{"wildcard", "a.wild.example.com.", dns.TypeA, ok, []string{"240.240.0.2"}},
		{"wildcard covers many labels", "a.b.c.wild.example.com.", dns.TypeA, ok, []string{"240.240.0.2"}},
		{"closest wildcard", "a.deep.wild.example.com.", dns.TypeA, ok, []string{"240.240.0.3"}},
		{"wildcard covers not itself", "wild.example.com.", dns.TypeA, no, nil},
		{"exact name before wildcard, even without the family", "exact.wild.example.com.", dns.TypeA, ok, nil},
		{"wildcard with search domain added", "a.wild.example.com.shop.svc.cluster.local.", dns.TypeA, ok, []string{"a.wild.example.com.", "240.240.0.2"}},
		{"headless", "db.shop.svc.cluster.local.", dns.TypeA, ok, []string{"10.0.0.1", "10.0.0.2"}},
		{"pod of headless", "db-0.db.shop.svc.cluster.local.", dns.TypeA, ok, []string{"10.0.0.1"}},
		{"ANY by UDP has all addresses", "pay.bank.svc.cluster.local.", dns.TypeANY, ok, []string{"10.96.0.2", "fd00::2"}},
		{"PTR", "1.0.96.10.in-addr.arpa.", dns.TypePTR, ok, []string{"web.shop.svc.cluster.local."}},
		{"PTR of a pod of a headless service is the pod", "1.0.0.10.in-addr.arpa.", dns.TypePTR, ok, []string{"db-0.db.shop.svc.cluster.local."}},
		{"PTR IPv6", "2.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.d.f.ip6.arpa.", dns.TypePTR, ok, []string{"pay.bank.svc.cluster.local."}},
		{"PTR of strangers is forwarded", "9.9.9.9.in-addr.arpa.", dns.TypePTR, no, nil},
		{"PTR of no address is forwarded", "x.in-addr.arpa.", dns.TypePTR, no, nil},
		{"SRV", "_http._tcp.web.shop.svc.cluster.local.", dns.TypeSRV, ok, []string{"0 1 80 web.shop.svc.cluster.local."}},
		{"SRV of a short form", "_dns._udp.web.shop.", dns.TypeSRV, ok, []string{"0 1 53 web.shop.svc.cluster.local."}},
		{"SRV of another port", "_grpc._tcp.web.shop.svc.cluster.local.", dns.TypeSRV, ok, nil},
		{"SRV of unknown ports is forwarded", "_http._tcp.api.example.com.", dns.TypeSRV, ok, []string{"1 1 8443 api.example.com."}},
		{"other types of a mesh name are empty, not missing", "api.example.com.", dns.TypeHTTPS, ok, nil},
		{"the root is forwarded", ".", dns.TypeA, no, nil},
	} {
		t.Run(c.rule, func(t *testing.T) {
			got := exchange(t, s, c.name, c.qtype)
			found := values(got)
			slices.Sort(found)
			want := append([]string{}, c.want...)
			slices.Sort(want)
			if diff := cmp.Diff(want, found); diff != "" || got.Rcode != c.rcode {
				t.Errorf("%s %s: %s, %s", c.name, dns.TypeToString[c.qtype], dns.RcodeToString[got.Rcode], diff)
			}
			if !got.RecursionAvailable || got.Truncated {
				t.Errorf("flags: %v", got.MsgHdr)
			}
			// Queries over TCP never use the fast path.
			m := new(dns.Msg)
			m.SetQuestion(c.name, c.qtype)
			if long := put(t, s, "tcp", m); normalize(long) != normalize(got) {
				t.Errorf("by UDP\n%s\nand by TCP\n%s", normalize(got), normalize(long))
			}
		})
	}
}

func TestMeshAnswersHaveConfiguredTTLAndRandomOrder(t *testing.T) {
	table := &Table{Hosts: map[string]Entry{"many.example.com": {}}}
	e := Entry{}
	for i := range 8 {
		e.IPs = append(e.IPs, netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}))
	}
	table.Hosts["many.example.com"] = e
	s := start(t, Config{ResolvConf: resolvConfOf(t), TTL: 7 * time.Second}, table)
	first := make(map[string]bool)
	for range 100 {
		got := exchange(t, s, "many.example.com.", dns.TypeA)
		if len(got.Answer) != 8 || got.Answer[0].Header().Ttl != 7 || !got.Authoritative {
			t.Fatal(got)
		}
		first[values(got)[0]] = true
	}
	if len(first) < 4 { // with 100 random orders of 8 addresses, this is practically impossible
		t.Errorf("addresses that were first in an answer: %v", first)
	}
}

func TestQueriesFailBeforeTheFirstTable(t *testing.T) {
	up := newResolver(t, records("x.example. 60 IN A 1.2.3.4"))
	s := start(t, Config{ResolvConf: resolvConfOf(t, up)}, nil)
	if got := exchange(t, s, "x.example.", dns.TypeA); got.Rcode != dns.RcodeServerFailure {
		t.Error(got)
	}
	if c := s.Condition(); c.OK || !strings.Contains(c.Reason, "not sent a name table yet") {
		t.Errorf("health: %+v", c)
	}
	s.SetNames(&Table{Hosts: map[string]Entry{}})
	if got := exchange(t, s, "x.example.", dns.TypeA); got.Rcode != dns.RcodeSuccess {
		t.Error(got)
	}
	if c := s.Condition(); !c.OK || c.Reason != "" {
		t.Errorf("health: %+v", c)
	}
}

func TestForwardWithoutTable(t *testing.T) {
	up := newResolver(t, records("x.example. 60 IN A 1.2.3.4"))
	s := start(t, Config{ResolvConf: resolvConfOf(t, up), ForwardWithoutTable: true}, nil)
	if got := exchange(t, s, "x.example.", dns.TypeA); got.Rcode != dns.RcodeSuccess || len(got.Answer) != 1 {
		t.Error(got)
	}
}

// After a client has received an answer from a table, it does not receive answers from an earlier table.
func TestTablesAreReplacedAtomically(t *testing.T) {
	const hosts, most = 50, 1 << 16
	s := start(t, Config{ResolvConf: resolvConfOf(t)}, nil)
	of := func(generation int) *Table {
		t := &Table{Hosts: make(map[string]Entry)}
		for i := range hosts {
			t.Hosts[fmt.Sprintf("h%d.example", i)] = Entry{IPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, byte(generation >> 8), byte(generation)})}}
		}
		return t
	}
	s.SetNames(of(0))
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for i := range most {
			select {
			case <-stop:
				return
			default:
				s.SetNames(of(i))
			}
		}
	}()
	seen, last := map[int]bool{}, -1
	for i := range 20 * hosts {
		got := exchange(t, s, fmt.Sprintf("h%d.example.", i%hosts), dns.TypeA)
		if len(got.Answer) != 1 {
			t.Fatal(got)
		}
		ip := got.Answer[0].(*dns.A).A.To4()
		generation := int(ip[2])<<8 | int(ip[3])
		if generation < last {
			t.Fatalf("an answer from table %d after one from table %d", generation, last)
		}
		last, seen[generation] = generation, true
	}
	close(stop)
	<-done
	if len(seen) < 2 {
		t.Errorf("only answers from the tables %v were received, so the test checked nothing", seen)
	}
}

func TestLargeHeadlessServiceIsTruncatedOverUDPOnly(t *testing.T) {
	e := Entry{}
	for i := range 6000 {
		e.IPs = append(e.IPs, netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}))
	}
	s := start(t, Config{ResolvConf: resolvConfOf(t)}, &Table{Hosts: map[string]Entry{"huge.example": e, "big.example": {IPs: e.IPs[:1000]}}})
	m := new(dns.Msg)
	m.SetQuestion("big.example.", dns.TypeA)
	got := put(t, s, "udp", m)
	got.Compress = true
	if !got.Truncated || got.Len() > 512 || len(got.Answer) == 0 {
		t.Errorf("over UDP: truncated %v, %d bytes", got.Truncated, got.Len())
	}
	if got := put(t, s, "tcp", m); got.Truncated || len(got.Answer) != 1000 {
		t.Errorf("over TCP: truncated %v, %d answers", got.Truncated, len(got.Answer))
	}
	m.SetEdns0(1232, false)
	if got := put(t, s, "udp", m); !got.Truncated || len(got.Answer) < 60 || got.IsEdns0() == nil {
		t.Errorf("with EDNS: %d answers", len(got.Answer))
	}
	m.SetQuestion("huge.example.", dns.TypeA)
	if got := put(t, s, "tcp", m); len(got.Answer) < 3000 {
		t.Errorf("more than a message holds: %d answers", len(got.Answer))
	}
}

func TestOtherTypesOfClusterServicesNeedNoResolver(t *testing.T) {
	up := newResolver(t, rcode(dns.RcodeRefused))
	gone := newResolver(t, silent)
	for name, s := range map[string]*Server{
		"refused": start(t, Config{ResolvConf: resolvConfOf(t, up)}, meshTable()),
		"silent":  start(t, Config{ResolvConf: resolvConfOf(t, gone), ForwardTimeout: 50 * time.Millisecond}, meshTable()),
	} {
		if got := exchange(t, s, "web.shop.svc.cluster.local.", dns.TypeHTTPS); got.Rcode != dns.RcodeSuccess || len(got.Answer) != 0 {
			t.Errorf("%s: a service of the cluster: %v", name, got)
		}
		if got := exchange(t, s, "api.example.com.", dns.TypeTXT); got.Rcode == dns.RcodeSuccess {
			t.Errorf("%s: a host outside, which may have texts: %v", name, got)
		}
	}
}
