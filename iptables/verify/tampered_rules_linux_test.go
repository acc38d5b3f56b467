package verify

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/pilotfish-mesh/pilotfish/internal/testns"
	"github.com/pilotfish-mesh/pilotfish/iptables"
	"github.com/pilotfish-mesh/pilotfish/iptables/backends"
	"github.com/pilotfish-mesh/pilotfish/iptables/nft"
	"github.com/pilotfish-mesh/pilotfish/iptables/xtables"
)

// inForce returns a namespace in which the rules are installed.
func inForce(t *testing.T, rules *iptables.RuleSet) (*testns.Namespace, *nft.Backend) {
	t.Helper()
	ns := testns.New(t)
	b := backend(t, ns)
	if err := b.Apply(context.Background(), rules); err != nil {
		t.Fatal(err)
	}
	return ns, b
}

func report(t *testing.T, ns *testns.Namespace, b iptables.Backend, want *iptables.RuleSet) *Report {
	t.Helper()
	r, err := Run(t.Context(), Config{Backend: b, Want: want, NetNS: int(ns.Handle)})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// expect checks that differences and packets both report the fault.
func expect(t *testing.T, r *Report, difference, consequence string) {
	t.Helper()
	differences := fmt.Sprint(r.Differences)
	var gone []string
	for _, p := range r.Failed() {
		gone = append(gone, p.Consequence)
	}
	if !strings.Contains(differences, difference) {
		t.Errorf("no difference contains %q:\n%s", difference, r)
	}
	if consequence != "" && !slices.ContainsFunc(gone, func(s string) bool { return strings.Contains(s, consequence) }) {
		t.Errorf("no consequence contains %q:\n%s", consequence, r)
	}
}

func TestMisplacedRuleIsReportedWithConsequence(t *testing.T) {
	want := compile(t, nil)
	moved := *want
	moved.Chains = slices.Clone(want.Chains)
	for i, c := range moved.Chains {
		if c.Name == "ISTIO_OUTPUT" { // before the rule that captures everything
			c.Rules = slices.Clone(c.Rules)
			last := c.Rules[len(c.Rules)-1]
			c.Rules = slices.Insert(c.Rules[:len(c.Rules)-1], 0, last)
			moved.Chains[i] = c
		}
	}
	ns, b := inForce(t, &moved)
	expect(t, report(t, ns, b, want), "outbound/all is at another position", "from uid 1337, gid 10123 returns to the proxy in a loop, at port 15001")
}

func TestOutdatedRulesAreReportedWithConsequence(t *testing.T) {
	ns, b := inForce(t, compile(t, func(o *iptables.Options) { o.ProxyPort, o.DualStack, o.IPv6 = 16001, false, iptables.IPv6Pass }))
	r := report(t, ns, b, compile(t, nil))
	expect(t, r, "redirect/outbound", "reaches port 16001 instead of port 15001")
	expect(t, r, "", "outbound IPv6 TCP to [2001:db8:77::7]:30123 from uid 10123, gid 10123 bypasses the proxy")
}

func TestForeignRuleBeforeOursIsDetectedByPackets(t *testing.T) {
	want := compile(t, nil)
	ns, b := inForce(t, want)
	conn, err := nftables.New(nftables.WithNetNSFd(int(ns.Handle)))
	if err != nil {
		t.Fatal(err)
	}
	table := conn.AddTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: "other"})
	chain := conn.AddChain(&nftables.Chain{Name: "first", Table: table, Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityRef(-110)})
	conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.IPPROTO_TCP}},
		&expr.Immediate{Register: 1, Data: []byte{0x1f, 0x90}},
		&expr.Redir{RegisterProtoMin: 1, RegisterProtoMax: 1, Flags: 2},
	}})
	if err := conn.Flush(); err != nil {
		t.Fatal(err)
	}
	r := report(t, ns, b, want)
	if len(r.Differences) > 0 {
		t.Errorf("our rules are unchanged, but differences are reported: %v", r.Differences)
	}
	expect(t, r, "", "inbound IPv4 TCP to port 30123 reaches port 8080 instead of port 15006")
}

func TestMissingRoutingIsReportedWithConsequence(t *testing.T) {
	want := compile(t, choices()["transparent"])
	ns, b := inForce(t, want)
	ns.Links(t, func(h *netlink.Handle) error {
		rules, err := h.RuleList(unix.AF_INET)
		if err != nil {
			return err
		}
		for _, r := range rules {
			if r.Mark == 1337 {
				r.Family = unix.AF_INET
				return h.RuleDel(&r)
			}
		}
		return fmt.Errorf("no rule for the mark among %v", rules)
	})
	r := report(t, ns, b, want)
	expect(t, r, "packets marked 1337", "IPv4 TCP that the proxy forwards to the pod with the client's address does not arrive")
}

// The rules and the routing have no differences; only packets detect the fault.
func TestRemovedMarksAreDetectedByPackets(t *testing.T) {
	want := compile(t, choices()["transparent"])
	ns, b := inForce(t, want)
	conn, err := nftables.New(nftables.WithNetNSFd(int(ns.Handle)))
	if err != nil {
		t.Fatal(err)
	}
	table := conn.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: "other"})
	chain := conn.AddChain(&nftables.Chain{Name: "later", Table: table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityRef(-140)})
	conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
		&expr.Immediate{Register: 1, Data: []byte{0, 0, 0, 0}}, &expr.Ct{Key: expr.CtKeyMARK, Register: 1, SourceRegister: true},
	}})
	if err := conn.Flush(); err != nil {
		t.Fatal(err)
	}
	r := report(t, ns, b, want)
	if len(r.Differences) > 0 {
		t.Errorf("our rules are unchanged, but differences are reported: %v", r.Differences)
	}
	for _, family := range []string{"IPv4", "IPv6"} {
		expect(t, r, "", family+" TCP that the proxy forwards to the pod with the client's address does not arrive")
	}
}

