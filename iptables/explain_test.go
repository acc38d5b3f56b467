package iptables

import (
	"net/netip"
	"strings"
	"testing"
)

// outcomeText returns the outcome in one word.
func outcomeText(e Explanation) string {
	switch e.End {
	case Redirected, Transparent:
		return portText(e.Port)
	}
	return string(e.End)
}

// sentPacket parses the first packet of a process's connection: "1000 tcp 10.0.0.5 10.2.3.4:443". "1000/2000" is user and
// group; without a group, it is the same number as the user. The pod has the addresses 10.0.0.5 and fd00::5.
func sentPacket(t *testing.T, text string) Packet {
	t.Helper()
	f := strings.Fields(text)
	p := Packet{Direction: Outbound, Protocol: Protocol(f[1]), To: netip.MustParseAddrPort(f[3]), Interface: "eth0"}
	p.From = netip.AddrPortFrom(netip.MustParseAddr(f[2]), 40000)
	user, group, _ := strings.Cut(f[0], "/")
	if group == "" {
		group = user
	}
	p.UID, p.GID = number(t, user), number(t, group)
	if IsLocal(p.To.Addr(), []netip.Addr{netip.MustParseAddr("10.0.0.5"), netip.MustParseAddr("fd00::5")}) {
		p.Interface = loopback
	}
	return p
}

func number(t *testing.T, text string) *uint32 {
	t.Helper()
	n, err := parseID("number", nil)(text)
	if err != nil {
		t.Fatal(err)
	}
	return &n
}

// receivedPacket parses an inbound packet: "tcp 10.9.9.9 10.0.0.5:80", received on eth0 unless a fourth word names an interface.
func receivedPacket(text string) Packet {
	f := append(strings.Fields(text), "eth0")
	return Packet{Direction: Inbound, Protocol: Protocol(f[0]), From: netip.AddrPortFrom(netip.MustParseAddr(f[1]), 40000),
		To: netip.MustParseAddrPort(f[2]), Interface: f[3]}
}

var usual = []string{flagInbound, "*", flagCIDRs, "*"}

func appendOptions(base []string, more ...string) []string {
	return append(append([]string(nil), base...), more...)
}

