package xtables

import (
	"fmt"
	"net/netip"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/pilotfish-mesh/pilotfish/internal/testns"
	"github.com/pilotfish-mesh/pilotfish/iptables"
)

// forEachFlavour runs a test for both flavours, each in a separate namespace.
func forEachFlavour(t *testing.T, f func(t *testing.T, ns *testns.Namespace, b *Backend)) {
	for _, flavour := range []Flavour{NFT, Legacy} {
		t.Run(string(flavour), func(t *testing.T) {
			ns := testns.New(t)
			f(t, ns, backend(t, ns, flavour))
		})
	}
}

func backend(t testing.TB, ns *testns.Namespace, flavour Flavour) *Backend {
	t.Helper()
	if _, err := exec.LookPath("iptables-legacy-restore"); err != nil {
		t.Skip("iptables is not installed; scripts/iptables.sh does that")
	}
	b, err := New(t.Context(), Config{NetNS: int(ns.Handle), Flavour: flavour})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func apply(t testing.TB, b *Backend, rules *iptables.RuleSet) {
	t.Helper()
	if err := b.Apply(t.Context(), rules); err != nil {
		t.Fatal(err)
	}
}

func prefixes(words ...string) (out []netip.Prefix) {
	for _, w := range words {
		out = append(out, netip.MustParsePrefix(w))
	}
	return out
}

// wordy returns a rule set that uses every feature of the model.
func wordy() *iptables.RuleSet {
	all := ^uint32(0)
	many := []iptables.PortRange{{First: 30000, Last: 32767}}
	for p := range uint16(20) {
		many = append(many, iptables.PortRange{First: 100 + p, Last: 100 + p})
	}
	v := func(a iptables.Action) iptables.Verdict { return iptables.Verdict{Action: a} }
	return &iptables.RuleSet{Families: iptables.BothFamilies, Routing: &iptables.Routing{Mark: 1337, Table: 133, Priority: 1337, LoopbackAddresses: prefixes("::6/128")}, Chains: []iptables.Chain{
		{Table: iptables.Raw, Name: "raw_output", Hook: iptables.Output, Rules: []iptables.Rule{
			{ID: "zone/one", Match: iptables.Match{Protocol: iptables.UDP, DestinationPorts: []iptables.PortRange{{First: 53, Last: 53}}, UIDs: []uint32{1337}},
				Verdict: iptables.Verdict{Action: iptables.Zone, ZoneID: 1}},
		}},
		{Table: iptables.Mangle, Name: "ISTIO_DIVERT", Rules: []iptables.Rule{
			{ID: "divert/mark", Verdict: iptables.Verdict{Action: iptables.SetMark, Mark: iptables.Mark{Value: 1337, Mask: all}}},
			{ID: "divert/accept", Verdict: v(iptables.Accept)},
		}},
		{Table: iptables.Mangle, Name: "mangle_prerouting", Hook: iptables.Prerouting, Rules: []iptables.Rule{
			{ID: "invalid", Match: iptables.Match{States: []iptables.State{iptables.Invalid}}, Verdict: v(iptables.Drop)},
			{ID: "established", Match: iptables.Match{Protocol: iptables.TCP, States: []iptables.State{iptables.Related, iptables.Established}},
				Verdict: iptables.Verdict{Action: iptables.Jump, Chain: "ISTIO_DIVERT"}},
			{ID: "reply", Match: iptables.Match{Protocol: iptables.TCP, Reply: true}, Verdict: iptables.Verdict{Action: iptables.Jump, Chain: "ISTIO_DIVERT"}},
			{ID: "save", Match: iptables.Match{Mark: &iptables.Mark{Value: 1337, Mask: all}}, Verdict: v(iptables.SaveMark)},
			{ID: "not-marked", Match: iptables.Match{Mark: &iptables.Mark{Value: 1, Mask: 3}, NotMark: true, InInterface: "lo"}, Verdict: v(iptables.Return)},
			{ID: "tproxy", Match: iptables.Match{Protocol: iptables.TCP, NotDestination: true, Destination: prefixes("127.0.0.0/8")},
				Verdict: iptables.Verdict{Action: iptables.TransparentProxy, Port: 15006, Mark: iptables.Mark{Value: 1337, Mask: all}}},
		}},
		{Table: iptables.Mangle, Name: "mangle_output", Hook: iptables.Output, Rules: []iptables.Rule{
			{ID: "restore", Match: iptables.Match{ConnMark: &iptables.Mark{Value: 1337, Mask: all}}, Verdict: v(iptables.RestoreMark)},
		}},
		{Table: iptables.Filter, Name: "filter_output", Hook: iptables.Output, Rules: []iptables.Rule{
			{ID: "refuse-tcp", Match: iptables.Match{Protocol: iptables.TCP, Families: iptables.IPv6}, Verdict: v(iptables.Reject)},
			{ID: "refuse-udp", Match: iptables.Match{Protocol: iptables.UDP}, Verdict: v(iptables.Reject)},
		}},
		{Table: iptables.NAT, Name: "ISTIO_REDIRECT", Rules: []iptables.Rule{
			{ID: "redirect", Match: iptables.Match{Protocol: iptables.TCP}, Verdict: iptables.Verdict{Action: iptables.Redirect, Port: 15001}},
		}},
		{Table: iptables.NAT, Name: "inner", Rules: []iptables.Rule{{ID: "back", Verdict: v(iptables.Return)}}},
		{Table: iptables.NAT, Name: "ISTIO_OUTPUT", Hook: iptables.Output, Rules: []iptables.Rule{
			{ID: "excluded/a b \"c\" \\", Match: iptables.Match{Protocol: iptables.TCP, DestinationPorts: many}, Verdict: v(iptables.Return)},
			{ID: "not-ports", Match: iptables.Match{Protocol: iptables.TCP, DestinationPorts: many, NotDestinationPorts: true, SourcePorts: many[:2]}, Verdict: v(iptables.Return)},
			{ID: "not-hbone", Match: iptables.Match{Protocol: iptables.TCP, OutInterface: "lo", NotDestination: true, Destination: prefixes("127.0.0.1/32"),
				DestinationPorts: []iptables.PortRange{{First: 15008, Last: 15008}}, NotDestinationPorts: true, UIDs: []uint32{1337}},
				Verdict: iptables.Verdict{Action: iptables.Jump, Chain: "ISTIO_REDIRECT"}},
			{ID: "owners", Match: iptables.Match{UIDs: []uint32{1, 2}, GIDs: []uint32{3, 4}}, Verdict: v(iptables.Return)},
			{ID: "strangers", Match: iptables.Match{UIDs: []uint32{1, 2}, NotUIDs: true, GIDs: []uint32{3, 4}, NotGIDs: true}, Verdict: v(iptables.Return)},
			{ID: "not-lo", Match: iptables.Match{OutInterface: "lo", NotOut: true, Source: prefixes("127.0.0.6/32")}, Verdict: v(iptables.Return)},
			{ID: "cidrs", Match: iptables.Match{Source: prefixes("10.0.0.0/8", "172.16.0.0/12"), Destination: prefixes("192.0.2.0/24", "198.51.100.0/24")}, Verdict: v(iptables.Return)},
			{ID: "no-cidrs", Match: iptables.Match{Destination: prefixes("192.0.2.0/24", "198.51.100.0/24"), NotDestination: true}, Verdict: v(iptables.Return)},
			{ID: "no-cidrs-v6", Match: iptables.Match{Destination: prefixes("2001:db8::/32", "::1/128"), NotDestination: true}, Verdict: v(iptables.Return)},
			{ID: "only-v6", Match: iptables.Match{Families: iptables.IPv6, Protocol: iptables.UDP}, Verdict: v(iptables.Return)},
			{ID: "inner", Verdict: iptables.Verdict{Action: iptables.Jump, Chain: "inner"}},
			{ID: "all", Match: iptables.Match{Protocol: iptables.TCP}, Verdict: iptables.Verdict{Action: iptables.Jump, Chain: "ISTIO_REDIRECT"}},
		}},
	}}
}

// everything returns all rules of the namespace: both flavours, both families, and the nftables tables without rules.
func everything(t testing.TB, ns *testns.Namespace) string {
	t.Helper()
	var b strings.Builder
	err := ns.Run(func() error {
		for _, family := range []string{"iptables", "ip6tables"} {
			for _, flavour := range []string{"nft", "legacy"} {
				out, err := exec.Command(family + "-" + flavour + "-save").Output()
				if err != nil {
					return err
				}
				b.Write(out)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	c, err := nftables.New(nftables.WithNetNSFd(int(ns.Handle)))
	if err != nil {
		t.Fatal(err)
	}
	all, err := c.ListTables()
	if err != nil {
		t.Fatal(err)
	}
	for _, table := range all {
		b.WriteString("table " + table.Name + " COMMIT\n")
	}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		ns.Links(t, func(h *netlink.Handle) error {
			rules, err := h.RuleList(family)
			if err != nil {
				return err
			}
			for _, r := range rules {
				fmt.Fprintf(&b, "rule %s COMMIT\n", r)
			}
			routes, err := h.RouteListFiltered(family, &netlink.Route{}, netlink.RT_FILTER_TABLE)
			if err != nil {
				return err
			}
			for _, r := range routes {
				if r.Table == unix.RT_TABLE_LOCAL { // the kernel adds these some time after an address
					continue
				}
				fmt.Fprintf(&b, "route %s COMMIT\n", r)
			}
			all, err := h.AddrList(nil, family)
			for _, a := range all {
				fmt.Fprintf(&b, "address %s COMMIT\n", a.IPNet)
			}
			return err
		})
	}
	blocks := strings.SplitAfter(volatile.ReplaceAllString(b.String(), ""), "COMMIT\n")
	slices.Sort(blocks) // nft lists a table that was removed and created again last
	return strings.Join(blocks, "")
}

// volatile matches the counters and dates in the output of iptables-save.
var volatile = regexp.MustCompile(`(?m) \[\d+:\d+\]$|^#.*\n`)

// shell runs commands in the namespace, as another program would.
func shell(t testing.TB, ns *testns.Namespace, script string) {
	t.Helper()
	err := ns.Run(func() error {
		out, err := exec.Command("sh", "-ec", script).CombinedOutput()
		t.Logf("%s", out)
		return err
	})
	if err != nil {
		t.Fatalf("%s: %v", script, err)
	}
}
