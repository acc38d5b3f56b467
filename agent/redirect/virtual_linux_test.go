package redirect

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
	"github.com/pilotfish-mesh/pilotfish/internal/testns"
	"github.com/pilotfish-mesh/pilotfish/iptables"
	"github.com/pilotfish-mesh/pilotfish/iptables/nft"
)

var errNoAnswer = errors.New("no answer comes")

// joinNamespaces connects two namespaces by a veth pair.
func joinNamespaces(t *testing.T, a, b *testns.Namespace, nameA, nameB, addressA, addressB string) {
	t.Helper()
	a.Links(t, func(h *netlink.Handle) error {
		return h.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: nameA}, PeerName: nameB, PeerNamespace: netlink.NsFd(b.Handle)})
	})
	for _, end := range []struct {
		ns            *testns.Namespace
		name, address string
	}{{a, nameA, addressA}, {b, nameB, addressB}} {
		end.ns.Links(t, func(h *netlink.Handle) error {
			link, err := h.LinkByName(end.name)
			if err != nil {
				return err
			}
			address, err := netlink.ParseAddr(end.address)
			if err != nil {
				return err
			}
			if err := h.AddrAdd(link, address); err != nil {
				return err
			}
			return h.LinkSetUp(link)
		})
	}
}

func addDefaultRoute(t *testing.T, ns *testns.Namespace, gateway string) {
	t.Helper()
	ns.Links(t, func(h *netlink.Handle) error { return h.RouteAdd(&netlink.Route{Gw: net.ParseIP(gateway)}) })
}

// addMasquerade adds the NAT rules that a launcher of virtual machines installs in their pod.
func addMasquerade(t *testing.T, ns *testns.Namespace) {
	t.Helper()
	err := ns.Run(func() error {
		if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o600); err != nil {
			return err
		}
		c, err := nftables.New()
		if err != nil {
			return err
		}
		table := c.AddTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: "vm"})
		chain := c.AddChain(&nftables.Chain{Name: "post", Table: table, Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookPostrouting,
			Priority: nftables.ChainPriorityNATSource})
		name := append([]byte("eth0"), make([]byte, 12)...)
		c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
			&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: name}, &expr.Masq{}}})
		return c.Flush()
	})
	if err != nil {
		t.Fatal(err)
	}
}

// serveEcho answers datagrams on port 53 until the test ends.
func serveEcho(t *testing.T, ns *testns.Namespace) {
	t.Helper()
	var conn net.PacketConn
	err := ns.Run(func() (err error) {
		conn, err = net.ListenPacket("udp4", "0.0.0.0:53")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() { _ = conn.Close(); <-done })
	go func() {
		defer close(done)
		b := make([]byte, 512)
		for {
			n, from, err := conn.ReadFrom(b)
			if err != nil {
				return
			}
			_, _ = conn.WriteTo(b[:n], from)
		}
	}()
}

// queryDNS reports whether a DNS query is answered.
func queryDNS(t *testing.T, ns *testns.Namespace, server string) bool {
	t.Helper()
	var conn net.Conn
	err := ns.Run(func() (err error) {
		conn, err = net.Dial("udp4", server)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for range 3 {
		_, _ = conn.Write([]byte("question"))
		_ = conn.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
		if _, err := conn.Read(make([]byte, 512)); err == nil {
			return true
		}
	}
	return false
}

// One rule assigns a virtual machine's queries to the resolvers' conntrack zone. Without it, responses belong to
// another connection than the queries and do not reach the machine.
func TestVirtualMachineGetsDNSAnswers(t *testing.T) {
	pod, vm, outside := testns.New(t), testns.New(t), testns.New(t)
	joinNamespaces(t, pod, outside, "eth0", "far0", "10.0.0.5/24", "10.0.0.10/24")
	joinNamespaces(t, pod, vm, "vif0", "eth0", "10.9.0.1/24", "10.9.0.2/24")
	addDefaultRoute(t, vm, "10.9.0.1")
	addMasquerade(t, pod)
	serveEcho(t, outside)
	answered := func() error {
		if !queryDNS(t, vm, "10.0.0.10:53") {
			return errNoAnswer
		}
		return nil
	}
	// A new link needs some time before it transmits.
	testenv.Eventually(t, "there are answers without redirection", answered)
	o := iptables.DefaultOptions()
	o.InboundPorts.All, o.OutboundCIDRs.All, o.RedirectDNS, o.CaptureAllDNS = true, true, true, true
	o.VirtualInterfaces, o.Addresses = []string{"vif0"}, []netip.Addr{netip.MustParseAddr("10.0.0.5")}
	rules, err := iptables.Compile(o)
	if err != nil {
		t.Fatal(err)
	}
	b, err := nft.New(nft.Config{NetNS: int(pod.Handle)})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Apply(t.Context(), rules); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, "there are answers with redirection", answered)
	for i := range rules.Chains {
		rules.Chains[i].Rules = slices.DeleteFunc(rules.Chains[i].Rules, func(r iptables.Rule) bool { return r.ID == "zone/virtual-vif0" })
	}
	if err := b.Apply(t.Context(), rules); err != nil {
		t.Fatal(err)
	}
	if queryDNS(t, vm, "10.0.0.10:53") {
		t.Error("answers come without the rule too, so it is not needed")
	}
}
