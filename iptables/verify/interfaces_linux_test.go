package verify

import (
	"context"
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/pilotfish-mesh/pilotfish/internal/testns"
	"github.com/pilotfish-mesh/pilotfish/iptables"
)

// attach adds an interface with addresses to the namespace. Its peer is in a new namespace, which attach returns.
func attach(t *testing.T, ns *testns.Namespace, name string, addresses ...string) (beyond *testns.Namespace) {
	t.Helper()
	beyond = testns.New(t)
	ns.Links(t, func(h *netlink.Handle) error {
		link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: "beyond", PeerNamespace: netlink.NsFd(int(beyond.Handle))}
		if err := h.LinkAdd(link); err != nil {
			return err
		}
		for _, text := range addresses {
			a, err := netlink.ParseAddr(text)
			if err != nil {
				return err
			}
			a.Flags = unix.IFA_F_NODAD
			if err := h.AddrAdd(link, a); err != nil {
				return err
			}
		}
		return h.LinkSetUp(link)
	})
	beyond.Links(t, func(h *netlink.Handle) error {
		peer, err := h.LinkByName("beyond")
		if err != nil {
			return err
		}
		return h.LinkSetUp(peer)
	})
	return beyond
}

// countPackets returns a function that counts the TCP and UDP packets that reach the namespace behind an interface.
func countPackets(t *testing.T, beyond *testns.Namespace) (packets func() int) {
	t.Helper()
	fd := -1
	if err := beyond.Run(func() (err error) {
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, int(binary.NativeEndian.Uint16([]byte{unix.ETH_P_ALL >> 8, unix.ETH_P_ALL})))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	return func() (n int) {
		buffer := make([]byte, 2048)
		for {
			length, _, err := unix.Recvfrom(fd, buffer, 0)
			if err != nil {
				return n
			}
			protocol := byte(0)
			switch {
			case length >= 20 && buffer[0]>>4 == 4:
				protocol = buffer[9]
			case length >= 40 && buffer[0]>>4 == 6:
				protocol = buffer[6]
			}
			if protocol == unix.IPPROTO_TCP || protocol == unix.IPPROTO_UDP {
				n++
			}
		}
	}
}

// interfaces sets options that name interfaces.
func interfaces(change func(*iptables.Options)) func(*iptables.Options) {
	return func(o *iptables.Options) {
		o.ExcludeInterfaces, o.VirtualInterfaces = []string{"net1"}, []string{"vif0"}
		if change != nil {
			change(o)
		}
	}
}

// withInterfaces returns a namespace that has these interfaces.
func withInterfaces(t *testing.T) (ns *testns.Namespace, packets func() int) {
	ns = testns.New(t)
	one := countPackets(t, attach(t, ns, "net1", "192.168.99.5/24", "fd99::5/64"))
	two := countPackets(t, attach(t, ns, "vif0", "192.168.122.1/24", "fd98::1/64"))
	return ns, func() int { return one() + two() }
}

func TestInterfaceTrafficIsVerified(t *testing.T) {
	for name, change := range map[string]func(*iptables.Options){
		"redirected": nil, "dns": choices()["dns"],
		"transparent": func(o *iptables.Options) { o.Interception = iptables.TProxyMode },
		"dns of machines too": func(o *iptables.Options) {
			o.RedirectDNS, o.DNSServers = true, []netip.Addr{netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd00::10")}
			o.ResolverAddress = ":15053"
		},
		"listed": choices()["lists"], "no ipv6": choices()["no ipv6"],
	} {
		t.Run(name, func(t *testing.T) {
			ns, packets := withInterfaces(t)
			rules := compile(t, interfaces(change))
			b := backend(t, ns)
			if err := b.Apply(context.Background(), rules); err != nil {
				t.Fatal(err)
			}
			r, err := Run(t.Context(), Config{Backend: b, Want: rules, NetNS: int(ns.Handle)})
			if err != nil {
				t.Fatal(err)
			}
			if !r.OK() || strings.Contains(strings.Join(r.Unproven, "\n"), "interface") {
				t.Errorf("%s", r.Details())
			}
			for _, by := range []string{"net1", "vif0"} {
				if !slices.ContainsFunc(r.Proofs, func(p Proof) bool { return p.OK && p.via == by }) {
					t.Errorf("no test packet was sent through %s:\n%s", by, r.Details())
				}
			}
			if n := packets(); n > 0 {
				t.Errorf("%d test packets reached a network", n)
			}
			ns.Links(t, func(h *netlink.Handle) error {
				for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
					left, err := h.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
					if err != nil {
						return err
					}
					for _, route := range left {
						if route.Table > unix.RT_TABLE_LOCAL {
							t.Errorf("left behind: %s", route)
						}
					}
					policy, err := h.RuleList(family)
					if err != nil {
						return err
					}
					for _, rule := range policy {
						if rule.Table > unix.RT_TABLE_LOCAL {
							t.Errorf("left behind: %s", rule)
						}
					}
				}
				return nil
			})
		})
	}
}

func TestMissingInterfaceRulesAreDetectedByPackets(t *testing.T) {
	rules := compile(t, interfaces(nil))
	of := 0
	for _, c := range rules.Chains {
		for i := range c.Rules {
			r := &c.Rules[i]
			if !strings.HasSuffix(r.ID, "-net1") && !strings.HasSuffix(r.ID, "-vif0") {
				continue
			}
			of++
			t.Run(r.ID, func(t *testing.T) {
				ns, packets := withInterfaces(t)
				b := backend(t, ns)
				if err := b.Apply(context.Background(), withoutRule(rules, r)); err != nil {
					t.Fatal(err)
				}
				report, err := Run(t.Context(), Config{Backend: b, Want: rules, NetNS: int(ns.Handle)})
				if err != nil {
					t.Fatal(err)
				}
				if len(report.Differences) != 1 || !strings.Contains(report.Differences[0].What, r.ID+" is missing") {
					t.Errorf("%s", report)
				}
				needless := strings.Contains(report.String(), "no packet is affected") // another rule has the same effect
				if !needless && !slices.ContainsFunc(report.Failed(), func(p Proof) bool { return p.via != "" }) {
					t.Errorf("no test packet detects it:\n%s", report.Details())
				}
				if n := packets(); n > 0 {
					t.Errorf("%d test packets reached a network", n)
				}
			})
		}
	}
	if of < 4 {
		t.Errorf("only %d rules match interfaces", of)
	}
}

func TestMissingInterfacesAreReported(t *testing.T) {
	ns := testns.New(t)
	attach(t, ns, "net1")
	ns.Links(t, func(h *netlink.Handle) error {
		link, err := h.LinkByName("net1")
		if err != nil {
			return err
		}
		return h.LinkSetDown(link)
	})
	rules := compile(t, interfaces(nil))
	b := backend(t, ns)
	if err := b.Apply(context.Background(), rules); err != nil {
		t.Fatal(err)
	}
	r, err := Run(t.Context(), Config{Backend: b, Want: rules, NetNS: int(ns.Handle)})
	if err != nil || !r.OK() {
		t.Fatalf("%v\n%s", err, r.Details())
	}
	for _, want := range []string{"interface net1: the interface is down", "interface vif0: the interface does not exist"} {
		if !slices.ContainsFunc(r.Unproven, func(text string) bool { return strings.HasSuffix(text, want) }) {
			t.Errorf("%q is not in %q", want, r.Unproven)
		}
	}
}

// The interface does not support IPv6, and its rp_filter is strict. Its other traffic is still verified.
func TestInterfaceIsVerifiedAsFarAsPossible(t *testing.T) {
	ns := testns.New(t)
	packets := countPackets(t, attach(t, ns, "net1", "192.168.99.5/24"))
	if err := ns.Run(func() error {
		return errors.Join(os.WriteFile("/proc/sys/net/ipv4/conf/net1/rp_filter", []byte("1"), 0),
			os.WriteFile("/proc/sys/net/ipv6/conf/net1/disable_ipv6", []byte("1"), 0))
	}); err != nil {
		t.Fatal(err)
	}
	rules := compile(t, func(o *iptables.Options) { o.ExcludeInterfaces = []string{"net1"} })
	b := backend(t, ns)
	if err := b.Apply(context.Background(), rules); err != nil {
		t.Fatal(err)
	}
	r, err := Run(t.Context(), Config{Backend: b, Want: rules, NetNS: int(ns.Handle)})
	if err != nil || !r.OK() {
		t.Fatalf("%v\n%s", err, r.Details())
	}
	var shown []string
	for _, p := range r.Proofs {
		if p.OK && p.via != "" {
			shown = append(shown, p.Rule)
		}
	}
	if !slices.Equal(shown, []string{"outbound/exclude-interface-net1"}) || len(r.Unproven) != 2 ||
		!strings.Contains(strings.Join(r.Unproven, "\n"), "rp_filter") || !strings.Contains(strings.Join(r.Unproven, "\n"), "IPv6 route through net1") {
		t.Errorf("shown %q, unproven %q", shown, r.Unproven)
	}
	if n := packets(); n > 0 {
		t.Errorf("%d test packets reached a network", n)
	}
}

// The interface has no address, so the kernel drops packets that it would redirect. Other packets still arrive.
func TestVirtualInterfaceWithoutAddressIsReported(t *testing.T) {
	ns := testns.New(t)
	attach(t, ns, "vif0", "fd98::1/64")
	rules := compile(t, func(o *iptables.Options) {
		o.VirtualInterfaces, o.OutboundExcludePorts = []string{"vif0"}, []iptables.PortRange{{First: 7000, Last: 7000}}
	})
	b := backend(t, ns)
	if err := b.Apply(t.Context(), rules); err != nil {
		t.Fatal(err)
	}
	r := report(t, ns, b, rules)
	const why = "to an address of their interface, but vif0 has no IPv4 address"
	if len(r.Failed()) == 0 {
		t.Error("no packet failed")
	}
	for _, p := range r.Failed() {
		if p.via != "vif0" || !strings.Contains(p.Subject, "IPv4") || !strings.Contains(p.Consequence, "does not arrive: ") || !strings.HasSuffix(p.Consequence, why) {
			t.Errorf("%+v", p)
		}
	}
	ns.Links(t, func(h *netlink.Handle) error {
		link, err := h.LinkByName("vif0")
		if err != nil {
			return err
		}
		a, _ := netlink.ParseAddr("192.168.122.1/24")
		return h.AddrAdd(link, a)
	})
	if r := report(t, ns, b, rules); !r.OK() {
		t.Errorf("with an address: %s", r)
	}
}

// A bridge receives the packets that arrive at its ports, and forwards them to its other ports.
func TestNoPacketIsInjectedThroughUnsuitableInterface(t *testing.T) {
	for name, one := range map[string]struct {
		make   func(t *testing.T, ns, beyond *testns.Namespace)
		reason string
	}{
		"port of a bridge": {func(t *testing.T, ns, _ *testns.Namespace) {
			ns.Links(t, func(h *netlink.Handle) error {
				bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0"}}
				if err := errors.Join(h.LinkAdd(bridge), h.LinkSetUp(bridge)); err != nil {
					return err
				}
				var errs []error
				for _, name := range []string{"net1", "net2"} {
					port, err := h.LinkByName(name)
					if err != nil {
						return err
					}
					errs = append(errs, h.LinkSetMaster(port, bridge))
				}
				return errors.Join(errs...)
			})
		}, "interface net1: it is a port of br0, which receives its inbound packets"},
		"no carrier": {func(t *testing.T, _, beyond *testns.Namespace) {
			beyond.Links(t, func(h *netlink.Handle) error {
				peer, err := h.LinkByName("beyond")
				if err != nil {
					return err
				}
				return h.LinkSetDown(peer)
			})
		}, "interface net1: it has no carrier, so the kernel drops its inbound packets"},
	} {
		t.Run(name, func(t *testing.T) {
			ns := testns.New(t)
			beyond := attach(t, ns, "net1")
			first, second := countPackets(t, beyond), countPackets(t, attach(t, ns, "net2"))
			one.make(t, ns, beyond)
			rules := compile(t, func(o *iptables.Options) { o.ExcludeInterfaces = []string{"net1"} })
			b := backend(t, ns)
			if err := b.Apply(context.Background(), rules); err != nil {
				t.Fatal(err)
			}
			r, err := Run(t.Context(), Config{Backend: b, Want: rules, NetNS: int(ns.Handle)})
			if err != nil || !r.OK() {
				t.Errorf("%v\n%s", err, r.Details())
			}
			if !slices.ContainsFunc(r.Unproven, func(text string) bool { return strings.HasSuffix(text, one.reason) }) {
				t.Errorf("%q is not in %q", one.reason, r.Unproven)
			}
			if n := first() + second(); n > 0 {
				t.Errorf("%d test packets reached a network", n)
			}
		})
	}
}
