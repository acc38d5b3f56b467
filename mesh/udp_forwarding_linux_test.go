package mesh

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/controlplane"
	"github.com/pilotfish-mesh/pilotfish/mesh/topology"
)

func TestUDPToOutsideIsRejected(t *testing.T) {
	needNamespaces(t)
	claimed, err := Captured{}.Claim(testTopology(t, oneApp), Resources{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	p := claimed.(*capturedPlacement)
	defer p.Release()
	at, err := p.newSandbox(p.instances[0])
	if err != nil {
		t.Fatal(err)
	}
	// The last address is in the range of virtual service addresses.
	for _, to := range []string{"192.0.2.9:7000", "[2001:db8::9]:7000", "240.1.2.3:7000"} {
		conn, err := at.namespace.Dial(context.Background(), "udp", to)
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
		_, err = conn.Write([]byte("anybody?"))
		if err == nil {
			_, err = conn.Read(make([]byte, 10))
		}
		if !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("a datagram to %s: got %v, want connection refused", to, err)
		}
		_ = conn.Close()
	}
}

// When a service is removed, its senders are refused, even those that have sent packets to an instance before. Other
// services are not affected.
func TestStaleUDPFlowsAreDeleted(t *testing.T) {
	needNamespaces(t)
	claimed, err := Captured{}.Claim(testTopology(t, oneApp), Resources{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	p := claimed.(*capturedPlacement)
	defer p.Release()
	at, err := p.newSandbox(p.instances[0])
	if err != nil {
		t.Fatal(err)
	}
	var server net.PacketConn
	if err := at.namespace.Do(func() (err error) {
		server, err = net.ListenPacket("udp", netip.AddrPortFrom(p.instances[0].App, 0).String())
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	go func() {
		for buf := make([]byte, 10); ; {
			n, from, err := server.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = server.WriteTo(buf[:n], from)
		}
	}()
	service := controlplane.ForwardedPort{Address: netip.MustParseAddrPort("240.1.2.3:7000"),
		Endpoints: []netip.AddrPort{netip.MustParseAddrPort(server.LocalAddr().String())}}
	leads := &udpForwarder{namespace: at.namespace}
	if err := leads.update([]controlplane.ForwardedPort{service}); err != nil {
		t.Fatal(err)
	}
	conn, err := at.namespace.Dial(context.Background(), "udp", service.Address.String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ask := func() error {
		_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
		_, err := conn.Write([]byte("hello"))
		if err == nil {
			_, err = conn.Read(make([]byte, 10))
		}
		return err
	}
	if err := ask(); err != nil {
		t.Fatalf("while the service exists: %v", err)
	}
	other := controlplane.ForwardedPort{Address: netip.MustParseAddrPort("240.1.2.4:7000"), Endpoints: service.Endpoints}
	if err := leads.update([]controlplane.ForwardedPort{other}); err != nil {
		t.Fatal(err)
	}
	if err := ask(); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("after the service was removed: got %v, want connection refused", err)
	}
}

func TestFailedUDPForwardingIsRetried(t *testing.T) {
	tries, fails := 0, true
	r := newSilentRunners("a")[0]
	r.attachment.ForwardPorts = func([]controlplane.ForwardedPort) error {
		if tries++; fails {
			return errors.New("no room")
		}
		return nil
	}
	ports := []controlplane.ForwardedPort{{Address: netip.MustParseAddrPort("240.1.2.3:7000")}}
	led := &udpState{}
	r.mesh.updateInstanceUDP(r, led, ports)
	r.mesh.updateInstanceUDP(r, led, ports)
	fails = false
	for range 3 {
		r.mesh.updateInstanceUDP(r, led, ports)
	}
	if tries != 3 {
		t.Errorf("got %d attempts, want two that fail and one that succeeds", tries)
	}
}

const udpWorkloads = `
  config: istio
  workloads:
  - name: a
    replicas: 2
    command: ["${PILOTFISH}", caller]
    env: {PILOTFISH_APP_ADDRESS: "", PORT_UDP: "7000"}
    ports: [{name: http, port: 9080, protocol: HTTP}, {name: udp, port: 7000, protocol: UDP}]
  - name: b
    command: ["${PILOTFISH}", caller]
    env: {PILOTFISH_APP_ADDRESS: ""}
    ports: [{name: http, port: 9080, protocol: HTTP}]
`

const udpServices = `
apiVersion: v1
kind: Service
metadata: {name: a}
spec:
  selector: {app: a}
  ports: [{name: http, port: 80, targetPort: 9080}, {name: udp, port: 700, targetPort: 7000, protocol: UDP}]
---
apiVersion: v1
kind: Service
metadata: {name: each-a}
spec:
  clusterIP: None
  selector: {app: a}
  ports: [{name: tcp, port: 9080, appProtocol: tcp}, {name: udp, port: 7000, protocol: UDP}]
---
apiVersion: v1
kind: Service
metadata: {name: alone}
spec:
  clusterIP: None
  selector: {app: a}
  ports: [{name: udp, port: 7000, protocol: UDP}]
`

// sendUDP sends a packet from an instance's sandbox, and returns the answer or the error.
func (r *testMesh) sendUDP(from, to string) string {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	conn, err := r.Dial(ctx, from, "udp", to)
	if err != nil {
		return err.Error()
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
	answer := make([]byte, 100)
	if _, err = conn.Write([]byte("who?")); err == nil {
		var n int
		if n, err = conn.Read(answer); err == nil {
			return string(answer[:n])
		}
	}
	return err.Error()
}

func TestUDPReachesServicesByName(t *testing.T) {
	needNamespaces(t)
	cfg := testConfig(t, topologyWith(t, udpWorkloads, udpServices))
	cfg.Network, cfg.AgentCommand = Captured{}, []string{os.Args[0], "agent"}
	m := startMesh(t, cfg)
	m.waitReady()
	a1, a2, b := m.Instances()[0], m.Instances()[1], m.Instances()[2]
	answer := map[string]int{}
	eventually(t, "responses of both instances", func() bool {
		answer[m.sendUDP("b", "a:700")]++
		return answer["a-1 was called from "+b.App.String()] > 0 && answer["a-2 was called from "+b.App.String()] > 0
	})
	eventually(t, "a response of the instance to itself", func() bool { return m.sendUDP("a-1", "a:700") == "a-1 was called from "+a1.App.String() })
	for _, to := range []string{"a-1.each-a:7000", "each-a:7000", "alone:7000", "a-2.alone:7000"} {
		if got := m.sendUDP("b", to); !strings.HasSuffix(got, " was called from "+b.App.String()) {
			t.Errorf("%s: %s", to, got)
		}
	}
	m.headlessNamesAreInstances(a1, a2)

	// After the instance of a sender's packets stops, the packets are sent to the other instance. When no instance is
	// left, they are refused.
	conn, err := m.Dial(context.Background(), "b", "udp", "a:700")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	m.instanceOf(a1).deregister()
	eventually(t, "the UDP-only service has only the second instance", func() bool {
		found, err := m.sandboxOf("b").lookup(context.Background(), "alone")
		return err == nil && len(found) == 1 && found[0] == a2.App.String()
	})
	send := func() string {
		_ = conn.SetDeadline(time.Now().Add(time.Second))
		_, _ = conn.Write([]byte("who?"))
		answer := make([]byte, 100)
		n, _ := conn.Read(answer)
		return string(answer[:n])
	}
	for range 20 {
		eventually(t, "a response of the second instance", func() bool { return strings.HasPrefix(send(), "a-2") })
	}
	m.instanceOf(a2).deregister()
	eventually(t, "datagrams are refused without an instance", func() bool { return strings.Contains(m.sendUDP("b", "a:700"), "refused") })
}

// The name of a headless service resolves to all instances, and each instance has its own name.
func (r *testMesh) headlessNamesAreInstances(all ...*topology.Instance) {
	r.t.Helper()
	at := r.sandboxOf("b")
	eventually(r.t, "the addresses of the instances", func() bool {
		found, err := at.lookup(context.Background(), "each-a")
		return err == nil && len(found) == len(all)
	})
	for _, i := range all {
		name := i.Name + ".each-a"
		if found, err := at.lookup(context.Background(), name); err != nil || len(found) != 1 || found[0] != i.App.String() {
			r.t.Errorf("%s is %v, %v", name, found, err)
		}
		if answer := getBody(r.client("b"), "http://"+name+":9080/who"); !strings.HasPrefix(answer, "200 "+i.Name+" was called by") {
			r.t.Errorf("%s returns %s", name, answer)
		}
	}
}

func (r *testMesh) instanceOf(i *topology.Instance) *instanceRunner {
	for _, one := range r.snapshotRunners() {
		if one.instance == i {
			return one
		}
	}
	r.t.Fatalf("instance %s does not run", i.Name)
	return nil
}
