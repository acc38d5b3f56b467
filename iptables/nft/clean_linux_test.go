package nft

import (
	"context"
	"os/exec"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/internal/testns"
)

// snapshot returns all state of the namespace that redirection could change. Routes that the kernel derives from
// addresses are omitted, because it adds them asynchronously.
func snapshot(t testing.TB, ns *testns.Namespace) string {
	t.Helper()
	var all []byte
	err := ns.Run(func() (err error) {
		all, err = exec.Command("sh", "-c", "nft -s list ruleset; ip rule; ip -6 rule; (ip route show table all; ip -6 route show table all) | grep -v 'proto kernel'; ip -details addr show").CombinedOutput()
		return err
	})
	if err != nil {
		t.Fatalf("%v: %s", err, all)
	}
	return string(all)
}

const foreign = `
add table inet filter
add chain inet filter input { type filter hook input priority 0; }
add rule inet filter input tcp dport 9 drop comment "not ours"
add table ip nat
add chain ip nat ISTIO_OUTPUT
add chain ip nat output { type nat hook output priority -100; }
add rule ip nat output tcp dport 99 redirect to :98
add set inet filter pilotfish { type ipv4_addr; }
`

// foreignThings creates objects of other programs that resemble ours.
func foreignThings(t *testing.T, ns *testns.Namespace) {
	t.Helper()
	err := ns.Run(func() error {
		return exec.Command("sh", "-c", `set -e
			echo '`+foreign+`' | nft -f -
			ip addr add 192.0.2.1/32 dev lo; ip -6 addr add ::7/128 dev lo nodad
			ip rule add fwmark 1337 lookup 133 priority 1336
			ip rule add fwmark 1337 lookup 200 priority 1337
			ip route add 192.0.2.0/24 dev lo table 133`).Run()
	})
	if err != nil {
		t.Fatal(err)
	}
}

func removeForeignRoute(t *testing.T, ns *testns.Namespace) {
	t.Helper()
	err := ns.Run(func() error {
		return exec.Command("ip", "route", "del", "192.0.2.0/24", "dev", "lo", "table", "133").Run()
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestCleanRestoresThePreviousState(t *testing.T) {
	for name, change := range choices() {
		t.Run(name, func(t *testing.T) {
			ns := testns.New(t)
			foreignThings(t, ns)
			before := snapshot(t, ns)
			b := backend(t, Config{NetNS: int(ns.Handle)})
			if err := b.Apply(context.Background(), compile(t, change)); err != nil {
				t.Fatal(err)
			}
			if err := b.Clean(context.Background()); err != nil {
				t.Fatal(err)
			}
			if after := snapshot(t, ns); after != before {
				t.Errorf("before:\n%s\nafter:\n%s", before, after)
			}
			got, err := b.Read(context.Background())
			if err != nil || got.Rules != nil || len(got.Strange) > 0 {
				t.Errorf("%+v %v is installed after Clean", got, err)
			}
		})
	}
}

func nftCommand(t testing.TB, ns *testns.Namespace, command string) {
	t.Helper()
	var out []byte
	err := ns.Run(func() (err error) {
		out, err = exec.Command("nft", command).CombinedOutput()
		return err
	})
	if err != nil {
		t.Fatalf("nft %s: %v: %s", command, err, out)
	}
}
