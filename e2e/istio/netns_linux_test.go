package istio

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/pilotfish-mesh/pilotfish/internal/testns"
)

// namespace is a network namespace, which ends with the test.
type namespace struct{ *testns.Namespace }

func (n *namespace) listen(t testing.TB, address string) net.Listener {
	t.Helper()
	var l net.Listener
	err := n.Run(func() (err error) {
		l, err = net.Listen("tcp", address)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// dial connects from within the namespace; the address has to be a number.
func (n *namespace) dial(ctx context.Context, network, address string) (c net.Conn, err error) {
	err = n.Run(func() (err error) {
		c, err = (&net.Dialer{}).DialContext(ctx, network, address)
		return err
	})
	return c, err
}

// node is the network of the pods: a bridge, with the control plane's namespace.
type node struct {
	*namespace
	address netip.Addr
	bridge  string
}

const subnet = 24

func newNode(t testing.TB, address string) *node {
	t.Helper()
	n := &node{namespace: &namespace{testns.New(t)}, address: netip.MustParseAddr(address), bridge: "pods"}
	n.Links(t, func(h *netlink.Handle) error {
		if err := h.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: n.bridge}}); err != nil {
			return err
		}
		return setUp(h, n.bridge, n.address)
	})
	return n
}

func setUp(h *netlink.Handle, name string, address netip.Addr) error {
	link, err := h.LinkByName(name)
	if err != nil {
		return err
	}
	ip := &net.IPNet{IP: address.AsSlice(), Mask: net.CIDRMask(subnet, 32)}
	if err := h.AddrAdd(link, &netlink.Addr{IPNet: ip}); err != nil {
		return fmt.Errorf("address of %s: %w", name, err)
	}
	return h.LinkSetUp(link)
}

// sandbox makes a pod's namespace, with an interface on the node's bridge and a route to everything through it.
func (n *node) sandbox(t testing.TB, address netip.Addr) *namespace {
	t.Helper()
	pod := &namespace{testns.New(t)}
	name := fmt.Sprintf("veth%d", address.As4()[3])
	n.Links(t, func(h *netlink.Handle) error {
		bridge, err := h.LinkByName(n.bridge)
		if err != nil {
			return err
		}
		return h.LinkAdd(&netlink.Veth{
			LinkAttrs: netlink.LinkAttrs{Name: name, MasterIndex: bridge.Attrs().Index, Flags: net.FlagUp},
			PeerName:  "eth0", PeerNamespace: netlink.NsFd(pod.Handle),
		})
	})
	pod.Links(t, func(h *netlink.Handle) error {
		if err := setUp(h, "eth0", address); err != nil {
			return err
		}
		return h.RouteAdd(&netlink.Route{Gw: n.address.AsSlice()})
	})
	return pod
}

// proxyGroup is the group that the agent and Envoy run as, by which redirection knows their traffic.
const proxyGroup = 1337

// redirect installs the rules of Istio's init container: outbound traffic is sent to 15001, inbound traffic to 15006.
func (n *namespace) redirect(t testing.TB) {
	t.Helper()
	c, err := nftables.New(nftables.WithNetNSFd(int(n.Handle)))
	if err != nil {
		t.Fatal(err)
	}
	table := c.AddTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: "mesh"})
	chain := func(name string, hook *nftables.ChainHook) *nftables.Chain {
		return c.AddChain(&nftables.Chain{Name: name, Table: table, Type: nftables.ChainTypeNAT, Hooknum: hook, Priority: nftables.ChainPriorityNATDest})
	}
	in, out := chain("in", nftables.ChainHookPrerouting), chain("out", nftables.ChainHookOutput)
	rule := func(chain *nftables.Chain, exprs ...[]expr.Any) {
		r := &nftables.Rule{Table: table, Chain: chain}
		for _, e := range exprs {
			r.Exprs = append(r.Exprs, e...)
		}
		c.AddRule(r)
	}
	leave := []expr.Any{&expr.Verdict{Kind: expr.VerdictReturn}}
	for _, port := range []uint16{15008, 15020, 15021, 15090} {
		rule(in, isTCP(), equal(&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2}, binaryutil.BigEndian.PutUint16(port)), leave)
	}
	rule(in, isTCP(), toPort(15006))
	rule(out, equal(&expr.Meta{Key: expr.MetaKeySKGID, Register: 1}, binaryutil.NativeEndian.PutUint32(proxyGroup)), leave)
	rule(out, equal(&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: 1}, append([]byte("lo"), make([]byte, unix.IFNAMSIZ-2)...)), leave)
	rule(out, isTCP(), toPort(15001))
	if err := c.Flush(); err != nil {
		t.Fatalf("redirection: %v", err)
	}
}

func isTCP() []expr.Any {
	return equal(&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, []byte{unix.IPPROTO_TCP})
}

func equal(load expr.Any, value []byte) []expr.Any {
	return []expr.Any{load, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: value}}
}

func toPort(port uint16) []expr.Any {
	return []expr.Any{
		&expr.Immediate{Register: 1, Data: binaryutil.BigEndian.PutUint16(port)},
		&expr.Redir{RegisterProtoMin: 1},
	}
}
