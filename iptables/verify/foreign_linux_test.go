package verify

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/internal/testns"
	"github.com/pilotfish-mesh/pilotfish/iptables"
)

// Packets are also sent to destinations that only rules of other programs match.
func TestForeignRulesForFewDestinationsAreDetected(t *testing.T) {
	for name, c := range map[string]struct{ script, consequence string }{
		"a port": {`add table ip x; add chain ip x o { type nat hook output priority -101; }; add rule ip x o tcp dport 443 redirect to :99`,
			":443 from uid 10123, gid 10123 reaches port 99"},
		"ports of a set, for both families": {`add table inet x; add chain inet x o { type nat hook output priority -101; }; add rule inet x o tcp dport { 80, 8443 } redirect to :99`,
			":8443 from uid 10123, gid 10123 reaches port 99"},
		"an address": {`add table ip x; add chain ip x o { type filter hook output priority -300; }; add rule ip x o ip daddr 10.96.0.10 drop`,
			"10.96.0.10:30123 from uid 10123, gid 10123 does not arrive"},
		"a network, in a chain of its own": {`add table ip x; add chain ip x c; add rule ip x c ip daddr 10.96.0.0/16 tcp dport 81 drop; add chain ip x o { type filter hook output priority -300; }; add rule ip x o jump c`,
			"10.96.0.0:81 from uid 10123, gid 10123 does not arrive"},
		"ports of iptables' match multiport": {`iptables-nft -A OUTPUT -p tcp -m multiport --dports 80,8444 -j DROP`, ":8444 from uid 1337, gid 10123 does not arrive"},
		"inbound": {`add table ip x; add chain ip x i { type filter hook prerouting priority -300; }; add rule ip x i tcp dport 9090 drop`,
			"inbound IPv4 TCP to port 9090 does not arrive"},
		"what the proxy sends": {`add table ip x; add chain ip x o { type filter hook output priority 10; }; add rule ip x o tcp dport 444 drop`,
			":444 from uid 1337, gid 10123 does not arrive"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			want := compile(t, nil)
			ns, b := inForce(t, want)
			nftRun(t, ns, c.script)
			r := report(t, ns, b, want)
			expect(t, r, "", c.consequence)
			if len(r.Differences) > 0 {
				t.Errorf("our rules are unchanged, but differences are reported: %v", r.Differences)
			}
			if !strings.Contains(strings.Join(r.Notes, "\n"), "another program's rules apply too: chain ") {
				t.Errorf("the rules of other programs are not noted: %q", r.Notes)
			}
		})
	}
}

// Firewalls allow DHCP with such rules. No application connects to these addresses, so redirection is not affected.
func TestForeignRulesForBroadcastAddressesAreNoFault(t *testing.T) {
	want := compile(t, nil)
	ns, b := inForce(t, want)
	nftRun(t, ns, `add table ip x; add chain ip x o { type filter hook output priority -300; }; add rule ip x o ip daddr { 255.255.255.255, 127.255.255.255 } accept`)
	r := report(t, ns, b, want)
	if err := r.Err(); err != nil {
		t.Error(err)
	}
	if told := strings.Join(r.Unproven, "\n"); !strings.Contains(told, "255.255.255.255: a broadcast address is not tested") {
		t.Errorf("the skipped destination is not reported: %q", told)
	}
}

func TestOwnIPTablesRulesAreNotForeign(t *testing.T) {
	want := compile(t, nil)
	ns, b := inForce(t, want)
	nftRun(t, ns, `add table ip nat; add chain ip nat PILOTFISH_OUTPUT; add rule ip nat PILOTFISH_OUTPUT tcp dport 80 return;
add chain ip nat OUTPUT { type nat hook output priority -100; }; add rule ip nat OUTPUT counter jump PILOTFISH_OUTPUT`)
	all, err := b.Foreign(t.Context())
	if err != nil || len(all) > 0 {
		t.Errorf("%v %v", all, err)
	}
	if named := foreignDestinations([]iptables.ForeignChain{{NamedDestinations: []iptables.NamedDestination{{Port: 1}, {Port: 1}}}}); len(named) != 1 {
		t.Errorf("a destination is listed twice: %v", named)
	}
}

func nftRun(t *testing.T, ns *testns.Namespace, script string) {
	t.Helper()
	err := ns.Run(func() error {
		cmd := exec.Command("nft", "-f", "-")
		if words := strings.Fields(script); words[0] == "iptables-nft" {
			cmd = exec.Command(words[0], words[1:]...)
		}
		cmd.Stdin = strings.NewReader(strings.ReplaceAll(script, "; add", "\nadd"))
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Logf("%s", out)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
