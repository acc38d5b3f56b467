package translate

import (
	"net/netip"
	"slices"
	"strconv"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
)

// gate is one place where captured connections arrive: a port of an address that stands for a service, or a port of all
// addresses that no other gate has. What arrives is told apart by how it begins, as far as that matters there.
type gate struct {
	at netip.AddrPort
	// routes is the name of the routes that requests go by; empty when none are expected.
	routes   string
	requests traffic
	// sniff: what speaks HTTP there shows only in the first bytes.
	sniff bool
	// chains are for connections of bytes: those for some addresses or names, and at most one for all others.
	chains []gateChain
}

// gateChain is where connections of bytes go.
type gateChain struct {
	name, stat string
	match      connectionMatch
	traffic    traffic
	to         []share
}

// connectionMatch is which connections are meant; nothing is all.
type connectionMatch struct {
	// names are what the caller names in its TLS handshake.
	names []string
	// subnets are where the connection was going.
	subnets []netip.Prefix
}

func (m connectionMatch) all() bool { return len(m.names)+len(m.subnets) == 0 }

// gates collects them in the order in which they are first wanted.
type gates struct {
	order []*gate
	at    map[netip.AddrPort]*gate
}

func (g *gates) open(at netip.AddrPort) *gate {
	if g.at[at] == nil {
		g.at[at] = &gate{at: at}
		g.order = append(g.order, g.at[at])
	}
	return g.at[at]
}

// outboundListeners take over what was captured by where it was bound for. They bind nothing themselves.
func outboundListeners(v view) []*listenerv3.Listener {
	return v.gateListeners(func(netip.AddrPort) bool { return true })
}

// gateListeners are those of them that are wanted.
func (v view) gateListeners(wanted func(netip.AddrPort) bool) []*listenerv3.Listener {
	all := gates{at: map[netip.AddrPort]*gate{}}
	for _, svc := range v.scope.Services {
		for _, port := range svc.Ports {
			if v.scope.SeesAt(svc, port.Number) {
				v.openGates(&all, svc, port)
			}
		}
	}
	out := make([]*listenerv3.Listener, 0, len(all.order))
	for _, g := range all.order {
		if wanted(g.at) && (g.routes != "" || len(g.chains) > 0) { // Envoy takes no listener that has nothing for anybody
			out = append(out, v.gateListener(g))
		}
	}
	return out
}

// openGates lets a service's port have what arrives for it. Services of HTTP share the port of all addresses, where the
// Host header tells them apart; others are told apart by their addresses, and where they have none by the port alone.
func (v view) openGates(all *gates, svc *registry.Service, port registry.Port) {
	number := uint16(port.Number)
	t := traffic{side: outboundSide, port: port.Number, protocol: port.Protocol}
	switch {
	case port.Protocol == registry.UDP:
		return
	case port.Protocol.IsHTTP():
		all.open(wildcard(port.Number)).takeRequests(gateRoute(svc, port), t, false)
		return
	}
	for _, at := range gateAddresses(svc, number) {
		g := all.open(at)
		if port.Protocol == registry.Undeclared {
			requests := t
			requests.protocol = registry.HTTP
			g.takeRequests(gateRoute(svc, port), requests, true)
		}
		for _, c := range v.connectionRoutes(svc, port, t, at) {
			g.take(c)
		}
	}
	if len(svc.Ranges) > 0 {
		v.openRanges(all.open(wildcard(port.Number)), svc, port, t)
	}
}

// openRanges lets a service's port have what arrives there for its blocks of addresses.
func (v view) openRanges(g *gate, svc *registry.Service, port registry.Port, t traffic) {
	if port.Protocol == registry.Undeclared {
		requests := t
		requests.protocol = registry.HTTP
		g.takeRequests(strconv.FormatUint(uint64(port.Number), 10), requests, true)
	}
	for _, c := range v.connectionRoutes(svc, port, t, g.at) {
		if c.match.subnets = narrowed(svc.Ranges, c.match.subnets); len(c.match.subnets) > 0 {
			g.take(c)
		}
	}
}

// narrowed are the parts of blocks that are within others; no others: all.
func narrowed(blocks, others []netip.Prefix) []netip.Prefix {
	if len(others) == 0 {
		return blocks
	}
	var out []netip.Prefix
	for _, b := range blocks {
		for _, o := range others {
			switch {
			case b.Overlaps(o) && o.Bits() > b.Bits():
				out = append(out, o)
			case b.Overlaps(o):
				out = append(out, b)
			}
		}
	}
	return out
}

