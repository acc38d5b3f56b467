package iptables

import "slices"

// refusal are the chains that refuse of a family what would be captured of it: the same decisions, with another end. They
// are of the filter table, where alone every back end can refuse.
func (c *compiler) refusal() []Chain {
	f := c.of(c.refused)
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
	f.Interception = TProxyMode // in which the proxy's own calls are let go
	chains := []*chain{f.redirectChain(), f.inRedirectChain(), f.dnsChain(), inbound, f.virtualChain(), f.outputChain()}
	for _, n := range chains {
		refuse(n)
	}
	kept := used(append(chains, in, through, out)...)
	limit(kept, c.refused)
	return kept
}

// of is a compiler of the same options for families.
func (c *compiler) of(families Families) *compiler {
	f := *c
	f.families, f.refused = families, 0
	f.OutboundCIDRs, f.OutboundExcludeCIDRs, f.DNSServers = c.asked.OutboundCIDRs, c.asked.OutboundExcludeCIDRs, c.asked.DNSServers
	f.limitAddresses()
	return &f
}

// refuse turns a chain that redirects into one that refuses. What the proxy sends, to itself too, is left alone.
func refuse(n *chain) {
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
