package dns

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

const (
	comparedNames = 10_000
	meshZone      = "shop.svc.cluster.local."
	outerZone     = "outer.example."
)

// transport is a network with a maximum answer size.
type transport struct {
	network string
	edns    uint16
}

var transports = []transport{{"udp", 0}, {"udp", 1232}, {"udp", 4096}, {"tcp", 0}, {"tcp", 1232}}

// Answers for mesh names equal those of an authoritative server with the same data, and forwarded answers equal those
// of the resolver: codes, records and truncation.
func TestAnswersEqualUnbound(t *testing.T) {
	unbound := startUnbound(t)
	mesh := start(t, Config{ResolvConf: resolvConfAt(t, unbound)}, comparedTable())
	forwarding := start(t, Config{ResolvConf: resolvConfAt(t, unbound)}, &Table{})
	for _, c := range []struct {
		what      string
		server    *Server
		questions []dns.Question
		exact     bool // also compare the header and TTLs, for names in the table
	}{
		{"names of the mesh", mesh, meshQuestions(), true},
		{"forwarded names", forwarding, outerQuestions(), false},
		{"forwarded names again", forwarding, outerQuestions(), false},
	} {
		var asking sync.WaitGroup
		for _, tr := range transports {
			asking.Go(func() { compare(t, c.what, tr, c.server.Addresses()[0].String(), unbound, c.questions, c.exact) })
		}
		asking.Wait()
	}
}

// compare queries both servers and reports the first differences.
func compare(t *testing.T, what string, tr transport, ours, theirs string, questions []dns.Question, exact bool) {
	a, b := &querier{at: ours, transport: tr}, &querier{at: theirs, transport: tr}
	defer a.close()
	defer b.close()
	differences := 0
	for _, q := range questions {
		got, err := a.query(q)
		want, err2 := b.query(q)
		if err := errors.Join(err, err2); err != nil {
			t.Errorf("%s by %v: %s: %v", what, tr, q.String(), err)
			return
		}
		if g, w := summary(got, exact), summary(want, exact); g != w {
			t.Errorf("%s by %v: %s:\n%.400s\nunbound:\n%.400s", what, tr, q.String(), g, w)
			if differences++; differences == 3 {
				return
			}
		}
	}
}

// summary returns the parts of a response that must be equal. It omits the order of records, and the records of a
// truncated response.
func summary(m *dns.Msg, exact bool) string {
	lines := []string{}
	for _, rr := range m.Answer {
		if !exact {
			rr.Header().Ttl = 0
		}
		lines = append(lines, rr.String())
	}
	slices.Sort(lines)
	if m.Truncated {
		lines = []string{"truncated"}
	}
	head := dns.RcodeToString[m.Rcode]
	if exact && m.Rcode == dns.RcodeSuccess {
		head += fmt.Sprintf(" authoritative %v", m.Authoritative)
	}
	return head + "\n" + strings.Join(lines, "\n")
}

// querier is a client that reuses its connection.
type querier struct {
	at string
	transport
	conn *dns.Conn
}

func (a *querier) close() {
	if a.conn != nil {
		_ = a.conn.Close()
	}
}

func (a *querier) query(q dns.Question) (*dns.Msg, error) {
	m := new(dns.Msg)
	m.SetQuestion(q.Name, q.Qtype)
	if a.edns > 0 {
		m.SetEdns0(a.edns, false)
	}
	var got *dns.Msg
	var err error
	for range 3 { // the server may have closed the idle connection
		if a.conn == nil {
			if a.conn, err = dns.DialTimeout(a.network, a.at, 5*time.Second); err != nil {
				return nil, err
			}
			a.conn.UDPSize = 65535
		}
		client := dns.Client{Net: a.network, Timeout: 5 * time.Second}
		if got, _, err = client.ExchangeWithConn(m, a.conn); err == nil {
			return got, nil
		}
		a.close()
		a.conn = nil
	}
	return nil, err
}

// addressesOf returns the addresses of the i-th name: one or several, of one family or both, and for some names more than
// fit into a small response.
func addressesOf(i int) (ips []netip.Addr) {
	v4, v6 := 1, 0
	switch i % 10 {
	case 4:
		v6 = 1
	case 5:
		v4 = 3
	case 6:
		v4, v6 = 0, 2
	case 7:
		v4 = 60
	case 8:
		v4, v6 = 25, 20
	case 9:
		v4 = 1
		if i%100 == 99 {
			v4 = 300
		}
	}
	for n := range v4 {
		ips = append(ips, netip.AddrFrom4([4]byte{10, byte(n), byte(i >> 8), byte(i)}))
	}
	for n := range v6 {
		ips = append(ips, netip.AddrFrom16([16]byte{0: 0xfd, 13: byte(n), 14: byte(i >> 8), 15: byte(i)}))
	}
	return ips
}

