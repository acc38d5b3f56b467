package trace

import (
	"context"
	"errors"
	"net/netip"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/pilotfish-mesh/pilotfish/internal/testns"
	"github.com/pilotfish-mesh/pilotfish/iptables"
	"github.com/pilotfish-mesh/pilotfish/iptables/nft"
	"github.com/pilotfish-mesh/pilotfish/iptables/packettest"
	"github.com/pilotfish-mesh/pilotfish/iptables/xtables"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// captured returns a namespace with a link and with redirection rules.
func captured(t *testing.T) (*testns.Namespace, *iptables.RuleSet) {
	t.Helper()
	ns := linked(t)
	rules := capture(t, iptables.RedirectMode)
	b, err := nft.New(nft.Config{NetNS: int(ns.Handle)})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Apply(t.Context(), rules); err != nil {
		t.Fatal(err)
	}
	return ns, rules
}

func capture(t *testing.T, mode iptables.Interception) *iptables.RuleSet {
	t.Helper()
	o := iptables.DefaultOptions()
	o.InboundPorts.All, o.OutboundCIDRs.All, o.Interception = true, true, mode
	o.RedirectDNS, o.CaptureAllDNS = true, true
	rules, err := iptables.Compile(o)
	if err != nil {
		t.Fatal(err)
	}
	return rules
}

// linked returns a namespace with a link.
func linked(t *testing.T) *testns.Namespace {
	t.Helper()
	ns := testns.New(t)
	ns.Links(t, func(h *netlink.Handle) error {
		link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}, PeerName: "peer"}
		if err := h.LinkAdd(link); err != nil {
			return err
		}
		peer, err := h.LinkByName("peer")
		if err != nil {
			return err
		}
		if err := errors.Join(h.LinkSetUp(peer), h.LinkSetUp(link)); err != nil {
			return err
		}
		a, _ := netlink.ParseAddr("10.9.8.7/24")
		if err := h.AddrAdd(link, a); err != nil {
			return err
		}
		everywhere, _ := netlink.ParseIPNet("0.0.0.0/0")
		return h.RouteAdd(&netlink.Route{LinkIndex: link.Index, Dst: everywhere})
	})
	return ns
}

