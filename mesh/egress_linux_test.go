package mesh

import (
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
	"github.com/pilotfish-mesh/pilotfish/internal/testns"
)

// playDial connects to an address and prints what the server sends.
func playDial(args []string) { os.Stdout.WriteString(callTCP(args[0])) }

// A network namespace replaces the machine. It has non-loopback addresses, and a route into the first network that a
// mesh would choose, so the mesh must choose another one.
func TestCapturedMeshReachesHostNetworks(t *testing.T) {
	needNamespaces(t)
	machine := testns.New(t)
	machine.Links(t, func(h *netlink.Handle) error {
		return addHostAddresses(h, "192.0.2.1/24", "2001:db8::1/64", "10.77.3.1/24", "241.1.2.3/24")
	})
	var listeners []net.Listener
	for _, address := range []string{"192.0.2.1:7000", "[2001:db8::1]:7000", "241.1.2.3:7000"} {
		err := machine.Run(func() error {
			l, err := net.Listen("tcp", address)
			listeners = append(listeners, l)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, l := range listeners {
		t.Cleanup(func() { _ = l.Close() })
		go greet(l)
	}

	top, dir := capturedTopology(t), shortDir(t)
	answer, _ := machine.Start(t, exec.Command(os.Args[0], "up", top.File, dir, testenv.Envoy(t), "guarded", "agent", "captured"))
	eventually(t, "the mesh", func() bool { return strings.Contains(answer.String(), "ready") })
	for _, address := range []string{"192.0.2.1:7000", "[2001:db8::1]:7000"} {
		out, err := exec.Command(os.Args[0], "exec", dir, top.Name, "b", os.Args[0], "dial", address).CombinedOutput()
		if err != nil || string(out) != "welcome" {
			t.Errorf("connecting to %s: got %s, %v", address, out, err)
		}
	}
	if out, _ := exec.Command(os.Args[0], "exec", dir, top.Name, "b", os.Args[0], "dial", "241.1.2.3:7000").CombinedOutput(); string(out) == "welcome" {
		t.Error("a connection to a virtual service address left the mesh")
	}
	out, err := exec.Command(os.Args[0], "exec", dir, top.Name, "b", "sh", "-c", "echo $PILOTFISH_APP_ADDRESS $UPSTREAM_A; cat /etc/resolv.conf").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "a.default.svc.cluster.local:9000") || !strings.Contains(string(out), "nameserver 10.78.0.1") {
		t.Errorf("with a route to 10.77.3.0/24: %s, %v", out, err)
	}
}

// addHostAddresses creates a dummy link with the addresses.
func addHostAddresses(h *netlink.Handle, addresses ...string) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "outside"
	if err := h.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "nowhere"}); err != nil {
		return err
	}
	for _, name := range []string{"outside", "nowhere"} {
		link, err := h.LinkByName(name)
		if err != nil {
			return err
		}
		if err := h.LinkSetUp(link); err != nil {
			return err
		}
	}
	link, err := h.LinkByName("outside")
	for _, text := range addresses {
		p := netip.MustParsePrefix(text)
		a := &netlink.Addr{IPNet: &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}}
		if p.Addr().Is6() {
			a.Flags = unix.IFA_F_NODAD
		}
		if err == nil {
			err = h.AddrAdd(link, a)
		}
	}
	return err
}

func greet(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		_, _ = conn.Write([]byte("welcome"))
		_ = conn.Close()
	}
}