func comparedTable() *Table {
	table := &Table{Hosts: map[string]Entry{}}
	for i := range comparedNames {
		table.Hosts[fmt.Sprintf("n%d.%s", i, strings.TrimSuffix(meshZone, "."))] = Entry{IPs: addressesOf(i), Registry: "External"}
	}
	return table
}

func meshQuestions() []dns.Question {
	var all []dns.Question
	for i := range comparedNames {
		name := fmt.Sprintf("n%d.%s", i, meshZone)
		if i%50 == 0 {
			name = fmt.Sprintf("missing%d.%s", i, meshZone)
		}
		if i%7 == 0 {
			name = strings.ToUpper(name)
		}
		qtype := dns.TypeA
		if i%3 == 0 {
			qtype = dns.TypeAAAA
		}
		all = append(all, dns.Question{Name: name, Qtype: qtype, Qclass: dns.ClassINET})
	}
	return all
}

// outerRecords returns records of many types and sizes for the i-th name outside the mesh.
func outerRecords(i int) []string {
	name := fmt.Sprintf("o%d.%s", i, outerZone)
	switch i % 8 {
	case 1:
		return []string{name + " 300 IN MX 10 mx1." + outerZone, name + " 300 IN MX 20 mx2." + outerZone}
	case 2:
		return []string{name + " 300 IN TXT \"" + strings.Repeat("x", 200) + "\""}
	case 3:
		var all []string
		for n := range 3 + 2*(i%20) { // up to about 10 KB of records
			all = append(all, fmt.Sprintf("%s 300 IN TXT \"%d %s\"", name, n, strings.Repeat("y", 240)))
		}
		return all
	case 4:
		return []string{name + " 300 IN CNAME o0." + outerZone}
	case 5:
		return []string{name + " 300 IN SRV 1 2 8080 o0." + outerZone}
	case 6:
		return []string{name + " 300 IN AAAA fd00::" + fmt.Sprintf("%x", i)}
	}
	return []string{name + " 300 IN A 192.0.2.1", name + " 300 IN A 192.0.2.2"}
}

func outerQuestions() []dns.Question {
	types := []uint16{dns.TypeA, dns.TypeMX, dns.TypeTXT, dns.TypeTXT, dns.TypeCNAME, dns.TypeSRV, dns.TypeAAAA, dns.TypeAAAA}
	var all []dns.Question
	for i := range comparedNames / 4 {
		name := fmt.Sprintf("o%d.%s", i, outerZone)
		if i%40 == 0 {
			name = fmt.Sprintf("missing%d.%s", i, outerZone)
		}
		all = append(all, dns.Question{Name: name, Qtype: types[i%8], Qclass: dns.ClassINET})
	}
	return all
}

func resolvConfAt(t *testing.T, resolver string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(path, []byte("nameserver "+resolver+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// startUnbound runs unbound with all names as local data.
func startUnbound(t *testing.T) string {
	t.Helper()
	binary, err := exec.LookPath("unbound")
	if err != nil {
		t.Skip("unbound is not installed: run scripts/unbound.sh")
	}
	free, err := listenAt("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := free.address()
	closeAll([]socket{free})
	conf := fmt.Sprintf(`server:
  interface: %s@%d
  do-daemonize: no
  chroot: ""
  username: ""
  pidfile: ""
  directory: %q
  use-syslog: no
  verbosity: 0
  num-threads: 1
  module-config: "iterator"
  edns-buffer-size: 4096
  max-udp-size: 4096
  incoming-num-tcp: 50
  rrset-roundrobin: no
  access-control: 127.0.0.0/8 allow
remote-control:
  control-enable: no
server:
`, at.Addr(), at.Port(), t.TempDir())
	var text bytes.Buffer
	text.WriteString(conf)
	for _, zone := range []string{meshZone, outerZone} {
		fmt.Fprintf(&text, "  local-zone: %q static\n  local-data: %q\n", zone, zone+" 60 IN SOA ns."+zone+" root."+zone+" 1 1 1 1 60")
	}
	for i := range comparedNames {
		for _, ip := range addressesOf(i) {
			kind := "A"
			if ip.Is6() {
				kind = "AAAA"
			}
			fmt.Fprintf(&text, "  local-data: \"n%d.%s 30 IN %s %s\"\n", i, meshZone, kind, ip)
		}
	}
	for i := range comparedNames / 4 {
		for _, record := range outerRecords(i) {
			fmt.Fprintf(&text, "  local-data: '%s'\n", record)
		}
	}
	file := filepath.Join(t.TempDir(), "unbound.conf")
	if err := os.WriteFile(file, text.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	run(t, binary, "-d", "-p", "-c", file)
	testenv.Eventually(t, "unbound answers", func() error {
		conn, err := net.DialTimeout("tcp", at.String(), time.Second)
		if err == nil {
			_ = conn.Close()
		}
		return err
	})
	return at.String()
}

// run runs a program until the end of the test.
func run(t *testing.T, name string, args ...string) {
	t.Helper()
	cmd := exec.Command(name, args...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("%s: %s", name, out.String())
		}
	})
}
