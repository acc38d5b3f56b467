package iptables

import (
	"net/netip"
	"slices"
	"strconv"
)

// nat returns the chains of the nat table. They redirect outbound connections and DNS queries and, in REDIRECT mode,
// inbound connections.
func (c *compiler) nat() []Chain {
	return usedChains(c.redirectChain(), c.inRedirectChain(), c.dnsChain(), c.inboundChain(), c.virtualChain(), c.outputChain(),
		c.natPrerouting(), c.natOutput())
}

func (c *compiler) redirectChain() *chain {
	n := newChain(NAT, chainRedirect)
	n.add("redirect/outbound", Match{Protocol: TCP}, Verdict{Action: Redirect, Port: c.ProxyPort})
	return n
}

func (c *compiler) inRedirectChain() *chain {
	n := newChain(NAT, chainInRedirect)
	n.add("redirect/inbound", Match{Protocol: TCP}, Verdict{Action: Redirect, Port: c.InboundPort})
	return n
}

func (c *compiler) natPrerouting() *chain {
	n := newBase(NAT, Prerouting)
	for _, name := range c.VirtualInterfaces {
		n.jump("hook/nat-virtual-"+name, Match{InInterface: name}, chainVirtual)
	}
	n.jump("hook/nat-inbound", Match{Protocol: TCP}, chainInbound)
	return n
}

func (c *compiler) natOutput() *chain {
	n := newBase(NAT, Output)
	n.jump("hook/nat-outbound", Match{}, chainOutput)
	return n
}

// inboundChain returns the inbound chain of REDIRECT mode.
func (c *compiler) inboundChain() *chain {
	n := newChain(NAT, chainInbound)
	if c.tproxy() || !c.inbound() {
		return n
	}
	c.inboundExceptions(n)
	c.inboundCapture(n, Match{Protocol: TCP}, chainInRedirect)
	return n
}

// inboundExceptions adds rules for traffic that is exempt from inbound capture. They are the same in both interception
// modes.
func (c *compiler) inboundExceptions(n *chain) {
	for _, name := range c.ExcludeInterfaces {
		n.leave("inbound/exclude-interface-"+name, Match{InInterface: name})
	}
	for _, name := range c.VirtualInterfaces {
		n.leave("inbound/virtual-"+name, Match{InInterface: name})
	}
}

// inboundCapture adds rules to n that jump to the chain called target for each captured port. It also adds rules that
// exempt the HBONE port and excluded ports.
func (c *compiler) inboundCapture(n *chain, m Match, target string) {
	at := func(p PortRange) Match {
		m := m
		m.DestinationPorts = []PortRange{p}
		return m
	}
	if tunnel := func(p PortRange) bool { return p.Contains(c.TunnelPort) }; c.InboundPorts.All || slices.ContainsFunc(c.InboundPorts.Listed, tunnel) {
		n.leave("inbound/tunnel", at(PortRange{c.TunnelPort, c.TunnelPort}))
	}
	if !c.InboundPorts.All {
		for _, p := range c.InboundPorts.Listed {
			n.jump("inbound/port-"+p.String(), at(p), target)
		}
		return
	}
	for _, p := range c.InboundExcludePorts {
		n.leave("inbound/exclude-port-"+p.String(), at(p))
	}
	n.jump("inbound/all", m, target)
}

// virtualChain returns the chain for traffic from virtual interfaces. It captures the same traffic as the chain for
// applications does.
func (c *compiler) virtualChain() *chain {
	n := newChain(NAT, chainVirtual)
	if len(c.VirtualInterfaces) == 0 {
		return n
	}
	for _, p := range c.OutboundExcludePorts {
		n.leave("virtual/exclude-port-"+p.String(), Match{Protocol: TCP, DestinationPorts: []PortRange{p}})
	}
	if c.dns && c.open {
		n.jump("virtual/dns", Match{}, chainDNS)
	}
	c.outboundCapture(n, "virtual")
	return n
}

