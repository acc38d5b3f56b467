package packettest

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/pilotfish-mesh/pilotfish/internal/testns"
	"github.com/pilotfish-mesh/pilotfish/iptables"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newRedirectingNamespace returns a namespace that redirects outbound TCP to 15001, except that of user 1337, and
// inbound TCP to 15006.
func newRedirectingNamespace(t *testing.T) *testns.Namespace {
	t.Helper()
	ns := testns.New(t)
	conn, err := nftables.New(nftables.WithNetNSFd(int(ns.Handle)))
	if err != nil {
		t.Fatal(err)
	}
	table := conn.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: "redirecting"})
	for _, c := range []struct {
		hook *nftables.ChainHook
		port uint16
	}{{nftables.ChainHookOutput, 15001}, {nftables.ChainHookPrerouting, 15006}} {
		chain := conn.AddChain(&nftables.Chain{Name: "hook" + string('0'+rune(*c.hook)), Table: table, Type: nftables.ChainTypeNAT,
			Hooknum: c.hook, Priority: nftables.ChainPriorityNATDest})
		if *c.hook == *nftables.ChainHookOutput {
			conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
				&expr.Meta{Key: expr.MetaKeySKUID, Register: 1}, matchEqual(binaryutil.NativeEndian.PutUint32(1337)),
				&expr.Verdict{Kind: expr.VerdictReturn}}})
			conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
				&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: 1}, matchEqual([]byte("lo\x00")),
				&expr.Verdict{Kind: expr.VerdictReturn}}})
		}
		conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
			&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, matchEqual([]byte{protocolTCP}),
			&expr.Immediate{Register: 1, Data: binaryutil.BigEndian.PutUint16(c.port)},
			&expr.Redir{RegisterProtoMin: 1, RegisterProtoMax: 1, Flags: 2}}})
	}
	if err := conn.Flush(); err != nil {
		t.Fatal(err)
	}
	return ns
}

