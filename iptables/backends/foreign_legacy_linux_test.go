package backends

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/internal/testns"
	"github.com/pilotfish-mesh/pilotfish/iptables"
)

func TestForeignLegacyRulesAreReported(t *testing.T) {
	ns := testns.New(t)
	b, err := New(Config{NetNS: int(ns.Handle)})
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		"iptables-legacy -A OUTPUT -d 10.96.0.10 -p tcp --dport 443 -j DROP", "iptables-legacy -A OUTPUT -p udp --dport 5000:6000 -j DROP",
		"iptables-legacy -A OUTPUT -p tcp -m multiport --dports 80,8000:8010,9000 -j DROP", "iptables-legacy -A OUTPUT -p tcp -m multiport --sports 7000 -j DROP",
		"ip6tables-legacy -P INPUT DROP", "ip6tables-legacy -t mangle -A PREROUTING -d fd00::7 -j ACCEPT",
		"iptables-legacy -t nat -N PILOTFISH_OUTPUT", "iptables-legacy -t nat -A OUTPUT -j PILOTFISH_OUTPUT",
		"iptables-legacy -t nat -A PILOTFISH_OUTPUT -d 192.0.2.1 -j RETURN", "iptables-legacy -t nat -A OUTPUT -d 192.0.2.7 -p tcp -j DNAT --to 192.0.2.8",
	} {
		legacyCommand(t, ns, line)
	}
	all, err := b.Foreign(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	told := map[string][]iptables.NamedDestination{}
	for _, c := range all {
		told[c.String()] = c.NamedDestinations
	}
	for chain, named := range map[string]string{
		"chain OUTPUT of table ip filter of iptables-legacy (hook output, priority 0) has 4 rules":                    "[{443 10.96.0.10} {5000 invalid IP} {80 invalid IP} {8000 invalid IP} {9000 invalid IP}]",
		"chain INPUT of table ip6 filter of iptables-legacy (hook input, priority 0) has 0 rules and the policy drop": "[]",
		"chain PREROUTING of table ip6 mangle of iptables-legacy (hook prerouting, priority -150) has 1 rule":         "[{0 fd00::7}]",
		"chain OUTPUT of table ip nat of iptables-legacy (hook output, priority -100) has 1 rule":                     "[{0 192.0.2.7}]",
	} {
		if got, ok := told[chain]; !ok || fmt.Sprint(got) != named {
			t.Errorf("%s: %v, of %v", chain, got, told)
		}
	}
	if len(all) != 4 {
		t.Errorf("%d chains: %v", len(all), all)
	}
}

func legacyCommand(t *testing.T, ns *testns.Namespace, line string) {
	t.Helper()
	words := strings.Fields(line)
	if _, err := exec.LookPath(words[0]); err != nil {
		t.Skipf("%v: install the package iptables", err)
	}
	cmd := exec.Command(words[0], words[1:]...)
	cmd.Env = append(cmd.Environ(), "XTABLES_LOCKFILE="+filepath.Join(t.TempDir(), "lock"))
	var output strings.Builder
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := ns.Run(cmd.Start); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%s: %v: %s", line, err, output.String())
	}
}