// gateAddresses are where connections to a port of the service arrive.
func gateAddresses(svc *registry.Service, number uint16) []netip.AddrPort {
	var out []netip.AddrPort
	for _, a := range svc.Addresses {
		out = append(out, netip.AddrPortFrom(a, number))
	}
	if len(out)+len(svc.Ranges) == 0 {
		out = append(out, wildcard(uint32(number)))
	}
	return out
}

// gateRoute is the name of the routes of a service's port: one for all services that share a gate.
func gateRoute(svc *registry.Service, port registry.Port) string {
	if port.Protocol == registry.Undeclared && len(svc.Addresses) > 0 {
		return upstreamRoute(svc, port.Number)
	}
	return strconv.FormatUint(uint64(port.Number), 10)
}

// gateRoutes are those of all places where what is for a service's port arrives.
func gateRoutes(svc *registry.Service, port registry.Port) []string {
	out := []string{gateRoute(svc, port)}
	if number := strconv.FormatUint(uint64(port.Number), 10); len(svc.Ranges) > 0 && out[0] != number {
		out = append(out, number)
	}
	return out
}

func (g *gate) takeRequests(routes string, t traffic, sniff bool) {
	if g.routes != "" {
		return
	}
	g.routes, g.requests = routes, t
	g.sniff = g.sniff || sniff
}

// take adds a chain for what no other has of its connections: Envoy takes no two for the same.
func (g *gate) take(c gateChain) {
	for _, other := range g.chains {
		if !c.match.without(other.match) {
			return
		}
	}
	g.chains = append(g.chains, c)
}

// without leaves out what the other has too, and says whether anything is left.
func (m *connectionMatch) without(o connectionMatch) bool {
	names, subnets := overlap(m.names, o.names), overlap(m.subnets, o.subnets)
	if len(m.names) == 0 && len(o.names) > 0 || len(m.names) > 0 && len(names) == 0 || len(m.subnets) == 0 && len(o.subnets) > 0 || len(m.subnets) > 0 && len(subnets) == 0 {
		return true // nothing is the same
	}
	if len(m.subnets) > 0 && len(names) == len(m.names) || len(m.names) == 0 {
		m.subnets = less(m.subnets, subnets)
		return len(m.subnets) > 0
	}
	m.names = less(m.names, names)
	return len(m.names) > 0
}

func overlap[T comparable](a, b []T) []T {
	var out []T
	for _, x := range a {
		if slices.Contains(b, x) {
			out = append(out, x)
		}
	}
	return out
}

func less[T comparable](a, b []T) []T {
	return slices.DeleteFunc(slices.Clone(a), func(x T) bool { return slices.Contains(b, x) })
}

// leaveNone adds where connections go to a block of addresses that name none of the names which are wanted there: Envoy looks
// no further than the chains of the narrowest block.
func (v view) leaveNone(g *gate) {
	for _, c := range slices.Clone(g.chains) {
		if len(c.match.names) > 0 && len(c.match.subnets) > 0 {
			other := v.unknownChain()
			other.name, other.match.subnets = "other_"+c.name, c.match.subnets
			g.take(other)
		}
	}
}

func (v view) unknownChain() gateChain {
	return gateChain{stat: v.unknownCluster(), traffic: traffic{side: outboundSide}, to: toCluster(v.unknownCluster())}
}

