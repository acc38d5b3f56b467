package hostile

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
	"github.com/pilotfish-mesh/pilotfish/internal/testns"
)

// The resolver of a dnsProxy answers the names of one zone and is silent about those of the other.
const (
	answeredZone   = "answered.example."
	unansweredZone = "unanswered.example."
	cachedName     = "cached." + answeredZone
)

// dnsProxy is an agent without Envoy that answers DNS on port 53 of a network namespace. Without a control plane it forwards
// all queries to its resolver.
type dnsProxy struct {
	space *testns.Namespace
	agent *exec.Cmd
}

// startDNSProxy starts an agent and its resolver, and waits until the agent has cached cachedName.
func startDNSProxy(t *testing.T) *dnsProxy {
	t.Helper()
	s := &dnsProxy{space: testns.New(t)}
	s.startResolver(t)
	dir := t.TempDir()
	conf := filepath.Join(dir, "resolv.conf")
	if err := os.WriteFile(conf, []byte("nameserver 127.0.0.2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.agent = exec.Command(testenv.Bin(t, "pilotfish-agent"), "proxy", "sidecar")
	s.agent.Dir = dir
	s.agent.Env = []string{
		"DISABLE_ENVOY=true", "ISTIO_META_DNS_CAPTURE=true", "DNS_PROXY_ADDR=127.0.0.1:53", "DNS_RESOLV_CONF=" + conf,
		"INSTANCE_IP=127.0.0.1", "PROXY_CONFIG={discoveryAddress: '127.0.0.1:15012'}",
	}
	s.space.Start(t, s.agent)
	testenv.Eventually(t, "the agent listens on port 53", func() error {
		return s.space.Run(func() error {
			conn, err := net.Dial("tcp", "127.0.0.1:53")
			if err == nil {
				_ = conn.Close()
			}
			return err
		})
	})
	s.mustAnswer(t, "udp", cachedName)
	return s
}

// startResolver answers queries at 127.0.0.2:53 of the namespace.
func (s *dnsProxy) startResolver(t *testing.T) {
	t.Helper()
	var packets net.PacketConn
	if err := s.space.Run(func() (err error) {
		packets, err = net.ListenPacket("udp", "127.0.0.2:53")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	server := &dns.Server{PacketConn: packets, Handler: dns.HandlerFunc(answerZone)}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = server.ActivateAndServe()
	}()
	t.Cleanup(func() {
		_ = packets.Close()
		<-ended
	})
}

func answerZone(w dns.ResponseWriter, query *dns.Msg) {
	if !strings.HasSuffix(strings.ToLower(query.Question[0].Name), answeredZone) ||
		strings.HasSuffix(strings.ToLower(query.Question[0].Name), unansweredZone) {
		return
	}
	answer := new(dns.Msg)
	answer.SetReply(query)
	record, err := dns.NewRR(query.Question[0].Name + " 3600 IN A 192.0.2.1")
	if err == nil {
		answer.Answer = []dns.RR{record}
	}
	_ = w.WriteMsg(answer)
}

// memory returns the resident memory of the agent, in bytes.
func (s *dnsProxy) memory(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", s.agent.Process.Pid))
	var total, resident int
	if err == nil {
		_, err = fmt.Sscan(string(text), &total, &resident)
	}
	if err != nil {
		t.Fatalf("reading the agent's memory: %v", err)
	}
	return resident * os.Getpagesize()
}