// begin sends the first packet of a connection as a user, and does not wait for a reply.
func begin(t *testing.T, ns *testns.Namespace, network, to string, uid int) {
	t.Helper()
	kind := map[string]int{"tcp": unix.SOCK_STREAM, "udp": unix.SOCK_DGRAM}[network]
	address := netip.MustParseAddrPort(to)
	var family int
	var peer unix.Sockaddr
	if address.Addr().Is4() {
		family, peer = unix.AF_INET, &unix.SockaddrInet4{Addr: address.Addr().As4(), Port: int(address.Port())}
	} else {
		family, peer = unix.AF_INET6, &unix.SockaddrInet6{Addr: address.Addr().As16(), Port: int(address.Port())}
	}
	err := ns.Run(func() error {
		if uid != 0 {
			if err := syscall.Setfsuid(uid); err != nil {
				return err
			}
		}
		fd, err := unix.Socket(family, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(fd) }()
		if err := unix.Connect(fd, peer); err != nil && !errors.Is(err, unix.EINPROGRESS) && !errors.Is(err, unix.ECONNREFUSED) {
			return err
		}
		if kind == unix.SOCK_DGRAM {
			_, err = unix.Write(fd, []byte("hello"))
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// runTrace runs a trace until cfg.Packets packets were reported.
func runTrace(t *testing.T, cfg Config, traffic func()) []Packet {
	t.Helper()
	var all []Packet
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	stop := make(chan struct{})
	go func() { // repeat the traffic, because packets before the start of the trace are not traced
		defer close(stop)
		for ctx.Err() == nil {
			traffic()
			time.Sleep(10 * time.Millisecond)
		}
	}()
	err := Run(ctx, cfg, func(p Packet) error { all = append(all, p); return nil })
	cancel()
	<-stop
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func steps(p Packet) string {
	var ids []string
	for _, s := range p.Steps {
		ids = append(ids, s.Rule)
	}
	return strings.Join(ids, " ")
}

func TestPacketTraceUsesRuleNames(t *testing.T) {
	proxy := uint32(1337)
	for _, c := range []struct {
		name, network, to string
		uid               int
		filter            Filter
		steps, end        string
	}{
		{"captured", "tcp", "203.0.113.7:443", 0, Filter{Port: 443},
			"hook/nat-outbound outbound/dns outbound/all redirect/outbound", "arrives at 127.0.0.1:15001 in this namespace, through lo"},
		{"of the proxy", "tcp", "203.0.113.7:443", 1337, Filter{UID: &proxy},
			"hook/nat-outbound outbound/proxy-uid-1337", "leaves through eth0 to 203.0.113.7:443"},
		{"a question", "udp", "203.0.113.7:53", 0, Filter{Protocol: iptables.UDP, To: netip.MustParsePrefix("203.0.113.0/24")},
			"dns/udp", "arrives at 127.0.0.1:15053 in this namespace, through lo"},
	} {
		t.Run(c.name, func(t *testing.T) {
			ns, rules := captured(t)
			all := runTrace(t, Config{NetNS: int(ns.Handle), Rules: rules, Filter: c.filter, Packets: 1, For: 10 * time.Second},
				func() { begin(t, ns, c.network, c.to, c.uid) })
			if len(all) != 1 {
				t.Fatalf("%d packets were reported", len(all))
			}
			t.Logf("%s", &all[0])
			if got := steps(all[0]); !strings.Contains(got, c.steps) || all[0].End != c.end || all[0].To.String() != c.to {
				t.Errorf("steps %s\nend %s", got, all[0].End)
			}
			for _, s := range all[0].Steps {
				if s.Reason == "" {
					t.Errorf("rule %s has no reason", s.Rule)
				}
			}
		})
	}
}

func TestIPTablesRulesAreTracedWithSameNames(t *testing.T) {
	if _, err := exec.LookPath("iptables-nft-restore"); err != nil {
		t.Skip("iptables is not installed; scripts/iptables.sh does that")
	}
	ns, rules := linked(t), capture(t, iptables.RedirectMode)
	b, err := xtables.New(t.Context(), xtables.Config{NetNS: int(ns.Handle), Flavour: xtables.NFT})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Apply(t.Context(), rules); err != nil {
		t.Fatal(err)
	}
	all := runTrace(t, Config{NetNS: int(ns.Handle), Rules: rules, Filter: Filter{Port: 443}, Packets: 1},
		func() { begin(t, ns, "tcp", "203.0.113.7:443", 0) })
	t.Logf("%s", &all[0])
	if got := steps(all[0]); !strings.Contains(got, "outbound/all redirect/outbound") || all[0].End != "arrives at 127.0.0.1:15001 in this namespace, through lo" {
		t.Errorf("steps %s\nend %s", got, all[0].End)
	}
}

func TestInboundPacketIsTraced(t *testing.T) {
	ns, rules := linked(t), capture(t, iptables.TProxyMode)
	b, err := nft.New(nft.Config{NetNS: int(ns.Handle)})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Apply(t.Context(), rules); err != nil {
		t.Fatal(err)
	}
	lab, err := packettest.Open(t.Context(), packettest.Config{NetNS: int(ns.Handle), TransparentMark: iptables.Mark{Value: 1337, Mask: 1<<32 - 1}, TransparentPort: 15006})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lab.Close() }()
	all := runTrace(t, Config{NetNS: int(ns.Handle), Rules: rules, Filter: Filter{Port: 8080, Protocol: iptables.TCP}, Packets: 1}, func() {
		_, _ = lab.Send(t.Context(), []packettest.Packet{{Inbound: true, Protocol: iptables.TCP, Destination: netip.MustParseAddrPort("10.9.8.7:8080")}})
	})
	t.Logf("%s", &all[0])
	if got := steps(all[0]); all[0].Direction != iptables.Inbound || !strings.Contains(got, "inbound/all tproxy/inbound-ipv4") ||
		all[0].End != "arrives at 10.9.8.7:8080 in this namespace, through "+lab.Link()+", with mark 1337" {
		t.Errorf("steps %s\nend %s", got, all[0].End)
	}
}

func TestTraceEndsInTimeAndLeavesNothingBehind(t *testing.T) {
	ns, rules := captured(t)
	err := Run(t.Context(), Config{NetNS: int(ns.Handle), Rules: rules, For: 100 * time.Millisecond}, func(Packet) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	conn, err := nftables.New(nftables.WithNetNSFd(int(ns.Handle)))
	if err != nil {
		t.Fatal(err)
	}
	tables, err := conn.ListTables()
	if err != nil {
		t.Fatal(err)
	}
	if len(tables) != 1 || tables[0].Name != nft.Table {
		t.Errorf("tables: %v", tables)
	}
}

// An interrupted trace reports the messages that the kernel had sent by then.
func TestQueuedMessagesAreReportedAtEnd(t *testing.T) {
	ns, rules := captured(t)
	k, err := open(Config{NetNS: int(ns.Handle), Rules: rules, Filter: Filter{Port: 443}})
	if err != nil {
		t.Fatal(err)
	}
	const connections = 10
	for range connections {
		begin(t, ns, "tcp", "203.0.113.7:443", 0)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var all []Packet
	err = k.listen(ctx, 1000, func(p Packet) error { all = append(all, p); return nil })
	if err = errors.Join(err, k.close()); err != nil {
		t.Fatal(err)
	}
	if len(all) < connections {
		t.Errorf("%d packets of %d connections were reported", len(all), connections)
	}
	for _, p := range all {
		if !strings.Contains(steps(p), "outbound/all redirect/outbound") || p.End != "arrives at 127.0.0.1:15001 in this namespace, through lo" {
			t.Errorf("%s", &p)
		}
	}
}

func TestSecondTraceOfNamespaceIsRefused(t *testing.T) {
	ns, rules := captured(t)
	cfg := Config{NetNS: int(ns.Handle), Rules: rules, For: time.Millisecond}
	first, err := open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	nothing := func(Packet) error { return nil }
	if err := Run(t.Context(), cfg, nothing); err == nil || !strings.Contains(err.Error(), "another trace runs in this namespace") {
		t.Errorf("during another trace: %v", err)
	}
	if err := first.close(); err != nil {
		t.Fatal(err)
	}
	if err := Run(t.Context(), cfg, nothing); err != nil {
		t.Errorf("after the other trace: %v", err)
	}
}
