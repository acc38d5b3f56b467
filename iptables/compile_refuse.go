package iptables

import "slices"

// refusal returns the chains that reject traffic of the refused family that would otherwise be captured. The conditions
// are the same, the verdict differs. They are in the filter table, the only one in which every back end can reject.
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
	f.Interception = TProxyMode // in this mode the proxy's own calls are not redirected
	chains := []*chain{f.redirectChain(), f.inRedirectChain(), f.dnsChain(), inbound, f.virtualChain(), f.outputChain()}
	for _, n := range chains {
		convertToReject(n)
	}
	kept := usedChains(append(chains, in, through, out)...)
	limitFamilies(kept, c.refused)
	return kept
}

// withFamilies returns a compiler with the same options for other families.
func (c *compiler) withFamilies(families Families) *compiler {
	f := *c
	f.families, f.refused = families, 0
	f.OutboundCIDRs, f.OutboundExcludeCIDRs, f.DNSServers = c.original.OutboundCIDRs, c.original.OutboundExcludeCIDRs, c.original.DNSServers
	f.limitAddresses()
	return &f
}

// convertToReject converts a chain that redirects into one that rejects. The proxy's own traffic, including self-calls,
// is accepted.
func convertToReject(n *chain) {
	n.Table = Filter
	for i := range n.Rules {
		r := &n.Rules[i]
		r.ID = "refuse/" + r.ID
		if r.Verdict.Action == Redirect {
			r.Verdict = Verdict{Action: Reject}
			r.Reason = "what would be captured is refused, as the proxy does not take this address family"
		}
	}
	if n.Name == chainInbound && len(n.Rules) > 0 {
		n.Rules = slices.Insert(n.Rules, 0, Rule{ID: "refuse/inbound/local", Match: Match{InInterface: loopback},
			Verdict: Verdict{Action: Return}, Reason: "traffic within the pod is left alone"})
	}
}