func TestEveryConnectionHasTheExpectedOutcome(t *testing.T) {
	for _, c := range []struct {
		name    string
		options []string
		sent    map[string]string
		came    map[string]string
	}{
		{"all is captured", usual, map[string]string{
			"1000 tcp 10.0.0.5 10.2.3.4:443":     "15001",
			"1000 udp 10.0.0.5 10.2.3.4:443":     "passes",
			"1337 tcp 10.0.0.5 10.2.3.4:443":     "passes",
			"0/1337 tcp 10.0.0.5 10.2.3.4:443":   "passes",
			"1000 tcp 127.0.0.1 127.0.0.1:80":    "passes",
			"1000 tcp 10.0.0.5 10.0.0.5:80":      "passes",
			"1337 tcp 10.0.0.5 10.0.0.5:80":      "15006",
			"0/1337 tcp 10.0.0.5 10.0.0.5:80":    "15006",
			"1337 tcp 10.0.0.5 10.0.0.5:15008":   "passes",
			"0/1337 tcp 10.0.0.5 10.0.0.5:15008": "passes",
			"1337 tcp 127.0.0.1 127.0.0.1:80":    "passes",
			"1337 tcp 127.0.0.6 10.0.0.5:80":     "passes",
			"1000 tcp fd00::5 [fd00::9]:80":      "passes",
		}, map[string]string{
			"tcp 10.9.9.9 10.0.0.5:80": "15006", "tcp 10.9.9.9 10.0.0.5:15008": "passes", "udp 10.9.9.9 10.0.0.5:53": "passes",
		}},
		{"every one of several users and groups of the proxy has its calls to its own pod", appendOptions(usual, flagUID, "1337,1338", flagGID, "1337,1339"), map[string]string{
			"1338 tcp 10.0.0.5 10.0.0.5:80":   "15006",
			"7/1339 tcp 10.0.0.5 10.0.0.5:80": "15006",
			"1338 tcp 10.0.0.5 10.2.3.4:80":   "passes",
			"7/1339 tcp 10.0.0.5 10.2.3.4:80": "passes",
			"7 tcp 10.0.0.5 10.0.0.5:80":      "passes",
		}, nil},
		{"DNS of the resolvers", appendOptions(usual, flagRedirectDNS, "true", flagDNSServers, "10.0.0.10,127.0.0.53"), map[string]string{
			"1000 udp 10.0.0.5 10.0.0.10:53":    "15053",
			"1000 tcp 10.0.0.5 10.0.0.10:53":    "15053",
			"1000 udp 127.0.0.1 127.0.0.53:53":  "15053",
			"1000 tcp 127.0.0.1 127.0.0.53:53":  "15053",
			"1000 udp 10.0.0.5 8.8.8.8:53":      "passes",
			"1000 tcp 10.0.0.5 8.8.8.8:53":      "15001",
			"1000 tcp 127.0.0.1 127.0.0.54:53":  "passes", // stays local, though resolvers are listed
			"1000 tcp 10.0.0.5 10.0.0.5:53":     "passes",
			"1337 udp 10.0.0.5 10.0.0.10:53":    "passes",
			"1337 tcp 10.0.0.5 10.0.0.5:53":     "passes",
			"0/1337 tcp 10.0.0.5 10.0.0.5:53":   "passes", // spared for groups as for users
			"0/1337 udp 127.0.0.1 127.0.0.53:5": "passes",
		}, nil},
		{"DNS of all", appendOptions(usual, flagRedirectDNS, "true", flagCaptureAllDNS, "true"), map[string]string{
			"1000 udp 10.0.0.5 8.8.8.8:53":   "15053",
			"1000 tcp 10.0.0.5 8.8.8.8:53":   "15053",
			"1337 udp 10.0.0.5 8.8.8.8:53":   "passes",
			"0/1337 tcp 10.0.0.5 8.8.8.8:53": "passes",
		}, nil},
		{"exclusions", appendOptions(usual, flagInboundExclude, "90,100:110", flagExcludeCIDRs, "10.1.0.0/16", flagOutboundExclude, "3306,5000-5010",
			flagInterfaces, "eth1", envExcludeGroups, "55", flagOutbound, "8080"), map[string]string{
			"1000 tcp 10.0.0.5 10.1.2.3:443":    "passes",
			"1000 tcp 10.0.0.5 10.1.2.3:8080":   "passes",
			"1000 tcp 10.0.0.5 10.2.2.3:5004":   "passes",
			"1000 tcp 10.0.0.5 10.2.2.3:5011":   "15001",
			"1000/55 tcp 10.0.0.5 10.2.2.3:443": "passes",
			"1337 tcp 10.0.0.5 10.0.0.5:3306":   "passes",
		}, map[string]string{
			"tcp 10.9.9.9 10.0.0.5:90": "passes", "tcp 10.9.9.9 10.0.0.5:105": "passes", "tcp 10.9.9.9 10.0.0.5:111": "15006",
			"tcp 10.9.9.9 10.0.0.5:80 eth1": "passes",
		}},
		{"lists", []string{flagInbound, "80", flagInboundExclude, "80", flagCIDRs, "10.1.0.0/16", flagOutbound, "9000", envGroups, "10,11"}, map[string]string{
			"10 tcp 10.0.0.5 10.1.2.3:443":  "15001",
			"11 tcp 10.0.0.5 10.2.2.3:443":  "passes",
			"11 tcp 10.0.0.5 10.2.2.3:9000": "15001",
			"12 tcp 10.0.0.5 10.1.2.3:443":  "passes",
		}, map[string]string{"tcp 10.9.9.9 10.0.0.5:80": "15006", "tcp 10.9.9.9 10.0.0.5:81": "passes"}},
		{"loopback that is listed", []string{flagCIDRs, "127.1.2.3/32"}, map[string]string{
			"1000 tcp 127.0.0.1 127.1.2.3:80": "15001",
			"1000 tcp 127.0.0.1 127.0.0.1:80": "passes",
			"1000 tcp 127.0.0.1 127.1.2.4:80": "passes",
		}, nil},
		{"loopback as a whole", appendOptions(usual, envLoopback, "127.0.0.0/8"), map[string]string{
			"1337 tcp 127.0.0.1 127.0.0.9:80": "passes",
		}, nil},
		{"virtual interfaces", appendOptions(usual, flagVirtual, "vif0", flagExcludeCIDRs, "10.1.0.0/16", flagOutboundExclude, "3306"), nil, map[string]string{
			"tcp 10.9.9.9 10.2.0.5:80 vif0": "15001", "tcp 10.9.9.9 10.1.0.5:80 vif0": "passes", "tcp 10.9.9.9 10.2.0.5:3306 vif0": "passes",
			"tcp 10.9.9.9 10.0.0.5:80": "15006",
		}},
		{"transparent", appendOptions(usual, flagMode, "TPROXY", flagInboundExclude, "90", flagVirtual, "vif0", flagRedirectDNS, "true", flagCaptureAllDNS, "true"), map[string]string{
			"1000 tcp 10.0.0.5 10.2.3.4:443":     "15001",
			"0/1337 tcp 10.0.0.5 10.2.3.4:443":   "passes",
			"0/1337 tcp 10.0.0.5 10.0.0.5:80":    "15006",
			"1337 tcp 10.0.0.5 10.0.0.5:80":      "15006",
			"1000 tcp 10.0.0.5 10.0.0.5:80":      "passes",
			"0/1337 tcp 10.0.0.5 10.0.0.5:15008": "passes",
			"0/1337 tcp 10.0.0.5 10.0.0.5:53":    "passes",
			"0/1337 tcp 127.0.0.6 10.0.0.5:80":   "passes",
			"0/1337 tcp 127.0.0.1 127.0.0.1:80":  "passes",
		}, map[string]string{
			"tcp 10.9.9.9 10.0.0.5:80": "15006", "tcp 10.9.9.9 10.0.0.5:90": "passes", "tcp 10.9.9.9 10.0.0.5:15008": "passes",
			"tcp 10.9.9.9 10.2.0.5:80 vif0": "15001",
		}},
		{"dual stack", appendOptions(usual, flagDualStack, "true", flagExcludeCIDRs, "fd00:1::/32"), map[string]string{
			"1000 tcp fd00::5 [fd00::9]:80":   "15001",
			"1000 tcp fd00::5 [fd00:1::9]:80": "passes",
			"1000 tcp ::1 [::1]:80":           "passes",
			"1337 tcp fd00::5 [fd00::5]:80":   "15006",
			"1337 tcp ::6 [fd00::5]:80":       "passes",
		}, map[string]string{"tcp fd00::9 [fd00::5]:80": "15006"}},
		{"IPv6 refused", appendOptions(usual, flagIPv6, "reject", flagExcludeCIDRs, "fd00:1::/32", flagInboundExclude, "90", flagRedirectDNS, "true", flagCaptureAllDNS, "true"), map[string]string{
			"1000 tcp 10.0.0.5 10.2.3.4:443":  "15001",
			"1000 tcp fd00::5 [fd00::9]:80":   "refused",
			"1000 udp fd00::5 [fd00::9]:53":   "refused",
			"1000 udp fd00::5 [fd00::9]:54":   "passes",
			"1000 tcp fd00::5 [fd00:1::9]:80": "passes",
			"1337 tcp fd00::5 [fd00::9]:80":   "passes",
			"1337 tcp fd00::5 [fd00::5]:80":   "passes",
			"1000 tcp fd00::5 [fd00::5]:80":   "passes",
			"1000 tcp ::1 [::1]:80":           "passes",
		}, map[string]string{"tcp fd00::9 [fd00::5]:80": "refused", "tcp fd00::9 [fd00::5]:90": "passes", "tcp fd00::9 [fd00::5]:15008": "passes"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			rules := compiled(t, c.options...)
			checkForm(t, rules)
			for text, want := range c.sent {
				if e := Explain(rules, sentPacket(t, text)); outcomeText(e) != want {
					t.Errorf("%s ends at %s, want %s: %s", text, outcomeText(e), want, e.Why)
				}
			}
			for text, want := range c.came {
				if e := Explain(rules, receivedPacket(text)); outcomeText(e) != want {
					t.Errorf("%s ends at %s, want %s: %s", text, outcomeText(e), want, e.Why)
				}
			}
		})
	}
}

