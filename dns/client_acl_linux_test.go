package dns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/vishvananda/netlink"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
	"github.com/pilotfish-mesh/pilotfish/internal/testns"
)

// pod and neighbour are the addresses of two machines on one network. The server listens on all addresses of the pod.
var pod, neighbour = netip.MustParseAddr("10.201.0.1"), netip.MustParseAddr("10.201.0.2")

func TestOtherMachinesNeedPermission(t *testing.T) {
	inside, outside := testns.New(t), testns.New(t)
	connect(t, inside, outside)
	for _, c := range []struct {
		what    string
		allowed []netip.Prefix
		answers bool
	}{
		{what: "as it is"},
		{what: "with another network allowed", allowed: []netip.Prefix{netip.MustParsePrefix("10.202.0.0/16")}},
		{what: "with its network allowed", allowed: []netip.Prefix{netip.MustParsePrefix("10.201.0.0/16")}, answers: true},
	} {
		t.Run(c.what, func(t *testing.T) {
			s := startIn(t, inside, c.allowed)
			for _, network := range []string{"udp", "tcp"} {
				if err := queryFrom(inside, network, s); err != nil {
					t.Errorf("query over %s from the machine itself: %v", network, err)
				}
				before := testutil.ToFloat64(s.metrics.dropped.WithLabelValues(dropSource))
				if c.answers {
					if err := queryFrom(outside, network, s); err != nil {
						t.Errorf("by %s, the neighbour: %v", network, err)
					}
					continue
				}
				if got := unanswered(t, outside, network, s, before); got != 0 {
					t.Errorf("by %s, the neighbour: %d bytes", network, got)
				}
			}
		})
	}
}

// connect connects two network namespaces with a veth pair.
func connect(t *testing.T, inside, outside *testns.Namespace) {
	t.Helper()
	up := func(h *netlink.Handle, name string, at netip.Addr) error {
		link, err := h.LinkByName(name)
		if err != nil {
			return err
		}
		address, err := netlink.ParseAddr(at.String() + "/24")
		if err != nil {
			return err
		}
		return errors.Join(h.AddrAdd(link, address), h.LinkSetUp(link))
	}
	inside.Links(t, func(h *netlink.Handle) error {
		pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "in"}, PeerName: "out", PeerNamespace: netlink.NsFd(int(outside.Handle))}
		return errors.Join(h.LinkAdd(pair), up(h, "in", pod))
	})
	outside.Links(t, func(h *netlink.Handle) error { return up(h, "out", neighbour) })
}

func startIn(t *testing.T, n *testns.Namespace, allowed []netip.Prefix) *Server {
	t.Helper()
	var s *Server
	if err := n.Run(func() (err error) {
		s, err = New(Config{Listen: []string{"0.0.0.0:0"}, ResolvConf: resolvConfOf(t), AllowFrom: allowed})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	s.guard.own = func() []netip.Addr { return []netip.Addr{pod} } // the pod's address is not visible in this process's network namespace
	s.SetNames(meshTable())
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return s
}

func meshQuestion() *dns.Msg {
	m := new(dns.Msg)
	m.SetQuestion("web.shop.svc.cluster.local.", dns.TypeA)
	return m
}

// queryFrom queries a mesh name through the pod's external address.
func queryFrom(n *testns.Namespace, network string, s *Server) error {
	conn, err := dialFrom(n, network, s)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	client := dns.Client{Net: network, Timeout: 10 * time.Second}
	answer, _, err := client.ExchangeWithConn(meshQuestion(), &dns.Conn{Conn: conn})
	if err == nil && len(answer.Answer) != 1 {
		err = fmt.Errorf("answered %v", answer)
	}
	return err
}

func dialFrom(n *testns.Namespace, network string, s *Server) (conn net.Conn, err error) {
	err = n.Run(func() (err error) {
		conn, err = net.Dial(network, netip.AddrPortFrom(pod, s.Addresses()[0].Port()).String())
		return err
	})
	return conn, err
}

// unanswered sends a query, waits until the server has dropped it, and returns the number of bytes of the response.
func unanswered(t *testing.T, n *testns.Namespace, network string, s *Server, before float64) int {
	t.Helper()
	conn, err := dialFrom(n, network, s)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_ = (&dns.Conn{Conn: conn}).WriteMsg(meshQuestion()) // fails if the server has already closed the connection
	testenv.Eventually(t, "the question is dropped", func() error {
		if got := testutil.ToFloat64(s.metrics.dropped.WithLabelValues(dropSource)); got != before+1 {
			return fmt.Errorf("%v were", got-before)
		}
		return nil
	})
	timeout := 10 * time.Second // until the server closes the connection
	if network == "udp" {
		timeout = time.Millisecond // a response to a dropped packet would have arrived already
	}
	_ = conn.SetReadDeadline(time.Now().Add(timeout))
	got, err := conn.Read(make([]byte, 512))
	if err == nil || network == "tcp" && errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("by %s: %d bytes, %v", network, got, err)
	}
	return got
}
