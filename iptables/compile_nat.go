package iptables

import (
	"net/netip"
	"slices"
	"strconv"
)

// nat are the chains that redirect: outbound connections, inbound ones unless TPROXY takes those, and DNS.
func (c *compiler) nat() []Chain {
	return used(c.redirectChain(), c.inRedirectChain(), c.dnsChain(), c.inboundChain(), c.virtualChain(), c.outputChain(),
		c.natPrerouting(), c.natOutput())
}

func (c *compiler) redirectChain() *chain {
	n := newChain(NAT, chainRedirect)
	n.add("redirect/outbound", Match{Protocol: TCP}, Verdict{Action: Redirect, Port: c.ProxyPort},
		"outbound connections go to Envoy's port "+portText(c.ProxyPort))
	return n
}

func (c *compiler) inRedirectChain() *chain {
	n := newChain(NAT, chainInRedirect)
	n.add("redirect/inbound", Match{Protocol: TCP}, Verdict{Action: Redirect, Port: c.InboundPort},
		"inbound connections go to Envoy's port "+portText(c.InboundPort))
	return n
}

func (c *compiler) natPrerouting() *chain {
	n := newBase(NAT, Prerouting)
	for _, name := range c.VirtualInterfaces {
		n.jump("hook/nat-virtual-"+name, Match{InInterface: name}, chainVirtual, "what comes in from "+name+" is outbound traffic of a machine within the pod")
	}
	n.jump("hook/nat-inbound", Match{Protocol: TCP}, chainInbound, "TCP connections that come in are looked at")
	return n
}

func (c *compiler) natOutput() *chain {
	n := newBase(NAT, Output)
	n.jump("hook/nat-outbound", Match{}, chainOutput, "all that goes out is looked at, UDP too for DNS")
	return n
}

// inboundChain is of REDIRECT mode; its rules for ports are those of TPROXY too.
func (c *compiler) inboundChain() *chain {
	n := newChain(NAT, chainInbound)
	if c.tproxy() || !c.inbound() {
		return n
	}
	c.inboundExceptions(n)
	c.inboundCapture(n, Match{Protocol: TCP}, chainInRedirect)
	return n
}

// inboundExceptions are of both modes.
func (c *compiler) inboundExceptions(n *chain) {
	for _, name := range c.ExcludeInterfaces {
		n.leave("inbound/exclude-interface-"+name, Match{InInterface: name}, "traffic of the interface "+name+" is excluded")
	}
	for _, name := range c.VirtualInterfaces {
		n.leave("inbound/virtual-"+name, Match{InInterface: name}, "what comes in from "+name+" is not inbound traffic")
	}
}

// inboundCapture sends to the chain what the ports say.
func (c *compiler) inboundCapture(n *chain, m Match, to string) {
	at := func(p PortRange) Match {
		m := m
		m.DestinationPorts = []PortRange{p}
		return m
	}
	if tunnel := func(p PortRange) bool { return p.Contains(c.TunnelPort) }; c.InboundPorts.All || slices.ContainsFunc(c.InboundPorts.Listed, tunnel) {
		n.leave("inbound/tunnel", at(PortRange{c.TunnelPort, c.TunnelPort}), "HBONE goes to Envoy's port "+portText(c.TunnelPort)+" directly")
	}
	if !c.InboundPorts.All {
		for _, p := range c.InboundPorts.Listed {
			n.jump("inbound/port-"+p.String(), at(p), to, "inbound connections to "+portReason(p)+" are captured")
		}
		return
	}
	for _, p := range c.InboundExcludePorts {
		n.leave("inbound/exclude-port-"+p.String(), at(p), "inbound connections to "+portReason(p)+" are excluded")
	}
	n.jump("inbound/all", m, to, "all other inbound connections are captured")
}

// virtualChain treats what comes in from a virtual machine as what an application sends.
func (c *compiler) virtualChain() *chain {
	n := newChain(NAT, chainVirtual)
	if len(c.VirtualInterfaces) == 0 {
		return n
	}
	for _, p := range c.OutboundExcludePorts {
		n.leave("virtual/exclude-port-"+p.String(), Match{Protocol: TCP, DestinationPorts: []PortRange{p}}, "outbound connections to "+portReason(p)+" are excluded")
	}
	c.outboundCapture(n, "virtual")
	return n
}