func TestPassthroughWithClientAddressReachesTheApplication(t *testing.T) {
	rules := compiled(t, appendOptions(usual, flagMode, "TPROXY")...)
	p := sentPacket(t, "0/1337 tcp 10.9.9.9 10.0.0.5:80")
	p.Mark = 1337
	if e := Explain(rules, p); e.End != Passes {
		t.Errorf("the connection returns to the proxy: %s", e.Why)
	}
	answer := Packet{Direction: Outbound, Protocol: TCP, From: netip.MustParseAddrPort("10.0.0.5:80"), To: netip.MustParseAddrPort("10.9.9.9:4000"),
		Interface: "eth0", UID: number(t, "1000"), GID: number(t, "1000"), ConnMark: 1337, State: Established}
	if e := Explain(rules, answer); e.Mark != 1337 {
		t.Errorf("the reply is marked %d, so it leaves through eth0 instead of reaching the proxy", e.Mark)
	}
}

func TestZonesKeepTheAgentsQuestionsFromApplications(t *testing.T) {
	rules := compiled(t, appendOptions(usual, flagRedirectDNS, "true", flagCaptureAllDNS, "true", envExcludeGroups, "55", flagVirtual, "vif0")...)
	answer := receivedPacket("udp 8.8.8.8 10.0.0.5:4000")
	answer.From = netip.MustParseAddrPort("8.8.8.8:53")
	reply := sentPacket(t, "1337 udp 127.0.0.1 10.0.0.5:4000")
	reply.From, reply.State = netip.MustParseAddrPort("127.0.0.1:15053"), Established
	for name, c := range map[string]struct {
		packet Packet
		want   uint16
	}{
		"application's question":        {sentPacket(t, "1000 udp 10.0.0.5 8.8.8.8:53"), zoneAgent},
		"agent's question":              {sentPacket(t, "1337 udp 10.0.0.5 8.8.8.8:53"), zoneResolver},
		"agent's question by group":     {sentPacket(t, "0/1337 udp 10.0.0.5 8.8.8.8:53"), zoneResolver},
		"agent's answer":                {reply, zoneAgent},
		"resolver's answer":             {answer, zoneResolver},
		"question of an excluded group": {sentPacket(t, "1000/55 udp 10.0.0.5 8.8.8.8:53"), zoneResolver},
		"question of a virtual machine": {receivedPacket("udp 10.9.9.9 8.8.8.8:53 vif0"), zoneResolver},
		"something else":                {sentPacket(t, "1000 udp 10.0.0.5 8.8.8.8:123"), 0},
	} {
		if e := Explain(rules, c.packet); e.Zone != c.want {
			t.Errorf("%s is in zone %d, want %d", name, e.Zone, c.want)
		}
	}
}

