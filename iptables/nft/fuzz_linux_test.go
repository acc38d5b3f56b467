package nft

import (
	"context"
	"encoding/binary"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pilotfish-mesh/pilotfish/internal/testns"
)

// FuzzDecode decodes rules with arbitrary expressions. Rules that are not ours are reported as strange, without a panic.
func FuzzDecode(f *testing.F) {
	b := newBatch(0)
	for _, name := range []string{"all", "tproxy dual", "owners", "refuse IPv6"} {
		if err := b.replace(canonical(f, name), &state{}); err != nil {
			f.Fatal(err)
		}
	}
	for left := b.out; len(left) > 0; {
		n := binary.NativeEndian.Uint32(left)
		if kind := binary.NativeEndian.Uint16(left[4:]); kind == unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWRULE {
			f.Add(left[unix.NLMSG_HDRLEN+4 : n])
		}
		left = left[n:]
	}
	f.Fuzz(func(_ *testing.T, body []byte) {
		s := &state{exists: true, sets: map[string]kernelSet{"__set%d": {elements: []kernelElement{{value: body}}}}}
		s.chains = []kernelChain{{name: "ISTIO_OUTPUT", rules: []kernelRule{kernelRuleOf(parse(body))}}}
		decode(s)
	})
}

func TestRulesThatTheModelCannotExpressAreStrange(t *testing.T) {
	for _, rule := range []string{
		"ISTIO_OUTPUT limit rate 1/second return", "ISTIO_OUTPUT ip ttl 3 return", "ISTIO_OUTPUT tcp dport 1 counter",
		"ISTIO_OUTPUT tcp dport 1 log return", "ISTIO_OUTPUT meta skuid > 5 return", "ISTIO_OUTPUT ip daddr 10.0.0.1 dnat to 10.0.0.2",
		"nat_output tcp dport 80 redirect",
	} {
		t.Run(rule, func(t *testing.T) {
			ns := testns.New(t)
			b := backend(t, Config{NetNS: int(ns.Handle)})
			mustApply(t, b, compile(t, choices()["all"]))
			nftCommand(t, ns, "add rule inet pilotfish "+rule)
			got, err := b.Read(context.Background())
			if err != nil || len(got.Strange) != 1 {
				t.Errorf("%v %v", got.Strange, err)
			}
			mustApply(t, b, compile(t, choices()["all"]))
			checkInForce(t, b, compile(t, choices()["all"]))
		})
	}
}

func TestForeignChainsAndSetsInOurTableAreReportedAndRemoved(t *testing.T) {
	ns := testns.New(t)
	b := backend(t, Config{NetNS: int(ns.Handle)})
	mustApply(t, b, compile(t, choices()["all"]))
	nftCommand(t, ns, "add chain inet pilotfish late { type filter hook input priority 0; policy drop; }")
	nftCommand(t, ns, "add set inet pilotfish friends { type ipv4_addr; }")
	got, err := b.Read(context.Background())
	if err != nil || len(got.Strange) != 2 {
		t.Errorf("%v %v", got.Strange, err)
	}
	mustApply(t, b, compile(t, choices()["all"]))
	checkInForce(t, b, compile(t, choices()["all"]))
}
