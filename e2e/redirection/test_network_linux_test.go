package redirection

import (
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/pilotfish-mesh/pilotfish/internal/testns"
)

// addresses maps the names in test cases to IPv4 and IPv6 addresses.
var addresses = map[string][2]string{
	"own":       {"10.55.0.1", "fd55::1"},    // the pod, towards peer
	"net1":      {"10.56.0.1", "fd56::1"},    // the pod, on its second interface
	"virtual":   {"10.57.0.1", "fd57::1"},    // the pod, towards its virtual machine
	"localhost": {"127.0.0.1", "::1"},        //
	"loop5":     {"127.0.0.5", ""},           // IPv6 has only one loopback address
	"pass":      {"127.0.0.6", "::6"},        // the source address of connections that Envoy forwards to the application
	"mesh":      {"10.60.0.1", "fd60::1"},    // a service of the mesh, on peer
	"other":     {"10.70.0.1", "fd70::1"},    // a service elsewhere, on peer
	"resolver":  {"10.96.0.10", "fd96::10"},  // the one in resolv.conf, on peer
	"resolver2": {"10.96.0.11", "fd96::11"},  // another, on peer
	"outside":   {"10.55.0.2", "fd55::2"},    // peer itself
	"outside1":  {"10.56.0.2", "fd56::2"},    // peer, beyond the second interface
	"machine":   {"10.57.0.2", "fd57::2"},    // the virtual machine
	"far":       {"198.51.100.1", "fdfa::1"}, // a remote client, on peer
	"through1":  {"10.71.0.1", "fd71::1"},    // peer, through the second interface
}

// peers lists the addresses of peer other than those of its links.
var peers = []string{"mesh", "other", "resolver", "resolver2", "far", "through1"}

func address(name string, family int) netip.Addr {
	a, ok := addresses[name]
	if !ok {
		panic("no address " + name)
	}
	if a[family] == "" {
		return netip.Addr{}
	}
	return netip.MustParseAddr(a[family])
}

// testNetwork is a pod with two links to a peer, and one to a virtual machine for which it forwards.
type testNetwork struct {
	pod, peer, machine *testns.Namespace
	proxy              atomic.Pointer[owner] // the owner of connections that the proxy forwards
	mark               atomic.Int32          // the mark of connections that it forwards transparently
	noRetry            bool                  // a missing reply is not retried
}

func newTestNetwork(t testing.TB) *testNetwork {
	t.Helper()
	w := &testNetwork{pod: testns.New(t), peer: testns.New(t), machine: testns.New(t)}
	w.link(t, w.pod, "eth0", "own", w.peer, "eth0", "outside")
	w.link(t, w.pod, "net1", "net1", w.peer, "net1", "outside1")
	w.link(t, w.pod, "vif0", "virtual", w.machine, "eth0", "machine")
	for _, name := range peers {
		w.addAddress(t, w.peer, "lo", name, true)
	}
	for family := range 2 {
		w.route(t, w.pod, "", address("outside", family), family)
		w.route(t, w.pod, "through1", address("outside1", family), family)
		w.route(t, w.peer, "", address("own", family), family)
		w.route(t, w.machine, "", address("virtual", family), family)
	}
	settings := map[string]string{"net/ipv4/ip_forward": "1", "net/ipv6/conf/all/forwarding": "1",
		"net/ipv4/conf/all/rp_filter": "0", "net/ipv4/conf/default/rp_filter": "0"}
	for _, ns := range []*testns.Namespace{w.pod, w.peer} {
		w.settle(t, ns, settings)
	}
	w.installFirewall(t)
	return w
}

// firewall is a third-party firewall in the pod, as many machines have one. It accepts only replies to queries that
// conntrack knows.
const firewall = `table inet firewall {
	chain in { type filter hook input priority filter; iifname != "lo" udp sport 53 ct state new drop; }
}`

// installFirewall installs the firewall if nft is available.
func (w *testNetwork) installFirewall(t testing.TB) {
	t.Helper()
	nft, err := exec.LookPath("nft")
	if err != nil {
		t.Log("without a firewall: nft is not installed")
		return
	}
	err = w.pod.Run(func() error {
		cmd := exec.Command(nft, "-f", "-")
		cmd.Stdin = strings.NewReader(firewall)
		return cmd.Run()
	})
	if err != nil {
		t.Fatalf("nft: %v", err)
	}
}

func (w *testNetwork) settle(t testing.TB, ns *testns.Namespace, settings map[string]string) {
	t.Helper()
	err := ns.Run(func() error {
		for name, value := range settings {
			// /proc/sys shows the namespace of the thread that opens it.
			if err := os.WriteFile("/proc/sys/"+name, []byte(value), 0o644); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func (w *testNetwork) link(t testing.TB, a *testns.Namespace, nameA, addressA string, b *testns.Namespace, nameB, addressB string) {
	t.Helper()
	a.Links(t, func(h *netlink.Handle) error {
		return h.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: nameA, Flags: net.FlagUp},
			PeerName: nameB, PeerNamespace: netlink.NsFd(b.Handle)})
	})
	w.addAddress(t, a, nameA, addressA, false)
	w.addAddress(t, b, nameB, addressB, false)
}

// addAddress adds both addresses of a name to a link, usable immediately.
func (w *testNetwork) addAddress(t testing.TB, ns *testns.Namespace, linkName, name string, alone bool) {
	t.Helper()
	ns.Links(t, func(h *netlink.Handle) error {
		link, err := h.LinkByName(linkName)
		if err != nil {
			return err
		}
		if err := h.LinkSetUp(link); err != nil {
			return err
		}
		for family := range 2 {
			a := address(name, family)
			if a.IsLoopback() && a.Is4() {
				continue
			}
			bits := []int{24, 64}[family]
			if alone {
				bits = a.BitLen()
			}
			err := h.AddrReplace(link, &netlink.Addr{Flags: unix.IFA_F_NODAD,
				IPNet: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(bits, a.BitLen())}})
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// route adds a route to the addresses of a name, or a default route.
func (w *testNetwork) route(t testing.TB, ns *testns.Namespace, name string, gateway netip.Addr, family int) {
	t.Helper()
	ns.Links(t, func(h *netlink.Handle) error {
		to := netip.PrefixFrom([]netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()}[family], 0)
		if name != "" {
			to = netip.PrefixFrom(address(name, family), address(name, family).BitLen())
		}
		return h.RouteReplace(&netlink.Route{Gw: gateway.AsSlice(),
			Dst: &net.IPNet{IP: to.Addr().AsSlice(), Mask: net.CIDRMask(to.Bits(), to.Addr().BitLen())}})
	})
}

// flushConntrack deletes all conntrack entries of the pod, so that they do not affect the next options.
func (w *testNetwork) flushConntrack(t testing.TB) {
	t.Helper()
	w.pod.Links(t, func(h *netlink.Handle) error { return h.ConntrackTableFlush(netlink.ConntrackTable) })
}

// requirePrograms skips the test if a program is missing.
func requirePrograms(t testing.TB, programs ...string) {
	t.Helper()
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			t.Skipf("%s is not installed", p)
		}
	}
}

// isPeers reports whether peer has the address of the name.
func isPeers(name string) bool {
	return slices.Contains(peers, name) || name == "outside" || name == "outside1"
}