// outputChain returns the chain for traffic that processes of the pod send. Its rules match in this order: exclusions, the
// proxy's traffic, DNS, local traffic, captured traffic.
func (c *compiler) outputChain() *chain {
	n := newChain(NAT, chainOutput)
	for _, name := range c.ExcludeInterfaces {
		n.leave("outbound/exclude-interface-"+name, Match{OutInterface: name})
	}
	for _, p := range c.OutboundExcludePorts {
		n.leave("outbound/exclude-port-"+p.String(), Match{Protocol: TCP, DestinationPorts: []PortRange{p}})
	}
	c.proxyRules(n)
	c.groupRules(n)
	n.jump("outbound/dns", Match{}, chainDNS)
	c.localRules(n)
	c.outboundCapture(n, "outbound")
	return n
}

// selfCall returns the match for connections that the proxy (o) opens through lo to its own pod. It excludes
// connections to the application's loopback addresses and to the exempt ports.
func (c *compiler) selfCall(l local, o owner) Match {
	m := o.match
	m.Protocol, m.OutInterface = TCP, loopback
	m.Destination, m.NotDestination = oneNet(l.loopback), true
	m.DestinationPorts, m.NotDestinationPorts = c.exemptPorts(), true
	return m
}

// exemptPorts returns the ports to which self-calls are not redirected: HBONE and, with DNS capture, DNS.
func (c *compiler) exemptPorts() []PortRange {
	spared := onePort(c.TunnelPort)
	if c.dns {
		spared = slices.Insert(spared, 0, PortRange{53, 53})
	}
	return spared
}

func (c *compiler) proxyRules(n *chain) {
	if !c.tproxy() { // with TPROXY, the mangle table marks self-calls instead, which preserves their source address
		c.selfCalls(n)
	}
	for _, o := range c.owners() {
		n.leave("outbound/proxy-"+o.name, o.match)
	}
}

func (c *compiler) selfCalls(n *chain) {
	for _, l := range c.locals() {
		n.leave("outbound/passthrough-"+l.name, Match{OutInterface: loopback, Source: oneNet(l.passthrough)})
	}
	for _, o := range c.owners() {
		for _, l := range c.locals() {
			n.jump("outbound/self-call-"+o.name+"-"+l.name, c.selfCall(l, o), chainInRedirect)
		}
	}
}

func (c *compiler) groupRules(n *chain) {
	for _, gid := range c.ExcludeOwnerGroups {
		n.leave("outbound/exclude-group-"+decimal(gid), Match{GIDs: []uint32{gid}})
	}
	if !c.OwnerGroups.All {
		n.leave("outbound/other-groups", Match{GIDs: unique(c.OwnerGroups.Listed), NotGIDs: true})
	}
}

// localRules exempts traffic between applications of the pod. If the captured CIDRs include loopback addresses, it exempts
// only LoopbackCIDR or ::1.
func (c *compiler) localRules(n *chain) {
	for _, l := range c.locals() {
		f := familyOf(l.loopback.Addr())
		if c.includesLoopback(f) {
			n.leave("outbound/localhost-"+l.name, Match{Destination: oneNet(l.loopback)})
		} else {
			n.leave("outbound/local-"+l.name, Match{Families: f, OutInterface: loopback})
		}
	}
}

func (c *compiler) includesLoopback(f Families) bool {
	return slices.ContainsFunc(c.OutboundCIDRs.Listed, func(p netip.Prefix) bool { return familyOf(p.Addr()) == f && p.Addr().IsLoopback() })
}

func (c *compiler) outboundCapture(n *chain, kind string) {
	for _, p := range c.OutboundExcludeCIDRs {
		n.leave(kind+"/exclude-cidr-"+p.String(), Match{Destination: oneNet(p)})
	}
	for _, p := range c.OutboundPorts {
		n.jump(kind+"/port-"+p.String(), Match{Protocol: TCP, DestinationPorts: []PortRange{p}}, chainRedirect)
	}
	if c.OutboundCIDRs.All {
		n.jump(kind+"/all", Match{Protocol: TCP}, chainRedirect)
	}
	for _, p := range c.OutboundCIDRs.Listed {
		n.jump(kind+"/cidr-"+p.String(), Match{Protocol: TCP, Destination: oneNet(p)}, chainRedirect)
	}
}

func portText(p uint16) string { return strconv.Itoa(int(p)) }