func TestInvalidPacketsOfEveryProtocolAreDropped(t *testing.T) {
	rules := compiled(t, appendOptions(usual, flagDropInvalid, "true")...)
	for _, protocol := range []Protocol{TCP, UDP} {
		p := receivedPacket(string(protocol) + " 10.9.9.9 10.0.0.5:80")
		p.State = Invalid
		if e := Explain(rules, p); e.End != Dropped {
			t.Errorf("%s: %s", protocol, e.Why)
		}
	}
}

func TestExplanationNamesTheRuleThatDecidesAndWhy(t *testing.T) {
	rules := compiled(t, usual...)
	for text, want := range map[string]string{
		"1000 tcp 10.0.0.5 10.2.3.4:443": "It is redirected to port 15001 of this pod: all other outbound connections are captured (outbound/all).",
		"1337 tcp 10.0.0.5 10.2.3.4:443": "It is delivered to 10.2.3.4:443 and bypasses the proxy: the proxy's own traffic is not captured again (outbound/proxy-uid-1337).",
		"1000 tcp fd00::5 [fd00::9]:443": "It is delivered to [fd00::9]:443 and bypasses the proxy: IPv6 is not captured.",
		"1000 udp 10.0.0.5 10.2.3.4:443": "It is delivered to 10.2.3.4:443 and bypasses the proxy: no rule captures it.",
	} {
		if got := Explain(rules, sentPacket(t, text)).Why; got != want {
			t.Errorf("%s:\n got %s\nwant %s", text, got, want)
		}
	}
}
