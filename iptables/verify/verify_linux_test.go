package verify

import (
	"context"
	"net/netip"
	"os"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/pilotfish-mesh/pilotfish/internal/testns"
	"github.com/pilotfish-mesh/pilotfish/iptables"
	"github.com/pilotfish-mesh/pilotfish/iptables/nft"
)

func TestMain(m *testing.M) {
	if name := os.Getenv(validating); name != "" {
		os.Exit(validator(name))
	}
	goleak.VerifyTestMain(m)
}

func backend(t *testing.T, ns *testns.Namespace) *nft.Backend {
	t.Helper()
	b, err := nft.New(nft.Config{NetNS: int(ns.Handle)})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func compile(t *testing.T, change func(*iptables.Options)) *iptables.RuleSet {
	t.Helper()
	rules, err := compiled(change)
	if err != nil {
		t.Fatal(err)
	}
	return rules
}

func compiled(change func(*iptables.Options)) (*iptables.RuleSet, error) {
	o := iptables.DefaultOptions()
	o.DualStack = true
	o.InboundPorts.All, o.OutboundCIDRs.All = true, true
	o.InboundExcludePorts = []iptables.PortRange{{First: 15020, Last: 15021}, {First: 15090, Last: 15090}}
	if change != nil {
		change(&o)
	}
	return iptables.Compile(o)
}

// choices returns option sets that capture different traffic.
func choices() map[string]func(*iptables.Options) {
	return map[string]func(*iptables.Options){
		"all":         func(*iptables.Options) {},
		"ipv4 only":   func(o *iptables.Options) { o.DualStack, o.IPv6 = false, iptables.IPv6Pass },
		"no ipv6":     func(o *iptables.Options) { o.DualStack, o.IPv6 = false, iptables.IPv6Reject },
		"transparent": func(o *iptables.Options) { o.Interception = iptables.TProxyMode },
		"dns":         func(o *iptables.Options) { o.RedirectDNS, o.CaptureAllDNS = true, true },
		"dns of resolvers": func(o *iptables.Options) {
			o.RedirectDNS, o.DNSServers = true, []netip.Addr{netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd00::10")}
		},
		"lists": func(o *iptables.Options) {
			o.OutboundCIDRs = iptables.CIDRs{Listed: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}}
			o.OutboundExcludeCIDRs = []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("fd00:1::/32")}
			o.OutboundPorts = []iptables.PortRange{{First: 3306, Last: 3306}}
			o.OutboundExcludePorts = []iptables.PortRange{{First: 7000, Last: 7010}}
			o.InboundPorts = iptables.Ports{Listed: []iptables.PortRange{{First: 80, Last: 80}, {First: 8000, Last: 8010}}}
			o.ProxyUIDs, o.ProxyGIDs = []uint32{1337, 2000}, []uint32{1337, 2001}
		},
		"groups": func(o *iptables.Options) {
			o.OwnerGroups, o.ExcludeOwnerGroups = iptables.Groups{Listed: []uint32{500, 501}}, []uint32{501}
		},
		"everything transparent": func(o *iptables.Options) {
			o.Interception, o.DropInvalid, o.RedirectDNS, o.CaptureAllDNS = iptables.TProxyMode, true, true, true
			o.ExcludeInterfaces, o.VirtualInterfaces = []string{"eth7"}, []string{"vif0"}
		},
	}
}

func TestInstalledRulesAreVerified(t *testing.T) {
	for name, change := range choices() {
		t.Run(name, func(t *testing.T) {
			ns := testns.New(t)
			rules := compile(t, change)
			b := backend(t, ns)
			if err := b.Apply(context.Background(), rules); err != nil {
				t.Fatal(err)
			}
			r, err := Run(t.Context(), Config{Backend: b, Want: rules, NetNS: int(ns.Handle)})
			if err != nil {
				t.Fatal(err)
			}
			if !r.OK() || r.Proven() < 20 {
				t.Errorf("%v\n%s", r.Err(), r.Details())
			}
			t.Logf("%s\ntook %s", r.Details(), r.Took)
		})
	}
}

// undetectableByPackets lists rules that do not affect where a connection's first packet arrives, or that another rule
// makes redundant. Only the comparison of the rules detects their loss.
var undetectableByPackets = map[string]bool{
	"tproxy/mark-established": true, "tproxy/established": true,
	"inbound/all-established": true, "mark/from-proxy": true, "tproxy/answer": true,
}

// isUndetectableZoneRule reports whether test packets cannot detect the loss of a zone rule. An example is a rule for the
// proxy's group, because no test process sends queries or replies with that group.
func isUndetectableZoneRule(id string) bool {
	return strings.HasPrefix(id, "zone/answer-of-proxy-gid-") || strings.HasPrefix(id, "zone/question-of-proxy-gid-")
}

func TestMissingRulesAreReportedWithConsequence(t *testing.T) {
	tried := map[string]bool{}
	for _, name := range []string{"all", "transparent", "dns", "dns of resolvers", "lists", "groups", "no ipv6"} {
		rules := compile(t, choices()[name])
		for _, c := range rules.Chains {
			for i := range c.Rules {
				r := &c.Rules[i]
				if tried[r.ID] {
					continue
				}
				tried[r.ID] = true
				t.Run(name+"/"+r.ID, func(t *testing.T) {
					t.Parallel()
					ns := testns.New(t)
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
					if len(report.Failed()) == 0 && !undetectableByPackets[r.ID] && !isUndetectableZoneRule(r.ID) {
						t.Errorf("no test packet detects it:\n%s", report)
					}
				})
			}
		}
	}
}
