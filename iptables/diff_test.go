package iptables

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// withoutRule returns a copy of the rule set without the rule.
func withoutRule(rules *RuleSet, id string) *RuleSet {
	damaged := *rules
	damaged.Chains = slices.Clone(rules.Chains)
	for i := range damaged.Chains {
		damaged.Chains[i].Rules = slices.DeleteFunc(slices.Clone(damaged.Chains[i].Rules), func(r Rule) bool { return r.ID == id })
	}
	return &damaged
}

func TestCorrectRulesHaveNoDifference(t *testing.T) {
	for name, rules := range manySets(t) {
		if diff := Diff(rules, &Installed{Rules: rules}); len(diff) > 0 {
			t.Errorf("%s: %s", name, Summary(diff))
		}
	}
}

// The sets do not contain redundant rules, so removing any rule has an effect.
func TestEveryMissingRuleIsReportedWithItsConsequence(t *testing.T) {
	for name, more := range map[string][]string{
		"usual":             {flagInboundExclude, "15020,100-110", flagOutboundExclude, "3306", flagDualStack, "true"},
		"users":             {flagUID, "1337,0", flagGID, "1337,5", flagDropInvalid, "true", flagInterfaces, "eth9"},
		"addresses":         {flagCIDRs, "10.0.0.0/8,fd00::/8", flagExcludeCIDRs, "10.1.0.0/16,fd00:1::/32", flagOutbound, "3306", flagIPv6, "capture"},
		"groups":            {envGroups, "10,11,1337", envExcludeGroups, "11"},
		"virtual":           {flagVirtual, "vif0", flagOutboundExclude, "3306", flagExcludeCIDRs, "10.1.0.0/16"},
		"DNS":               {flagRedirectDNS, "true", flagDNSServers, "10.0.0.10,fd00::10", flagDualStack, "true", envExcludeGroups, "7", flagVirtual, "vif0", flagOutboundExclude, "3306"},
		"all DNS":           {flagRedirectDNS, "true", flagCaptureAllDNS, "true", flagInterfaces, "eth9"},
		"excluded DNS":      {flagRedirectDNS, "true", flagDNSServers, "10.0.0.10", flagOutboundExclude, "60"},
		"TPROXY":            {flagMode, "TPROXY", flagInboundExclude, "15020", flagInterfaces, "eth9", flagDualStack, "true"},
		"some TPROXY ports": {flagMode, "TPROXY", flagInbound, "80,90-99"},
		"virtual TPROXY":    {flagMode, "TPROXY", flagInbound, "80,90-99", flagVirtual, "vif0"},
		"virtual DNS":       {flagRedirectDNS, "true", flagCaptureAllDNS, "true", flagVirtual, "vif0", flagOutboundExclude, "3306", envResolver, ":15053"},
		"refused":           {flagIPv6, "reject", flagInboundExclude, "15020", flagExcludeCIDRs, "fd00:1::/32,10.1.0.0/16", flagVirtual, "vif0", flagOutboundExclude, "3306"},
	} {
		rules := compiled(t, appendOptions(usual, more...)...)
		for _, c := range rules.Chains {
			for _, r := range c.Rules {
				diff := Diff(rules, &Installed{Rules: withoutRule(rules, r.ID)})
				if len(diff) != 1 || diff[0].Kind != Missing || diff[0].What != "the rule "+r.ID+" is missing" {
					t.Errorf("%s without %s: %s", name, r.ID, Summary(diff))
				} else if diff[0].Consequence == "" {
					t.Errorf("%s without %s has no consequence", name, r.ID)
				}
			}
		}
	}
}

func TestConsequencesAreDescribedInWords(t *testing.T) {
	rules := compiled(t, appendOptions(usual, flagDualStack, "true", flagInboundExclude, "15020")...)
	for id, want := range map[string]string{
		"hook/nat-outbound":          "outbound IPv4 and IPv6 TCP would bypass the proxy instead of reaching port 15001 (for example to 198.51.100.7:443 of uid 1000, gid 1000)",
		"inbound/exclude-port-15020": "inbound IPv4 and IPv6 TCP would be redirected to port 15006, but should not be captured (for example from 198.51.100.7:40000 to 192.0.2.5:15020)",
		"outbound/proxy-gid-1337":    "outbound IPv4 and IPv6 TCP would be redirected to port 15001, but should not be captured (for example to 198.51.100.7:443 of uid 1000, gid 1337)",
	} {
		diff := Diff(rules, &Installed{Rules: withoutRule(rules, id)})
		if len(diff) != 1 || !strings.HasPrefix(diff[0].Consequence, want) {
			t.Errorf("without %s:\n got %s\nwant %s", id, Summary(diff), want)
		}
	}
}

