package xtables

import (
	"reflect"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/iptables"
)

// iptables-save also prints rules of other programs. A rule that is decoded into the model must be unchanged when it is
// rendered and decoded again.
func FuzzForeignRulesAreDecodedExactlyOrRefused(f *testing.F) {
	for _, line := range []string{
		`-d 10.0.0.0/8 ! -o lo -p tcp -m tcp ! --dport 15008 -m owner --uid-owner 1337 -m comment --comment "a \"b\" c" -j ISTIO_REDIRECT`,
		`-p tcp -m multiport --dports 1,2,3:5 -m iprange ! --src-range 10.0.0.0-10.0.0.255 -j REDIRECT --to-ports 15001`,
		`-p tcp -m conntrack --ctdir REPLY -m conntrack --ctstate NEW,RELATED -j TPROXY --on-port 15006 --on-ip 0.0.0.0 --tproxy-mark 0x539/0xffffffff`,
		`-m mark ! --mark 0x1/0x3 -m connmark --mark 0x539 -j CONNMARK --restore-mark --nfmask 0xffffffff --ctmask 0xffffffff`,
		`-p udp -m udp --sport 53 -j CT --zone 1`, `-i eth0 -j MARK --set-xmark 0x53a/0xffffffff`, `! -s 1.2.3.4/32 -j REJECT --reject-with tcp-reset`,
		`-m statistic --mode random --probability 0.5 -j ACCEPT`, `-j "`, `! ! -j RETURN`, `-m owner --uid-owner 1-5 -j RETURN`,
	} {
		f.Add(line)
	}
	f.Fuzz(func(t *testing.T, line string) {
		rule, err := decodeRule(line)
		if err != nil {
			return
		}
		lines, err := renderRule(rule, iptables.IPv4)
		if err != nil {
			t.Fatalf("%q is decoded as %+v, which cannot be rendered: %v", line, rule, err)
		}
		if len(lines) != 1 {
			return // the rule has several families, or lists that are rendered as several rules
		}
		again, err := decodeRule(lines[0])
		if err != nil || !reflect.DeepEqual(again, rule) {
			t.Fatalf("%q is decoded as\n%+v, rendered as %q, and then decoded as\n%+v, %v", line, rule, lines[0], again, err)
		}
	})
}

func FuzzForeignTablesAreParsedWithoutPanic(f *testing.F) {
	f.Add("*nat\n:OUTPUT ACCEPT [0:0]\n:ISTIO_OUTPUT - [0:0]\n-A OUTPUT -j ISTIO_OUTPUT\n-A ISTIO_OUTPUT -p tcp -j REDIRECT --to-ports 15001\nCOMMIT\n")
	f.Add("# Warning: iptables-legacy tables present\n*filter\n:PILOTFISH_GUARD - [0:0]\nCOMMIT")
	f.Add("*\n:\n-A \nCOMMIT")
	f.Fuzz(func(t *testing.T, text string) {
		all, err := parseSaved(text)
		if err != nil {
			return
		}
		for i := range all {
			_ = transaction(all[i].table, ownOf(&all[i]), ownRules{})
			decodeTable(&all[i], iptables.IPv4)
		}
	})
}