func open(t *testing.T, ns *testns.Namespace) *Harness {
	t.Helper()
	l, err := Open(t.Context(), Config{NetNS: int(ns.Handle)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

func TestArrivalsAreReported(t *testing.T) {
	l := open(t, newRedirectingNamespace(t))
	to := netip.MustParseAddrPort
	own := func(f iptables.Families, port uint16) netip.AddrPort {
		all, err := l.Addresses(f)
		if err != nil {
			t.Fatal(err)
		}
		return netip.AddrPortFrom(all[0], port)
	}
	packets := []Packet{
		{Protocol: iptables.TCP, Destination: to("10.2.3.4:443"), UID: 1000, GID: 1000},
		{Protocol: iptables.TCP, Destination: to("10.2.3.4:443"), UID: 1337, GID: 1337},
		{Protocol: iptables.UDP, Destination: to("10.2.3.4:53"), UID: 1000, GID: 1000},
		{Protocol: iptables.TCP, Destination: to("127.0.0.1:8080"), UID: 1000},
		{Protocol: iptables.UDP, Destination: to("127.0.0.1:8080"), UID: 1000},
		{Protocol: iptables.TCP, Destination: own(iptables.IPv4, 8080), UID: 1000},
		{Protocol: iptables.TCP, Destination: to("127.0.0.1:8080"), Source: netip.MustParseAddr("127.0.0.6"), UID: 1337},
		{Inbound: true, Protocol: iptables.TCP, Destination: own(iptables.IPv4, 8080)},
		{Inbound: true, Protocol: iptables.UDP, Destination: own(iptables.IPv4, 8080)},
		{Protocol: iptables.TCP, Destination: to("[2001:db8::4]:443"), UID: 1000, GID: 1000},
		{Protocol: iptables.TCP, Destination: to("[2001:db8::4]:443"), UID: 1337, GID: 1337},
		{Protocol: iptables.UDP, Destination: to("[2001:db8::4]:53"), UID: 1000, GID: 1000},
		{Protocol: iptables.TCP, Destination: to("[::1]:8080"), UID: 1000},
		{Inbound: true, Protocol: iptables.TCP, Destination: own(iptables.IPv6, 8080)},
		{Inbound: true, Protocol: iptables.UDP, Destination: own(iptables.IPv6, 8080)},
	}
	want := []string{
		"127.0.0.1:15001", "outside, with destination 10.2.3.4:443", "outside, with destination 10.2.3.4:53", "127.0.0.1:8080", "127.0.0.1:8080",
		own(iptables.IPv4, 8080).String(), "127.0.0.1:8080",
		own(iptables.IPv4, 15006).String(), own(iptables.IPv4, 8080).String(),
		"[::1]:15001", "outside, with destination [2001:db8::4]:443", "outside, with destination [2001:db8::4]:53", "[::1]:8080",
		own(iptables.IPv6, 15006).String(), own(iptables.IPv6, 8080).String(),
	}
	for range 2 { // a harness can be used more than once
		got, err := l.Send(t.Context(), packets)
		if err != nil {
			t.Fatal(err)
		}
		for i, a := range got {
			if a.String() != want[i] {
				t.Errorf("%s arrived at %s, want %s", packets[i], a, want[i])
			}
			t.Log(packets[i], "→", a, a.Took, "from", a.From)
		}
	}
}

func state(t *testing.T, ns *testns.Namespace) string {
	t.Helper()
	var all []string
	ns.Links(t, func(h *netlink.Handle) error {
		links, err := h.LinkList()
		if err != nil {
			return err
		}
		for _, l := range links {
			all = append(all, l.Attrs().Name)
		}
		for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
			rules, err := h.RuleList(family)
			if err != nil {
				return err
			}
			for _, r := range rules {
				all = append(all, r.String())
			}
			routes, err := h.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
			if err != nil {
				return err
			}
			for _, r := range routes {
				all = append(all, r.String())
			}
		}
		return nil
	})
	for _, family := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
		_ = ns.Run(func() error {
			flows, err := netlink.ConntrackTableList(netlink.ConntrackTable, family)
			if err != nil {
				t.Error(err)
			}
			for _, f := range flows {
				all = append(all, f.String())
			}
			return nil
		})
	}
	conn, err := nftables.New(nftables.WithNetNSFd(int(ns.Handle)))
	if err != nil {
		t.Fatal(err)
	}
	tables, err := conn.ListTables()
	if err != nil {
		t.Fatal(err)
	}
	for _, table := range tables {
		all = append(all, "table "+table.Name)
	}
	return strings.Join(all, "\n")
}

func TestHarnessLeavesNothingBehind(t *testing.T) {
	ns := newRedirectingNamespace(t)
	before := state(t, ns)
	l, err := Open(t.Context(), Config{NetNS: int(ns.Handle)})
	if err != nil {
		t.Fatal(err)
	}
	own, err := l.Addresses(iptables.IPv6)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Send(t.Context(), []Packet{
		{Protocol: iptables.TCP, Destination: netip.MustParseAddrPort("10.2.3.4:443"), UID: 7},
		{Protocol: iptables.UDP, Destination: netip.MustParseAddrPort("10.2.3.4:443"), UID: 7},
		{Protocol: iptables.UDP, Destination: netip.MustParseAddrPort("127.0.0.1:53"), UID: 7},
		{Protocol: iptables.TCP, Inbound: true, Destination: netip.AddrPortFrom(own[0], 443)},
	}); err != nil {
		t.Fatal(err)
	}
	if state(t, ns) == before {
		t.Error("the test does not find the link of a Harness")
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if after := state(t, ns); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
}

func TestListenerOnCapturePortIsNotDisturbed(t *testing.T) {
	ns := newRedirectingNamespace(t)
	var envoy net.Listener
	if err := ns.Run(func() (err error) { envoy, err = net.Listen("tcp", ":15001"); return err }); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = envoy.Close() }()
	l := open(t, ns)
	got, err := l.Send(t.Context(), []Packet{{Protocol: iptables.TCP, Destination: netip.MustParseAddrPort("10.2.3.4:443"), UID: 7}})
	if err != nil {
		t.Fatal(err)
	}
	if got[0].String() != "127.0.0.1:15001" {
		t.Errorf("arrived at %s", got[0])
	}
	_ = envoy.(*net.TCPListener).SetDeadline(time.Now())
	if conn, err := envoy.Accept(); err == nil {
		t.Errorf("the listener got a connection from %s", conn.RemoteAddr())
	}
}

func TestHarnessesOfOneNamespaceWaitForEachOther(t *testing.T) {
	ns := testns.New(t)
	open(t, ns)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	l, err := Open(ctx, Config{NetNS: int(ns.Handle)})
	if err == nil || !strings.Contains(err.Error(), "another process tests packets") {
		t.Errorf("err = %v (%v)", err, l)
	}
}

func TestLeftoversOfKilledProcessAreRemoved(t *testing.T) {
	ns := newRedirectingNamespace(t)
	before := state(t, ns)
	ns.Links(t, func(h *netlink.Handle) error { // as left by a process that may not create namespaces
		if err := h.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: nearLink}, PeerName: farLink}); err != nil {
			return err
		}
		lo, err := h.LinkByName("lo")
		if err != nil {
			return err
		}
		for _, table := range []int{testTable, testTable + 1, testTable + maxTestedInterfaces} {
			rule := netlink.NewRule()
			rule.Family, rule.Table, rule.Priority = unix.AF_INET, table, testPriority
			if err := h.RuleAdd(rule); err != nil {
				return err
			}
			// The routes of a testedInterface refer to another interface, so they remain when the harness's link is removed.
			route := &netlink.Route{LinkIndex: lo.Attrs().Index, Dst: ipNet(netip.IPv4Unspecified(), 0), Table: table, Scope: netlink.SCOPE_LINK}
			if table != testTable {
				if err := h.RouteAdd(route); err != nil {
					return err
				}
			}
		}
		return nil
	})
	l, err := Open(t.Context(), Config{NetNS: int(ns.Handle)})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if after := state(t, ns); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
}