// Routing of Istio or another program can be equal to the routing that we need.
func TestEqualForeignRoutingIsNoFault(t *testing.T) {
	for _, choice := range []backends.Choice{backends.NFTables, backends.IPTablesLegacy} {
		t.Run(string(choice), func(t *testing.T) {
			if _, err := exec.LookPath("iptables-legacy-restore"); err != nil && choice != backends.NFTables {
				t.Skip("iptables is not installed; scripts/iptables.sh does that")
			}
			ns := testns.New(t)
			b, err := backends.New(backends.Config{NetNS: int(ns.Handle), Choice: choice})
			if err != nil {
				t.Fatal(err)
			}
			ns.Links(t, routingOfOthers)
			want := compile(t, choices()["transparent"])
			if err := b.Apply(t.Context(), want); err != nil {
				t.Fatal(err)
			}
			if r := report(t, ns, b, want); !r.OK() {
				t.Errorf("%s", r)
			}
			ns.Links(t, func(h *netlink.Handle) error {
				return errors.Join(h.RuleDel(ruleOfOthers(unix.AF_INET)), h.RuleDel(ruleOfOthers(unix.AF_INET6)))
			})
			if r := report(t, ns, b, want); !r.OK() {
				t.Errorf("after the other program removed its routing: %s", r)
			}
		})
	}
}

func ruleOfOthers(family int) *netlink.Rule {
	r := netlink.NewRule()
	r.Family, r.Priority, r.Mark, r.Table, r.Protocol = family, 1337, 1337, 133, unix.RTPROT_BOOT
	return r
}

func routingOfOthers(h *netlink.Handle) error {
	lo, err := h.LinkByName("lo")
	if err != nil {
		return err
	}
	a, _ := netlink.ParseAddr("::6/128")
	a.Flags = unix.IFA_F_NODAD
	errs := []error{h.AddrAdd(lo, a)}
	for family, all := range map[int]string{unix.AF_INET: "0.0.0.0/0", unix.AF_INET6: "::/0"} {
		to, _ := netlink.ParseIPNet(all)
		errs = append(errs, h.RuleAdd(ruleOfOthers(family)), h.RouteAdd(&netlink.Route{LinkIndex: lo.Attrs().Index, Dst: to, Table: 133, Type: unix.RTN_LOCAL, Scope: netlink.SCOPE_HOST}))
	}
	return errors.Join(errs...)
}

func TestMissingLoopbackAddressIsReported(t *testing.T) {
	want := compile(t, nil)
	ns, b := inForce(t, want)
	ns.Links(t, func(h *netlink.Handle) error {
		lo, err := h.LinkByName("lo")
		if err != nil {
			return err
		}
		a, _ := netlink.ParseAddr("::6/128")
		return h.AddrDel(lo, a)
	})
	expect(t, report(t, ns, b, want), "the address ::6/128 is missing on lo", "source ::6 does not arrive")
}

// The same rules are verified when the host's iptables installs them. nftables cannot list rules of iptables-legacy.
func TestIPTablesRulesAreVerified(t *testing.T) {
	if _, err := exec.LookPath("iptables-legacy-restore"); err != nil {
		t.Skip("iptables is not installed; scripts/iptables.sh does that")
	}
	for _, flavour := range []xtables.Flavour{xtables.NFT, xtables.Legacy} {
		for _, name := range []string{"all", "transparent", "dns", "no ipv6"} {
			t.Run(string(flavour)+"/"+name, func(t *testing.T) {
				t.Parallel()
				rules := compile(t, choices()[name])
				if flavour == xtables.NFT && name != "no ipv6" { // some kernels do not support REDIRECT for IPv6
					rules = compile(t, func(o *iptables.Options) { choices()[name](o); o.DualStack, o.IPv6 = false, iptables.IPv6Pass })
				}
				ns := testns.New(t)
				b, err := xtables.New(t.Context(), xtables.Config{NetNS: int(ns.Handle), Flavour: flavour})
				if err != nil {
					t.Fatal(err)
				}
				if err := b.Apply(t.Context(), rules); err != nil {
					t.Fatal(err)
				}
				if r := report(t, ns, b, rules); !r.OK() || r.Proven() < 20 {
					t.Errorf("%s", r)
				}
				if err := b.Clean(t.Context()); err != nil {
					t.Fatal(err)
				}
				if r := report(t, ns, b, rules); r.OK() || len(r.Failed()) < 4 {
					t.Errorf("after cleaning up: %s", r)
				}
			})
		}
	}
}

func TestReportNamesBackend(t *testing.T) {
	if _, err := exec.LookPath("iptables-legacy"); err != nil {
		t.Skip("iptables is not installed")
	}
	ns := testns.New(t)
	open := func(c backends.Choice) *backends.Backend {
		b, err := backends.New(backends.Config{NetNS: int(ns.Handle), Choice: c})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	rules, err := iptables.Compile(iptables.DefaultOptions())
	if err != nil {
		t.Fatal(err)
	}
	if err := open(backends.IPTablesLegacy).Apply(t.Context(), rules); err != nil {
		t.Fatal(err)
	}
	r, err := Run(t.Context(), Config{Backend: open(backends.Auto), Want: rules, NetNS: int(ns.Handle), NoPackets: true})
	if err != nil || r.Backend != "iptables-legacy" {
		t.Errorf("it names %+v, %v", r, err)
	}
}
