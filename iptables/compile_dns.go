package iptables

import "net/netip"

// Conntrack zones separate connections with the same addresses and ports. The agent's query to a resolver and an
// application's redirected query can have the same addresses and ports. If they were in one zone, the kernel would
// apply the same NAT decision to both.
const (
	zoneResolver = 1 // queries to resolvers, and their responses
	zoneAgent    = 2 // applications' queries that are redirected to the agent, and the agent's responses
)

// resolvers returns the addresses of the resolvers whose queries are captured. A single zero prefix means any resolver.
func (c *compiler) resolvers() []netip.Prefix {
	if c.CaptureAllDNS {
		return []netip.Prefix{{}}
	}
	var all []netip.Prefix
	for _, a := range c.DNSServers {
		all = append(all, netip.PrefixFrom(a, a.BitLen()))
	}
	return all
}

func dnsQuestion(protocol Protocol, resolver netip.Prefix) Match {
	m := Match{Protocol: protocol, DestinationPorts: onePort(53)}
	if resolver.IsValid() {
		m.Destination = oneNet(resolver)
	}
	return m
}

func resolverName(id string, resolver netip.Prefix) string {
	if resolver.IsValid() {
		return id + "-" + resolver.Addr().String()
	}
	return id
}

func (c *compiler) dnsChain() *chain {
	n := newChain(NAT, chainDNS)
	if !c.dns {
		return n
	}
	for _, resolver := range c.resolvers() {
		for _, protocol := range []Protocol{UDP, TCP} {
			n.add(resolverName("dns/"+string(protocol), resolver), dnsQuestion(protocol, resolver), Verdict{Action: Redirect, Port: c.DNSPort})
		}
	}
	return n
}

// raw returns the chains that assign conntrack zones to DNS over UDP. The first zone that is set on a packet is final.
func (c *compiler) raw() []Chain {
	if !c.dns {
		return nil
	}
	in, out := newBase(Raw, Prerouting), newBase(Raw, Output)
	in.jump("hook/raw-inbound", Match{Protocol: UDP}, chainInbound)
	out.jump("hook/raw-outbound", Match{Protocol: UDP}, chainDNS)
	return usedChains(c.answerZones(), c.questionZones(), in, out)
}

func zone(id uint16) Verdict { return Verdict{Action: Zone, ZoneID: id} }

func (c *compiler) questionZones() *chain {
	n := newChain(Raw, chainDNS)
	for _, o := range c.owners() {
		c.toResolvers(n, "question-of-proxy-"+o.name, o.match)
		answer := o.match
		answer.Protocol, answer.SourcePorts = UDP, onePort(c.DNSPort)
		n.add("zone/answer-of-proxy-"+o.name, answer, zone(zoneAgent))
	}
	c.uncapturedZones(n)
	for _, resolver := range c.resolvers() {
		n.add(resolverName("zone/question", resolver), dnsQuestion(UDP, resolver), zone(zoneAgent))
	}
	return n
}

// toResolvers adds rules that assign zoneResolver to queries that m matches and that are sent to the captured
// resolvers. answerZones assigns the same zone to the responses. Queries to other servers remain in the default zone.
func (c *compiler) toResolvers(n *chain, id string, m Match) {
	for _, resolver := range c.resolvers() {
		question := dnsQuestion(UDP, resolver)
		m.Protocol, m.Destination, m.DestinationPorts = question.Protocol, question.Destination, question.DestinationPorts
		n.add(resolverName("zone/"+id, resolver), m, zone(zoneResolver))
	}
}

// uncapturedZones assigns zoneResolver to queries that are excluded from capture by their interface or process group.
func (c *compiler) uncapturedZones(n *chain) {
	for _, name := range c.ExcludeInterfaces {
		c.toResolvers(n, "exclude-interface-"+name, Match{OutInterface: name})
	}
	for _, gid := range c.ExcludeOwnerGroups {
		c.toResolvers(n, "exclude-group-"+decimal(gid), Match{GIDs: []uint32{gid}})
	}
	if !c.OwnerGroups.All {
		c.toResolvers(n, "other-groups", Match{GIDs: unique(c.OwnerGroups.Listed), NotGIDs: true})
	}
}

func (c *compiler) answerZones() *chain {
	n := newChain(Raw, chainInbound)
	for _, resolver := range c.resolvers() {
		for _, name := range c.VirtualInterfaces {
			m := dnsQuestion(UDP, resolver)
			m.InInterface = name
			if c.open {
				n.add(resolverName("zone/question-of-virtual-"+name, resolver), m, zone(zoneAgent))
			} else {
				n.add(resolverName("zone/virtual-"+name, resolver), m, zone(zoneResolver))
			}
		}
		m := Match{Protocol: UDP, SourcePorts: onePort(53)}
		if resolver.IsValid() {
			m.Source = oneNet(resolver)
		}
		n.add(resolverName("zone/answer", resolver), m, zone(zoneResolver))
	}
	return n
}
