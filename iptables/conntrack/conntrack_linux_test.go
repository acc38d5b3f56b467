package conntrack

import (
	"testing"

	"github.com/pilotfish-mesh/pilotfish/iptables"
)

func rules(t *testing.T, change func(*iptables.Options)) *iptables.RuleSet {
	t.Helper()
	o := iptables.DefaultOptions()
	change(&o)
	r, err := iptables.Compile(o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestOnlyStaleEntriesAreDeleted(t *testing.T) {
	all := rules(t, func(o *iptables.Options) { o.OutboundCIDRs.All = true })
	dns := rules(t, func(o *iptables.Options) { o.OutboundCIDRs.All, o.RedirectDNS, o.CaptureAllDNS = true, true, true })
	dnsAndInbound := rules(t, func(o *iptables.Options) {
		o.OutboundCIDRs.All, o.RedirectDNS, o.CaptureAllDNS, o.InboundPorts.All = true, true, true, true
	})
	for _, c := range []struct {
		name          string
		before, after *iptables.RuleSet
		want          Stale
	}{
		{"the same", all, all, Stale{}},
		{"the first", nil, all, Stale{Ended: true}},
		{"DNS from now on", all, dns, Stale{Ended: true, DNS: true}},
		{"DNS as before", dns, dnsAndInbound, Stale{Ended: true}},
		{"none any more", dns, nil, Stale{Ended: true, DNS: true}},
		{"none as before", nil, nil, Stale{}},
	} {
		if got := StaleAfter(c.before, c.after); got != c.want {
			t.Errorf("%s: %+v, not %+v", c.name, got, c.want)
		}
	}
}