func TestOrderForeignRulesAndRoutingAreCompared(t *testing.T) {
	rules := compiled(t, appendOptions(usual, flagMode, "TPROXY", flagExcludeCIDRs, "10.1.0.0/16", flagDualStack, "true")...)
	swapped := withoutRule(rules, "")
	for i := range swapped.Chains {
		if c := &swapped.Chains[i]; c.Table == NAT && c.Name == chainOutput {
			slices.Reverse(c.Rules)
		}
	}
	if diff := Diff(rules, &Installed{Rules: swapped}); !slices.ContainsFunc(diff, func(d Difference) bool { return d.Kind == Moved && d.Consequence != "" }) {
		t.Errorf("a chain in reverse: %s", Summary(diff))
	}
	bare := *rules
	bare.Routing = nil
	if diff := Diff(rules, &Installed{Rules: &bare}); len(diff) != 2 {
		t.Errorf("without routing: %s", Summary(diff))
	}
	if diff := Diff(rules, &Installed{Rules: rules, Strange: []string{"-A ISTIO_OUTPUT -j LOG"}}); len(diff) != 1 || diff[0].Kind != Foreign {
		t.Errorf("with a strange rule: %s", Summary(diff))
	}
	other := compiled(t, appendOptions(usual, flagMode, "TPROXY", flagProxyPort, "16001", flagExcludeCIDRs, "10.1.0.0/16", flagDualStack, "true")...)
	if diff := Diff(rules, &Installed{Rules: other}); len(diff) != 1 || diff[0].Kind != Changed || !strings.Contains(diff[0].Consequence, "port 16001 instead of 15001") {
		t.Errorf("another port: %s", Summary(diff))
	}
	if diff := Diff(rules, &Installed{}); len(diff) != 1 || !strings.Contains(diff[0].Consequence, "bypass") {
		t.Errorf("nothing installed: %s", Summary(diff))
	}
}

func TestLongListsAreComparedInReasonableTime(t *testing.T) {
	var ports []string
	for p := range 200 {
		ports = append(ports, portText(uint16(2000+2*p)))
	}
	rules := compiled(t, appendOptions(usual, flagOutboundExclude, strings.Join(ports, ","), flagDualStack, "true")...)
	began := time.Now()
	diff := Diff(rules, &Installed{Rules: withoutRule(rules, "outbound/exclude-port-2008")})
	t.Logf("%d packets took %v", len(makeSamples(rules)), time.Since(began))
	if len(diff) != 1 || diff[0].Consequence == "" {
		t.Errorf("%s", Summary(diff))
	}
}

func TestVeryLongListsAreComparedToo(t *testing.T) {
	var ports, cidrs []string
	for p := range 1000 {
		ports = append(ports, portText(uint16(2000+2*p)))
		cidrs = append(cidrs, fmt.Sprintf("10.%d.%d.0/24", p/200, p%200))
	}
	list := strings.Join(ports, ",")
	rules := compiled(t, appendOptions(usual, flagOutboundExclude, list, flagInboundExclude, list, flagExcludeCIDRs, strings.Join(cidrs, ","), flagDualStack, "true")...)
	began := time.Now()
	if diff := Diff(rules, &Installed{Rules: withoutRule(rules, "outbound/exclude-port-3008")}); len(diff) != 1 ||
		!strings.Contains(diff[0].Consequence, ":3008") {
		t.Errorf("%s", Summary(diff))
	}
	if diff := Diff(rules, &Installed{}); len(diff) != 1 || !strings.Contains(diff[0].Consequence, "bypass") {
		t.Errorf("nothing installed: %s", Summary(diff))
	}
	bare := compiled(t, appendOptions(usual, flagDualStack, "true")...)
	for _, diff := range [][]Difference{Diff(rules, &Installed{Rules: bare}), Diff(bare, &Installed{Rules: rules})} {
		if len(diff) < len(ports) || diff[len(diff)-1].Consequence == "" {
			t.Errorf("%d differences, the last %s", len(diff), diff[len(diff)-1])
		}
	}
	t.Logf("%d rules took %v", ruleCount(rules), time.Since(began))
}
