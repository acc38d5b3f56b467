package nft

import (
	"context"
	"os/exec"
	"strings"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/internal/testns"
	"github.com/pilotfish-mesh/pilotfish/iptables"
)

// The longest option lists yield a batch that exceeds the default send buffer of a socket.
func TestLongListsAreOneTransaction(t *testing.T) {
	t.Parallel()
	ns := testns.New(t)
	b := backend(t, Config{NetNS: int(ns.Handle)})
	rules := compile(t, func(o *iptables.Options) {
		o.InboundPorts.All, o.OutboundCIDRs.All, o.DualStack, o.RedirectDNS, o.CaptureAllDNS = true, true, true, true, true
		o.ProxyUIDs = nil
		for i := range uint32(400) {
			o.ProxyUIDs = append(o.ProxyUIDs, 10*i)
			o.OutboundExcludePorts = append(o.OutboundExcludePorts, port(uint16(1000+7*i), uint16(1000+7*i)))
		}
	})
	if err := b.Apply(context.Background(), rules); err != nil {
		t.Fatal(err)
	}
	checkInForce(t, b, rules)
	if err := b.Clean(context.Background()); err != nil {
		t.Error(err)
	}
}

// The kernel retains the rules of a dormant table, but does not evaluate them.
func TestDormantTableIsReportedAndReactivated(t *testing.T) {
	t.Parallel()
	ns := testns.New(t)
	b := backend(t, Config{NetNS: int(ns.Handle)})
	rules := compile(t, choices()["all"])
	if err := b.Apply(context.Background(), rules); err != nil {
		t.Fatal(err)
	}
	err := ns.Run(func() error {
		return exec.Command("nft", "add table inet pilotfish { flags dormant; }").Run()
	})
	if err != nil {
		t.Fatal(err)
	}
	in, err := b.Read(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(strings.Join(in.Strange, "\n"), "dormant") {
		t.Errorf("a dormant table is not reported: %q", in.Strange)
	}
	if err := b.Apply(context.Background(), rules); err != nil {
		t.Fatal(err)
	}
	checkInForce(t, b, rules)
}