// outputChain decides about what processes of the pod send. Exclusions come first, then the proxy's own traffic, then what
// stays local, then what is captured.
func (c *compiler) outputChain() *chain {
	n := newChain(NAT, chainOutput)
	for _, name := range c.ExcludeInterfaces {
		n.leave("outbound/exclude-interface-"+name, Match{OutInterface: name}, "traffic of the interface "+name+" is excluded")
	}
	for _, p := range c.OutboundExcludePorts {
		n.leave("outbound/exclude-port-"+p.String(), Match{Protocol: TCP, DestinationPorts: []PortRange{p}}, "outbound connections to "+portReason(p)+" are excluded")
	}
	c.proxyRules(n)
	c.groupRules(n)
	n.jump("outbound/dns", Match{}, chainDNS, "DNS is captured for the agent's resolver")
	c.localRules(n)
	c.outboundCapture(n, "outbound")
	return n
}

// selfCall is a connection of the proxy to its own pod, other than to the application's loopback address. All identities
// of the proxy have theirs before any is let go, and each of them spares the same ports.
func (c *compiler) selfCall(l local, o owner) Match {
	m := o.match
	m.Protocol, m.OutInterface = TCP, loopback
	m.Destination, m.NotDestination = oneNet(l.loopback), true
	m.DestinationPorts, m.NotDestinationPorts = c.spared(), true
	return m
}

func (c *compiler) spared() []PortRange {
	spared := onePort(c.TunnelPort)
	if c.dns {
		spared = slices.Insert(spared, 0, PortRange{53, 53})
	}
	return spared
}

const selfCallReason = "a call of the application to its own service's address comes back here through the proxy, and has to meet the inbound policy"

func (c *compiler) proxyRules(n *chain) {
	if !c.tproxy() { // otherwise the mangle table marks them, so that the source address stays
		c.selfCalls(n)
	}
	for _, o := range c.owners() {
		n.leave("outbound/proxy-"+o.name, o.match, "the proxy's own traffic is not captured again")
	}
}

func (c *compiler) selfCalls(n *chain) {
	for _, l := range c.locals() {
		n.leave("outbound/passthrough-"+l.name, Match{OutInterface: loopback, Source: oneNet(l.passthrough)},
			"Envoy passes an inbound connection on from "+l.passthrough.Addr().String()+"; captured again, it would come back for ever")
	}
	for _, o := range c.owners() {
		for _, l := range c.locals() {
			n.jump("outbound/self-call-"+o.name+"-"+l.name, c.selfCall(l, o), chainInRedirect, selfCallReason)
		}
	}
}

func (c *compiler) groupRules(n *chain) {
	for _, gid := range c.ExcludeOwnerGroups {
		n.leave("outbound/exclude-group-"+decimal(gid), Match{GIDs: []uint32{gid}}, "traffic of processes of group "+decimal(gid)+" is excluded")
	}
	if !c.OwnerGroups.All {
		n.leave("outbound/other-groups", Match{GIDs: unique(c.OwnerGroups.Listed), NotGIDs: true},
			"only processes of the groups "+joined(unique(c.OwnerGroups.Listed), decimal)+" are captured")
	}
}

// localRules keep within the pod what one application says to another.
func (c *compiler) localRules(n *chain) {
	for _, l := range c.locals() {
		f := familyOf(l.loopback.Addr())
		if c.includesLoopback(f) {
			n.leave("outbound/localhost-"+l.name, Match{Destination: oneNet(l.loopback)}, "the application means its own localhost")
		} else {
			n.leave("outbound/local-"+l.name, Match{Families: f, OutInterface: loopback}, "traffic from one application of the pod to another stays within it")
		}
	}
}

func (c *compiler) includesLoopback(f Families) bool {
	return slices.ContainsFunc(c.OutboundCIDRs.Listed, func(p netip.Prefix) bool { return familyOf(p.Addr()) == f && p.Addr().IsLoopback() })
}

func (c *compiler) outboundCapture(n *chain, kind string) {
	for _, p := range c.OutboundExcludeCIDRs {
		n.leave(kind+"/exclude-cidr-"+p.String(), Match{Destination: oneNet(p)}, "connections to "+p.String()+" are excluded")
	}
	for _, p := range c.OutboundPorts {
		n.jump(kind+"/port-"+p.String(), Match{Protocol: TCP, DestinationPorts: []PortRange{p}}, chainRedirect, "outbound connections to "+portReason(p)+" are captured")
	}
	if c.OutboundCIDRs.All {
		n.jump(kind+"/all", Match{Protocol: TCP}, chainRedirect, "all other outbound connections are captured")
	}
	for _, p := range c.OutboundCIDRs.Listed {
		n.jump(kind+"/cidr-"+p.String(), Match{Protocol: TCP, Destination: oneNet(p)}, chainRedirect, "outbound connections to "+p.String()+" are captured")
	}
}

func portText(p uint16) string { return strconv.Itoa(int(p)) }
