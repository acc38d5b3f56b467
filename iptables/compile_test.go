package iptables

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

func options(t *testing.T, pairs ...string) Options {
	t.Helper()
	o := DefaultOptions()
	for i := 0; i < len(pairs); i += 2 {
		if err := o.Set(pairs[i], pairs[i+1], Names{}); err != nil {
			t.Fatal(err)
		}
	}
	return o
}

func compiled(t *testing.T, pairs ...string) *RuleSet {
	t.Helper()
	rules, err := Compile(options(t, pairs...))
	if err != nil {
		t.Fatal(err)
	}
	return rules
}

func ids(rules *RuleSet, table Table, chain string) []string {
	var all []string
	for _, c := range rules.Chains {
		if c.Table == table && c.Name == chain {
			for _, r := range c.Rules {
				all = append(all, r.ID)
			}
		}
	}
	return all
}

func TestRulesOfAnInjectedPod(t *testing.T) {
	rules := compiled(t, flagInbound, "*", flagInboundExclude, "15090,15021,15020", flagCIDRs, "*")
	want := map[string]string{
		"nat ISTIO_INBOUND":     "inbound/tunnel inbound/exclude-port-15090 inbound/exclude-port-15021 inbound/exclude-port-15020 inbound/all",
		"nat ISTIO_OUTPUT":      "outbound/passthrough-ipv4 outbound/self-call-uid-1337-ipv4 outbound/self-call-gid-1337-ipv4 outbound/proxy-uid-1337 outbound/proxy-gid-1337 outbound/local-ipv4 outbound/all",
		"nat ISTIO_REDIRECT":    "redirect/outbound",
		"nat nat_prerouting":    "hook/nat-inbound",
		"nat nat_output":        "hook/nat-outbound",
		"nat ISTIO_IN_REDIRECT": "redirect/inbound",
	}
	for key, text := range want {
		table, name, _ := strings.Cut(key, " ")
		if got := strings.Join(ids(rules, Table(table), name), " "); got != text {
			t.Errorf("%s:\n got %s\nwant %s", key, got, text)
		}
	}
	if len(rules.Chains) != len(want) || rules.Routing != nil || rules.Families != IPv4 {
		t.Errorf("%d chains, routing %v, families %v", len(rules.Chains), rules.Routing, rules.Families)
	}
}

// Both back ends depend on these properties of compiled rule sets.
func TestRulesKeepTheFormThatBackEndsRelyOn(t *testing.T) {
	for name, rules := range manySets(t) {
		t.Run(name, func(t *testing.T) { checkForm(t, rules) })
	}
}

func manySets(t *testing.T) map[string]*RuleSet {
	all := map[string]*RuleSet{}
	for _, mode := range []string{"REDIRECT", "TPROXY"} {
		for _, ipv6 := range []string{"capture", "reject", "pass"} {
			for _, dns := range []string{"false", "true"} {
				all[fmt.Sprint(mode, " ", ipv6, " dns ", dns)] = compiled(t, flagMode, mode, flagIPv6, ipv6, flagRedirectDNS, dns,
					flagInbound, "80,90-99", flagCIDRs, "10.0.0.0/8,fd00::/8", flagExcludeCIDRs, "10.1.0.0/16,fd00:1::/32", flagOutbound, "3306",
					flagOutboundExclude, "54,7000-7010", flagInterfaces, "eth9", flagVirtual, "vif0,vif1", flagUID, "1337,0", flagGID, "1337,5",
					flagDNSServers, "10.0.0.10,fd00::10", flagDropInvalid, "true", envGroups, "10,11", envExcludeGroups, "12")
			}
		}
	}
	return all
}

// All rules have different IDs, even if interface names look like parts of IDs.
func TestInterfacesOfAnyNamesLeaveIDsUnique(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	names := namesLikeIDs()
	some := func() string {
		var list []string
		for range 6 {
			list = append(list, names[random.IntN(len(names))])
		}
		return strings.Join(list, ",")
	}
	compared := 0
	for range 3000 {
		one := func(of ...string) string { return of[random.IntN(len(of))] }
		o := options(t, flagMode, one("REDIRECT", "TPROXY"), flagIPv6, one("capture", "reject", "pass"), flagInbound, one("*", "80,90-99"),
			flagVirtual, some(), flagInterfaces, one("", some()), flagRedirectDNS, "true", flagCaptureAllDNS, one("true", "false"),
			flagDNSServers, "10.0.0.10,fd00::10,::a", flagCIDRs, one("*", "10.0.0.0/8,fd00::/8"), envExcludeGroups, one("", "12,0"))
		if rules, err := Compile(o); err == nil { // otherwise an interface is excluded and virtual
			checkForm(t, rules)
			compared++
		}
	}
	if compared < 1000 {
		t.Errorf("only %d rule sets were compared", compared)
	}
}

// namesLikeIDs returns suffixes of rule IDs that are valid interface names.
func namesLikeIDs() []string {
	var names []string
	for _, kind := range slices.Sorted(maps.Keys(reasons)) {
		for i := range len(kind) {
			for _, end := range []string{"", "x", "-x", "10.0.0.10", "-::a"} {
				if name, err := parseInterface(kind[i:] + end); err == nil {
					names = append(names, name)
				}
			}
		}
	}
	for _, text := range []string{"x", "::a", "10.0.0.10"} {
		if name, err := parseInterface(text); err == nil {
			names = append(names, name)
		}
	}
	return names
}

func checkForm(t *testing.T, rules *RuleSet) {
	seen, chains := map[string]bool{}, map[string]bool{}
	for _, c := range rules.Chains {
		for _, r := range c.Rules {
			if seen[r.ID] || r.ID == "" || r.Reason == "" || len(r.ID) > 120 {
				t.Errorf("rule %q in %s: its ID is used twice or too long, or it has no reason", r.ID, c.Name)
			}
			seen[r.ID] = true
			if c.Hook != "" && r.Verdict.Action != Jump {
				t.Errorf("rule %q of base chain %s is not a jump", r.ID, c.Name)
			}
			if r.Verdict.Action == Jump && !chains[string(c.Table)+r.Verdict.Chain] {
				t.Errorf("rule %q jumps to %s, which does not precede it", r.ID, r.Verdict.Chain)
			}
			m := r.Match
			if len(m.Source) > 1 || len(m.Destination) > 1 || len(m.UIDs) > 1 || len(m.SourcePorts) > 1 ||
				len(m.GIDs) > 1 && !m.NotGIDs || len(m.DestinationPorts) > 1 && !m.NotDestinationPorts {
				t.Errorf("rule %q has a list that is not negated", r.ID)
			}
			if (m.SourcePorts != nil || m.DestinationPorts != nil) && m.Protocol == AnyProtocol {
				t.Errorf("rule %q has ports without a protocol", r.ID)
			}
		}
		chains[string(c.Table)+c.Name] = true
	}
}
