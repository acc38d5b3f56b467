package mesh

import (
	"context"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/mesh/topology"
)

func TestAddressPlanFollowsFromNetwork(t *testing.T) {
	plan := newAddressPlan(78)
	bridge4, bridge6 := plan.bridgeAddresses()
	instances := plan.assignAddresses(&topology.Topology{Workloads: []*topology.Workload{{Name: "a", Replicas: 2}, {Name: "b", Replicas: 1}}})
	var got []string
	for _, i := range instances {
		got = append(got, i.Name+" "+i.Proxy.String()+" "+i.Proxy6.String()+" "+i.StatusAddress().String())
	}
	want := []string{
		"a-1 10.78.1.1 fd50:494c:4f54:4e::1:1 127.0.0.1:15020", "a-2 10.78.2.1 fd50:494c:4f54:4e::2:1 127.0.0.1:15020",
		"b 10.78.3.1 fd50:494c:4f54:4e::3:1 127.0.0.1:15020",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
	if bridge4 != netip.MustParseAddr("10.78.0.1") || bridge6 != netip.MustParseAddr("fd50:494c:4f54:4e::1") || plan.hostAddress() != netip.MustParseAddr("10.78.0.2") {
		t.Errorf("the bridge is %s and %s, the machine %s", bridge4, bridge6, plan.hostAddress())
	}
}

func TestAnnotationsDetermineRedirection(t *testing.T) {
	args := strings.Join(redirectionArgs(&topology.Workload{Annotations: map[string]string{
		"traffic.sidecar.istio.io/excludeOutboundPorts":    "3306",
		"traffic.sidecar.istio.io/excludeInboundPorts":     "9999",
		"traffic.sidecar.istio.io/includeOutboundIPRanges": "10.0.0.0/8",
		"sidecar.istio.io/inject":                          "true",
	}}), " ")
	for _, want := range []string{
		"iptables ", "--istio-local-outbound-ports-exclude=3306", "--istio-local-exclude-ports=9999,15020,15021,15090",
		"--istio-service-cidr=10.0.0.0/8", "--istio-inbound-ports=*", "--proxy-gid=1337",
	} {
		if !strings.Contains(args, want) {
			t.Errorf("no %q in %s", want, args)
		}
	}
}

// If one side closes a direction, the forwarder closes that direction and continues to forward the other. It resets
// connections that it cannot forward.
func TestTCPForwarderSupportsHalfClose(t *testing.T) {
	server, front := listen(t), listen(t)
	accepted := make(chan struct{}, 2)
	go func() {
		for {
			conn, err := server.Accept()
			if err != nil {
				return
			}
			accepted <- struct{}{}
			go func() {
				all, _ := io.ReadAll(conn)
				_, _ = conn.Write([]byte("got " + string(all)))
				_ = conn.Close()
			}()
		}
	}()
	address := server.Addr().String()
	r := newTCPForwarder(front, func(ctx context.Context, _ net.Conn) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "tcp", address)
	})
	conn := dial(t, front)
	_, _ = conn.Write([]byte("hello"))
	_ = conn.CloseWrite()
	if answer, err := io.ReadAll(conn); err != nil || string(answer) != "got hello" {
		t.Errorf("got %q, %v", answer, err)
	}
	<-accepted
	open := dial(t, front)
	<-accepted
	_ = server.Close()
	if refused, err := net.Dial("tcp", front.Addr().String()); err == nil { // an error is also correct: the connection was refused
		answer, err := io.ReadAll(refused)
		_ = refused.Close()
		if err == nil {
			t.Errorf("without a listener the connection was closed normally after %q, want a reset", answer)
		}
	}
	if err := r.close(); err != nil {
		t.Error(err)
	}
	if _, err := io.ReadAll(open); err == nil {
		t.Error("a connection was closed normally, not reset, when the forwarder closed")
	}
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func dial(t *testing.T, to net.Listener) *net.TCPConn {
	t.Helper()
	conn, err := net.Dial("tcp", to.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn.(*net.TCPConn)
}
