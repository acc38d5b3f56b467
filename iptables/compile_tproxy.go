package iptables

import "slices"

const allBits = 1<<32 - 1

// mangle returns the chains of the mangle table. They drop invalid packets and implement transparent proxying.
func (c *compiler) mangle() []Chain {
	in, out := newBase(Mangle, Prerouting), newBase(Mangle, Output)
	if c.DropInvalid {
		in.jump("hook/mangle-invalid", Match{States: []State{Invalid}}, chainDrop)
	}
	in.jump("hook/mangle-inbound", Match{Protocol: TCP}, chainInbound)
	out.jump("hook/mangle-outbound", Match{Protocol: TCP}, chainOutput)
	return usedChains(c.dropChain(), c.divertChain(), c.tproxyChain(), c.tproxyInbound(), c.tproxyOutput(), in, out)
}

func (c *compiler) dropChain() *chain {
	n := newChain(Mangle, chainDrop)
	if c.DropInvalid {
		n.add("invalid/drop", Match{}, Verdict{Action: Drop})
	}
	return n
}

func (c *compiler) proxyMark() Mark { return Mark{Value: c.TProxyMark, Mask: allBits} }

func (c *compiler) divertChain() *chain {
	n := newChain(Mangle, chainDivert)
	n.add("tproxy/mark-established", Match{}, Verdict{Action: SetMark, Mark: c.proxyMark()})
	n.add("tproxy/established", Match{}, Verdict{Action: Accept})
	return n
}

func (c *compiler) tproxyChain() *chain {
	n := newChain(Mangle, chainTProxy)
	for _, l := range c.locals() {
		n.add("tproxy/inbound-"+l.name, Match{Protocol: TCP, Destination: oneNet(l.loopback), NotDestination: true},
			Verdict{Action: TransparentProxy, Port: c.InboundPort, Mark: c.proxyMark()},
		)
	}
	return n
}

// tproxyInbound returns the chain for inbound packets. Packets on lo traverse it too, because connections of the proxy
// to its own pod use lo.
func (c *compiler) tproxyInbound() *chain {
	n := newChain(Mangle, chainInbound)
	if !c.tproxy() || !c.inbound() {
		return n
	}
	c.inboundExceptions(n)
	mark, self := c.proxyMark(), Mark{Value: selfCallMark, Mask: allBits}
	n.add("tproxy/save-mark", Match{Protocol: TCP, Mark: &mark}, Verdict{Action: SaveMark})
	for _, l := range c.locals() {
		n.leave("tproxy/passthrough-"+l.name, Match{Protocol: TCP, InInterface: loopback, Source: oneNet(l.passthrough)})
	}
	n.leave("tproxy/local", Match{Protocol: TCP, InInterface: loopback, Mark: &self, NotMark: true})
	c.inboundTProxy(n)
	return n
}

// inboundTProxy adds the rules for captured ports. Rules for packets of established connections precede those for new
// connections. Packets in the reply direction are exempt, because they belong to connections that bypass the proxy. A
// socket match cannot detect them, because the TCP connection may not be established yet.
func (c *compiler) inboundTProxy(n *chain) {
	captured := newChain(Mangle, chainInbound)
	c.inboundCapture(captured, Match{Protocol: TCP}, chainTProxy)
	n.leave("tproxy/answer", Match{Protocol: TCP, Reply: true})
	// The exceptions precede this rule.
	first := slices.IndexFunc(captured.Rules, func(r Rule) bool { return r.Verdict.Action == Jump })
	n.Rules = append(n.Rules, captured.Rules[:first]...)
	for _, r := range captured.Rules[first:] {
		n.jump(r.ID+"-established", Match{Protocol: TCP, States: []State{Established, Related}, DestinationPorts: r.Match.DestinationPorts}, chainDivert)
	}
	n.Rules = append(n.Rules, captured.Rules[first:]...)
}

// tproxyOutput returns the chain that marks outbound packets. It marks the proxy's self-calls, which are then captured
// as inbound traffic. It also marks the application's replies to clients, which are then routed to the proxy. It marks
// replies even if the route to the client uses an excluded interface.
func (c *compiler) tproxyOutput() *chain {
	n := newChain(Mangle, chainOutput)
	if !c.tproxy() || !c.inbound() {
		return n
	}
	mark, self := c.proxyMark(), Mark{Value: selfCallMark, Mask: allBits}
	n.leave("mark/from-proxy", Match{Protocol: TCP, OutInterface: loopback, Mark: &mark})
	for _, o := range c.owners() {
		for _, l := range c.locals() {
			n.add("mark/self-call-"+o.name+"-"+l.name, c.selfCall(l, o), Verdict{Action: SetMark, Mark: self})
		}
	}
	n.add("mark/answer", Match{Protocol: TCP, ConnMark: &mark}, Verdict{Action: RestoreMark})
	return n
}
