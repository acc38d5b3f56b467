package iptables

import "slices"

// refusal returns the chains that reject traffic of the refused address families (--ipv6 reject). They match the same
// traffic as the capture rules of these families would. They are in the table filter, because iptables can reject only
// there.
func (c *compiler) refusal() []Chain {
	f := c.withFamilies(c.refused)
	in, out, through := newBase(Filter, Input), newBase(Filter, Output), newBase(Filter, Forward)
	fresh := []State{New}
	for _, name := range f.VirtualInterfaces {
		in.jump("refuse/hook-here-"+name, Match{InInterface: name, States: fresh}, chainVirtual)
	}
	in.jump("refuse/hook-inbound", Match{Protocol: TCP, States: fresh}, chainInbound)
	out.jump("refuse/hook-outbound", Match{States: fresh}, chainOutput)
	for _, name := range f.VirtualInterfaces {
		through.jump("refuse/hook-virtual-"+name, Match{InInterface: name, States: fresh}, chainVirtual)
	}
	f.Interception = RedirectMode
	inbound := f.inboundChain()
	f.Interception = TProxyMode // in this mode outputChain does not redirect the proxy's self-calls
	chains := []*chain{f.redirectChain(), f.inRedirectChain(), f.dnsChain(), inbound, f.virtualChain(), f.outputChain()}
	for _, n := range chains {
		convertToReject(n)
	}
	kept := usedChains(append(chains, in, through, out)...)
	limitFamilies(kept, c.refused)
	return kept
}

// withFamilies returns a copy of the compiler that captures these address families.
func (c *compiler) withFamilies(families Families) *compiler {
	f := *c
	f.families, f.refused = families, 0
	f.OutboundCIDRs, f.OutboundExcludeCIDRs, f.DNSServers = c.original.OutboundCIDRs, c.original.OutboundExcludeCIDRs, c.original.DNSServers
	f.limitAddresses()
	return &f
}

// convertToReject moves a nat chain to the filter table, and replaces its redirections by rejections. It adds a first
// rule to the inbound chain that exempts traffic on lo, such as the proxy's self-calls.
func convertToReject(n *chain) {
	n.Table = Filter
	for i := range n.Rules {
		r := &n.Rules[i]
		r.ID = "refuse/" + r.ID
		if r.Verdict.Action == Redirect {
			r.Verdict = Verdict{Action: Reject}
			r.Reason = refusedReason
		}
	}
	if n.Name == chainInbound && len(n.Rules) > 0 {
		n.Rules = slices.Insert(n.Rules, 0, Rule{ID: "refuse/inbound/local", Match: Match{InInterface: loopback},
			Verdict: Verdict{Action: Return}, Reason: reasons["inbound/local"]})
	}
}
