package nft

import (
	"context"
	"net/netip"
	"os/exec"
	"reflect"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/internal/testns"
	"github.com/pilotfish-mesh/pilotfish/iptables"
)

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

func port(first, last uint16) iptables.PortRange { return iptables.PortRange{First: first, Last: last} }

// choices returns option sets that together cover all options that affect the rules.
func choices() map[string]func(*iptables.Options) {
	captureAll := func(o *iptables.Options) {
		o.InboundPorts.All, o.OutboundCIDRs.All = true, true
	}
	with := func(f func(*iptables.Options)) func(*iptables.Options) {
		return func(o *iptables.Options) { captureAll(o); f(o) }
	}
	return map[string]func(*iptables.Options){
		"nothing": func(*iptables.Options) {},
		"all":     captureAll,
		"lists": func(o *iptables.Options) {
			o.InboundPorts.Listed = []iptables.PortRange{port(80, 80), port(8000, 8100)}
			o.OutboundCIDRs.Listed = []netip.Prefix{prefix("10.0.0.0/8"), prefix("10.1.0.0/16"), prefix("172.16.0.0/12")}
			o.OutboundExcludeCIDRs = []netip.Prefix{prefix("10.9.0.0/16"), prefix("10.8.0.1/32")}
			o.OutboundPorts = []iptables.PortRange{port(443, 443), port(1, 1023)}
			o.OutboundExcludePorts = []iptables.PortRange{port(22, 22), port(9000, 9010)}
		},
		"owners": with(func(o *iptables.Options) {
			o.ProxyUIDs, o.ProxyGIDs = []uint32{1337, 0, 4000000000}, []uint32{1337, 7}
			o.OwnerGroups.All, o.OwnerGroups.Listed = false, []uint32{5, 3, 1000}
			o.ExcludeOwnerGroups = []uint32{12}
		}),
		"dns": with(func(o *iptables.Options) { o.RedirectDNS, o.CaptureAllDNS = true, true }),
		"dns servers": with(func(o *iptables.Options) {
			o.RedirectDNS = true
			o.DNSServers = []netip.Addr{netip.MustParseAddr("10.0.0.10")}
		}),
		"interfaces": with(func(o *iptables.Options) {
			o.ExcludeInterfaces, o.VirtualInterfaces = []string{"net1", "a-longish-name1"}, []string{"k6t-eth0"}
		}),
		"drop invalid": with(func(o *iptables.Options) { o.DropInvalid = true }),
		"dual stack": with(func(o *iptables.Options) {
			o.DualStack = true
			o.OutboundExcludeCIDRs = []netip.Prefix{prefix("fd00::/8")}
		}),
		"refuse IPv6": with(func(o *iptables.Options) { o.IPv6 = iptables.IPv6Reject; o.RedirectDNS, o.CaptureAllDNS = true, true }),
		"tproxy":      with(func(o *iptables.Options) { o.Interception = iptables.TProxyMode }),
		"tproxy dual": with(func(o *iptables.Options) {
			o.Interception, o.DualStack, o.DropInvalid, o.RedirectDNS, o.CaptureAllDNS = iptables.TProxyMode, true, true, true, true
			o.VirtualInterfaces, o.TProxyMark, o.TProxyTable = []string{"k6t-eth0"}, 7, 1000
		}),
	}
}

func compile(t testing.TB, change func(*iptables.Options)) *iptables.RuleSet {
	t.Helper()
	o := iptables.DefaultOptions()
	change(&o)
	rules, err := iptables.Compile(o)
	if err != nil {
		t.Fatal(err)
	}
	return rules
}

func backend(t testing.TB, cfg Config) *Backend {
	t.Helper()
	b, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// checkInForce reads the installed rules and compares them with the wanted ones.
func checkInForce(t *testing.T, b *Backend, want *iptables.RuleSet) {
	t.Helper()
	got, err := b.Read(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range got.Strange {
		t.Errorf("strange: %s", s)
	}
	if want = iptables.Canonical(want); !reflect.DeepEqual(got.Rules, want) {
		t.Errorf("%s", difference(got.Rules, want))
	}
}

func TestReadReturnsTheAppliedRules(t *testing.T) {
	for name, change := range choices() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ns := testns.New(t)
			b := backend(t, Config{NetNS: int(ns.Handle)})
			rules := compile(t, change)
			if err := b.Apply(context.Background(), rules); err != nil {
				t.Fatal(err)
			}
			checkInForce(t, b, rules)
			if t.Failed() {
				logState(t, ns)
			}
		})
	}
}

func logState(t *testing.T, ns *testns.Namespace) {
	_ = ns.Run(func() error {
		out, err := exec.Command("sh", "-c", "nft list ruleset; ip rule; ip -6 rule; ip route show table all; ip addr show lo").CombinedOutput()
		t.Logf("%s %v", out, err)
		return nil
	})
}
