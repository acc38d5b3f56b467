package hostile

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// dnsAttacks are attempts to exhaust the agent's DNS proxy.
var dnsAttacks = []attack{
	{
		name: "DNS over UDP: a flood of names that no resolver answers", position: application,
		limit: "1,024 queries wait for resolvers, and the agent's memory grows by less than 64 MiB", service: "cached names are answered at once",
		run: floodByUDP,
	},
	{
		name: "DNS over TCP: a flood of queries whose responses are not read", position: application,
		limit: "256 connections, and the agent's memory grows by less than 64 MiB", service: "a new client is answered over TCP",
		run: floodByTCP,
	},
	{
		name: "DNS over TCP: idle connections use all slots", position: application,
		limit: "256 connections", service: "a new client is answered over TCP",
		run: holdIdleDNSConnections,
	},
	{
		name: "DNS: malformed packets", position: application,
		limit: "the packets are dropped or refused", service: "lookups are answered over UDP and TCP",
		run: sendMalformedDNS,
	},
}

func floodByUDP(t *testing.T) {
	s := startDNSProxy(t)
	before := s.memory(t)
	conn := s.dial(t, "udp")
	for i := range 20_000 {
		_, _ = conn.Write(pack(t, fmt.Sprintf("n%d.%s", i, unansweredZone)))
		if i%2_000 == 0 {
			s.mustAnswer(t, "udp", cachedName)
		}
	}
	s.mustAnswer(t, "udp", cachedName)
	if grown := s.memory(t) - before; grown > 64<<20 {
		t.Errorf("the agent's memory grew by %d MiB", grown>>20)
	}
}

func floodByTCP(t *testing.T) {
	s := startDNSProxy(t)
	before := s.memory(t)
	var queries []byte
	for i := range 500 {
		queries = append(queries, frame(pack(t, cachedName))...)
		queries = append(queries, frame(pack(t, fmt.Sprintf("n%d.%s", i, unansweredZone)))...)
	}
	for range 64 {
		conn := s.dial(t, "tcp")
		_ = conn.SetWriteDeadline(time.Now().Add(50 * time.Millisecond)) // the agent stops reading before
		_, _ = conn.Write(queries)
	}
	s.mustAnswer(t, "tcp", cachedName)
	if grown := s.memory(t) - before; grown > 64<<20 {
		t.Errorf("the agent's memory grew by %d MiB", grown>>20)
	}
}

func holdIdleDNSConnections(t *testing.T) {
	s := startDNSProxy(t)
	for i := range 600 {
		conn := s.dial(t, "tcp")
		if i%2 == 0 {
			_, _ = conn.Write([]byte{0}) // half of a length
		}
	}
	s.mustAnswer(t, "tcp", cachedName)
	s.mustAnswer(t, "tcp", "fresh."+answeredZone)
}

func sendMalformedDNS(t *testing.T) {
	s := startDNSProxy(t)
	random := rand.New(rand.NewPCG(1, 2))
	query := pack(t, cachedName)
	packets := [][]byte{
		nil, {0}, query[:11], query[:len(query)-3],
		append(query[:12:12], 0xc0, 12, 0, 1, 0, 1),           // a name that points to itself
		append(query[:12:12], 63, 'a'),                        // a label that is cut off
		binary.BigEndian.AppendUint16(query[:4:4], 0xffff),    // 65,535 questions
		append([]byte{0, 1, 0x80, 0}, query[4:]...),           // a response
		append(query[:len(query):len(query)], query[12:]...),  // more than a question
		append([]byte{0, 1, 0x28, 0}, make([]byte, 4_000)...), // an update of zeros
	}
	for range 500 {
		broken := append([]byte(nil), query...)
		for range 1 + random.IntN(8) {
			broken[random.IntN(len(broken))] = byte(random.Uint32())
		}
		packets = append(packets, broken)
	}
	udp := s.dial(t, "udp")
	for _, packet := range packets {
		_, _ = udp.Write(packet)
	}
	for i, packet := range packets[:40] {
		conn := s.dial(t, "tcp")
		length := len(packet)
		if i%2 == 0 {
			length = 0xffff
		}
		_, _ = conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(length)), packet...))
	}
	s.mustAnswer(t, "udp", cachedName)
	s.mustAnswer(t, "tcp", "fresh."+answeredZone)
}

// mustAnswer looks a name up. A lookup over UDP is retried, because the kernel drops packets while the agent is busy; one over
// TCP is not.
func (s *dnsProxy) mustAnswer(t *testing.T, network, name string) {
	t.Helper()
	if network == "tcp" {
		if err := s.lookup(t, network, name, 8*time.Second); err != nil { // less than an idle connection is held for
			t.Fatalf("%s over %s: %v", name, network, err)
		}
		return
	}
	testenv.Eventually(t, name+" is answered over "+network, func() error {
		return s.lookup(t, network, name, 200*time.Millisecond)
	})
}

// lookup looks a name up on a new connection.
func (s *dnsProxy) lookup(t *testing.T, network, name string, timeout time.Duration) error {
	t.Helper()
	conn := &dns.Conn{Conn: s.dial(t, network)}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(timeout))
	if err := conn.WriteMsg(question(name)); err != nil {
		return err
	}
	answer, err := conn.ReadMsg()
	if err == nil && len(answer.Answer) != 1 {
		err = fmt.Errorf("the answer is %s", answer)
	}
	return err
}

func question(name string) *dns.Msg {
	m := new(dns.Msg)
	m.SetQuestion(name, dns.TypeA)
	return m
}

func pack(t *testing.T, name string) []byte {
	t.Helper()
	wire, err := question(name).Pack()
	if err != nil {
		t.Fatal(err)
	}
	return wire
}

// frame puts a message's length in front of it, as on TCP.
func frame(message []byte) []byte {
	return append(binary.BigEndian.AppendUint16(nil, uint16(len(message))), message...)
}

// dial connects to the agent's DNS proxy from inside its namespace, until the test ends.
func (s *dnsProxy) dial(t *testing.T, network string) net.Conn {
	t.Helper()
	var conn net.Conn
	if err := s.space.Run(func() (err error) {
		conn, err = net.Dial(network, "127.0.0.1:53")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}
