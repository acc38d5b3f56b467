package iptables

import (
	"net/netip"
	"reflect"
	"testing"
)

// Any options are either rejected, or compiled to canonical rules that never redirect the proxy's own connections. If the
// options are formatted and parsed again, they yield the same rules.
func FuzzOptionsAreRefusedOrCompileToSafeRules(f *testing.F) {
	f.Add("REDIRECT", "*", "15020,90-99", "*", "10.0.0.0/8,fd00::/8", "80", "53", "eth1", "vif0", "1337,0", "7", "*", "12", "10.0.0.10", "auto", uint8(0))
	f.Add("TPROXY", "80,90:99", "", "127.0.0.0/8,::1/128", "", "1-65535", "", "", "a,b", "", "0", "5,6", "", "::1,127.0.0.53", "reject", uint8(255))
	f.Add("REDIRECT", "1-65535", "1", "0.0.0.0/0,::/0", "0.0.0.0/0", "15001", "15006", "lo", "lo", "0", "0", "0", "0", "0.0.0.0", "capture", uint8(3))
	f.Fuzz(func(t *testing.T, mode, in, notIn, cidrs, notCIDRs, ports, notPorts, interfaces, virtual, uids, gids, groups, notGroups, servers, ipv6 string, bits uint8) {
		o := DefaultOptions()
		for name, value := range map[string]string{
			flagMode: mode, flagInbound: in, flagInboundExclude: notIn, flagCIDRs: cidrs, flagExcludeCIDRs: notCIDRs, flagOutbound: ports,
			flagOutboundExclude: notPorts, flagInterfaces: interfaces, flagVirtual: virtual, flagUID: uids, flagGID: gids,
			envGroups: groups, envExcludeGroups: notGroups, flagDNSServers: servers, flagIPv6: ipv6,
		} {
			if o.Set(name, value, Names{}) != nil {
				continue
			}
			again := DefaultOptions()
			if err := again.Set(name, o.Get(name), Names{}); err != nil || again.Get(name) != o.Get(name) {
				t.Errorf("%s %q is formatted as %q, and parsed as %q (%v)", name, value, o.Get(name), again.Get(name), err)
			}
		}
		o.RedirectDNS, o.CaptureAllDNS, o.DropInvalid, o.DualStack = bits&1 > 0, bits&2 > 0, bits&4 > 0, bits&8 > 0
		rules, err := Compile(o)
		if err != nil {
			return
		}
		checkForm(t, rules)
		if diff := Diff(rules, &Installed{Rules: Canonical(rules)}); len(diff) > 0 {
			t.Errorf("rules differ from themselves: %s", Summary(diff))
		}
		if again, err := Compile(o); err != nil || !reflect.DeepEqual(again, rules) {
			t.Errorf("formatted and parsed options yield different rules: %v", err)
		}
		leavesProxyAlone(t, &o, rules)
	})
}

func leavesProxyAlone(t *testing.T, o *Options, rules *RuleSet) {
	const other = 4000000001
	for _, who := range append(pairs(o.ProxyUIDs, other, false), pairs(o.ProxyGIDs, other, true)...) {
		for _, to := range []string{"198.51.100.7:443", "198.51.100.7:15001", "[2001:db8::7]:443", "127.0.0.1:15001", "[::1]:80", "10.0.0.10:53"} {
			p := Packet{Direction: Outbound, Protocol: TCP, To: netip.MustParseAddrPort(to), Interface: "eth0", UID: &who[0], GID: &who[1]}
			p.From = netip.AddrPortFrom(sampleOwn[p.Family()], ephemeral)
			if p.To.Addr().IsLoopback() {
				p.Interface = loopback
			}
			for _, protocol := range []Protocol{TCP, UDP} {
				p.Protocol = protocol
				if e := Explain(rules, p); e.End != Passes && e.End != Dropped {
					t.Errorf("%s: %s", p, e.Why)
				}
			}
		}
	}
}

// pairs combines each ID with an ID that rules probably do not contain.
func pairs(ids []uint32, other uint32, swapped bool) (all [][2]uint32) {
	for _, id := range ids {
		if swapped {
			all = append(all, [2]uint32{other, id})
		} else {
			all = append(all, [2]uint32{id, other})
		}
	}
	return all
}