// gateListener tells what arrives at a gate apart, and looks at its first bytes only where that is needed.
func (v view) gateListener(g *gate) *listenerv3.Listener {
	l := listener(g.at, corev3.TrafficDirection_OUTBOUND)
	if g.at.Addr().IsUnspecified() {
		v.onAllAddresses(l, uint32(g.at.Port()))
	}
	l.BindToPort = boolean(false)
	v.leaveNone(g)
	names, rest := false, false
	for _, c := range g.chains {
		names = names || len(c.match.names) > 0
		rest = rest || c.match.all()
	}
	mixed := g.routes != "" && len(g.chains) > 0
	if len(g.chains) > 0 && !rest {
		g.chains = append(g.chains, v.unknownChain())
	}
	if g.routes != "" {
		l.FilterChains = append(l.FilterChains, v.requestChain(g, l.Name, mixed, names))
	}
	withRequests := map[string]bool{}
	for _, c := range g.chains {
		chain := v.connectionChain(g, l.Name, c)
		if len(c.match.subnets) > 0 && c.traffic.protocol == registry.Undeclared {
			// Envoy looks no further than the chains of the narrowest subnet, and refuses two that match the same.
			blocks := slices.DeleteFunc(slices.Clone(chain.FilterChainMatch.PrefixRanges), func(b *corev3.CidrRange) bool { return withRequests[b.String()] })
			for _, b := range blocks {
				withRequests[b.String()] = true
			}
			if len(blocks) > 0 {
				requests := v.requestChain(g, chain.Name, mixed, names)
				requests.FilterChainMatch.PrefixRanges = blocks
				l.FilterChains = append(l.FilterChains, requests)
			}
		}
		l.FilterChains = append(l.FilterChains, chain)
		if c.match.all() && mixed && names {
			l.FilterChains = append(l.FilterChains, plainTwin(chain))
		}
	}
	if names {
		l.ListenerFilters = append(l.ListenerFilters, tlsInspector())
	}
	if mixed {
		l.ListenerFilters = append(l.ListenerFilters, httpInspector())
	}
	if len(l.ListenerFilters) > 0 {
		v.boundSniffing(l)
	}
	return l
}

// plainTwin is the same chain for plaintext. Envoy takes the most special transport that any chain has, and looks no
// further: what is plaintext and no HTTP finds no other chain once there is one for plaintext that is.
func plainTwin(chain *listenerv3.FilterChain) *listenerv3.FilterChain {
	return &listenerv3.FilterChain{
		Name: chain.GetName() + "_plaintext", Filters: chain.GetFilters(),
		FilterChainMatch: &listenerv3.FilterChainMatch{TransportProtocol: "raw_buffer"},
	}
}

func (v view) requestChain(g *gate, name string, mixed, names bool) *listenerv3.FilterChain {
	requests := g.requests
	requests.byName = v.anyByName()
	chain := &listenerv3.FilterChain{Name: name, Filters: []*listenerv3.Filter{v.hcmFilter(hcm{
		traffic: requests, statPrefix: "outbound_" + listenerName(g.at), rds: g.routes,
	})}}
	if mixed {
		chain.Name += "_http"
		chain.FilterChainMatch = &listenerv3.FilterChainMatch{ApplicationProtocols: sniffedHTTP}
		if names { // TLS is told apart, whose protocols have the same names
			chain.FilterChainMatch.TransportProtocol = "raw_buffer"
		}
	}
	return chain
}

func (v view) connectionChain(g *gate, name string, c gateChain) *listenerv3.FilterChain {
	chain := &listenerv3.FilterChain{Name: name, Filters: v.namedFilters(c.traffic, c.stat, c.match.names, c.to)}
	if c.match.all() {
		if g.routes != "" || len(g.chains) > 1 {
			chain.Name += "_tcp"
		}
		return chain
	}
	chain.Name += "_" + c.name
	chain.FilterChainMatch = &listenerv3.FilterChainMatch{ServerNames: c.match.names}
	for _, p := range c.match.subnets {
		for _, block := range matchable(p) {
			chain.FilterChainMatch.PrefixRanges = append(chain.FilterChainMatch.PrefixRanges, cidr(block.String()))
		}
	}
	return chain
}

// matchable is a block as a filter chain matches it. All addresses of a family are its two halves: a block of no bits means to
// Envoy what no block means, and may lose to the chain that has none.
func matchable(block netip.Prefix) []netip.Prefix {
	if block.Bits() > 0 {
		return []netip.Prefix{block}
	}
	lower := block.Masked().Addr()
	half := lower.AsSlice()
	half[0] = 0x80
	upper, _ := netip.AddrFromSlice(half)
	return []netip.Prefix{netip.PrefixFrom(lower, 1), netip.PrefixFrom(upper, 1)}
}

// unknownCluster is where connections go that no service claims.
func (v view) unknownCluster() string {
	if !v.scope.AllowAny {
		return BlackHoleCluster
	}
	if proxy, host := v.scope.EgressProxy(); proxy != nil {
		return OutboundCluster(host, proxy.GetSubset(), proxy.GetPort().GetNumber())
	}
	return PassthroughCluster
}
