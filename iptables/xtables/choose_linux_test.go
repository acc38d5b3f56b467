package xtables

import (
	"strings"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/internal/testns"
	"github.com/pilotfish-mesh/pilotfish/iptables"
)

func TestFamilyFallsBackToTheOtherFlavour(t *testing.T) {
	ns := testns.New(t)
	b := backend(t, ns, "")
	for i := range b.tools {
		if b.tools[i].family == iptables.IPv6 && b.tools[i].flavour == NFT {
			b.tools[i].restore = "/bin/false"
		}
	}
	apply(t, b, wordy())
	s, err := b.readTables(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for tool, tables := range s {
		ours := false
		for i := range tables {
			ours = ours || !ownOf(&tables[i]).empty()
		}
		if want := (tool.family == iptables.IPv4) == (tool.flavour == NFT); ours != want {
			t.Errorf("%s has rules of ours: %v, want %v", tool, ours, want)
		}
	}
	in, err := b.Read(t.Context())
	if err != nil || len(in.Strange) > 0 {
		t.Fatal(in, err)
	}
	if diff := iptables.Diff(wordy(), in); len(diff) > 0 {
		t.Error(iptables.Summary(diff))
	}
}

func TestProgramsThatAllFailChangeNothing(t *testing.T) {
	ns := testns.New(t)
	before := everything(t, ns)
	b := backend(t, ns, "")
	for i := range b.tools {
		if b.tools[i].family == iptables.IPv6 {
			b.tools[i].restore = "/bin/false"
		}
	}
	err := b.Apply(t.Context(), wordy())
	if err == nil || !strings.Contains(err.Error(), "/bin/false") {
		t.Errorf("got %v", err)
	}
	unchanged(t, b, before, everything(t, ns))
}

// istio creates an abridged version of the rules of Istio's init container.
const istio = `
iptables-nft-restore --noflush <<END
*nat
:ISTIO_INBOUND - [0:0]
:ISTIO_IN_REDIRECT - [0:0]
:ISTIO_OUTPUT - [0:0]
:ISTIO_REDIRECT - [0:0]
-A ISTIO_REDIRECT -p tcp -j REDIRECT --to-ports 15001
-A ISTIO_IN_REDIRECT -p tcp -j REDIRECT --to-ports 15006
-A PREROUTING -p tcp -j ISTIO_INBOUND
-A ISTIO_INBOUND -p tcp --dport 15008 -j RETURN
-A ISTIO_INBOUND -p tcp -j ISTIO_IN_REDIRECT
-A OUTPUT -j ISTIO_OUTPUT
-A ISTIO_OUTPUT -m owner --uid-owner 1337 -j RETURN
-A ISTIO_OUTPUT -j ISTIO_REDIRECT
COMMIT
END`

func TestRulesOfIstioAreReadAndReplaced(t *testing.T) {
	ns := testns.New(t)
	shell(t, ns, istio)
	b := backend(t, ns, "")
	in, err := b.Read(t.Context())
	if err != nil || len(in.Strange) > 0 || in.Rules == nil || len(in.Rules.Chains) != 6 {
		t.Fatalf("Istio's rules are read as %+v, %v", in, err)
	}
	apply(t, b, small(15001))
	in, err = b.Read(t.Context())
	if err != nil || len(in.Strange) > 0 {
		t.Fatal(in, err)
	}
	if diff := iptables.Diff(small(15001), in); len(diff) > 0 {
		t.Error(iptables.Summary(diff))
	}
	if all := everything(t, ns); strings.Contains(all, "15006") {
		t.Errorf("rules of Istio remain:\n%s", all)
	}
}