// If another goroutine forks, a closed socket remains open in the child process until the child calls exec.
func TestBindRetriesWhilePortIsInUse(t *testing.T) {
	ns := newRedirectingNamespace(t)
	l := open(t, ns)
	packet := Packet{Protocol: iptables.UDP, Destination: netip.MustParseAddrPort("10.2.3.4:53"), UID: 7, SourcePort: 21000}
	hold := func() (held net.PacketConn) {
		t.Helper()
		if err := ns.Run(func() (err error) { held, err = net.ListenPacket("udp4", ":21000"); return err }); err != nil {
			t.Fatal(err)
		}
		return held
	}
	held := hold()
	letGo := time.AfterFunc(50*time.Millisecond, func() { _ = held.Close() })
	defer letGo.Stop()
	got, err := l.Send(t.Context(), []Packet{packet})
	if err != nil || got[0].Where != Outside {
		t.Errorf("arrived at %v: %v", got, err)
	}
	held = hold()
	defer func() { _ = held.Close() }()
	if got, err = l.Send(t.Context(), []Packet{packet}); err != nil || !errors.Is(got[0].Err, unix.EADDRINUSE) {
		t.Errorf("from a port that another socket uses, %v arrived: %v", got, err)
	}
}

func TestSourcePortsOfSessionsDiffer(t *testing.T) {
	h := &Harness{lastPort: sourcePorts - 5} // the range ends within the first session
	used := map[uint16]bool{}
	for range 3 {
		s := &session{Harness: h, byPort: map[flow]*attempt{}}
		for range 1000 {
			port := s.freePort(protocolTCP)
			if used[port] || port < firstSourcePort || port >= firstSourcePort+sourcePorts {
				t.Fatalf("port %d is used twice or outside the range", port)
			}
			used[port], s.byPort[flow{protocolTCP, port}] = true, nil
		}
	}
}
