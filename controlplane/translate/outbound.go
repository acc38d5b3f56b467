package translate

import (
	"net/netip"
	"slices"
	"strconv"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
)

// outboundListener describes one listener for captured connections. These are connections to one port at a service's
// address, or to one port at all other addresses. If several filter chains may match, Envoy selects one by the first
// bytes of the connection.
type outboundListener struct {
	addr netip.AddrPort
	// routes is the name of the route configuration. It is empty if the listener accepts no HTTP.
	routes   string
	requests traffic
	// sniff: Envoy must detect HTTP from the first bytes.
	sniff bool
	// connections lists the TCP routes. Some match addresses or server names, and at most one matches all other
	// connections.
	connections []connectionRoute
}

// connectionRoute is the destination of TCP connections.
type connectionRoute struct {
	name, stat string
	match      connectionMatch
	traffic    traffic
	to         []clusterWeight
}

// connectionMatch selects connections; the zero value matches all.
type connectionMatch struct {
	// names are the accepted values of the SNI.
	names []string
	// subnets are the accepted original destination addresses.
	subnets []netip.Prefix
}

func (m connectionMatch) matchesAll() bool { return len(m.names)+len(m.subnets) == 0 }

// outboundListenerSet contains the listeners in the order in which they were added.
type outboundListenerSet struct {
	order     []*outboundListener
	byAddress map[netip.AddrPort]*outboundListener
}

func (g *outboundListenerSet) getOrAdd(at netip.AddrPort) *outboundListener {
	if g.byAddress[at] == nil {
		g.byAddress[at] = &outboundListener{addr: at}
		g.order = append(g.order, g.byAddress[at])
	}
	return g.byAddress[at]
}

// allOutboundListeners returns the listeners for captured connections. They do not bind to a port: Envoy selects one of
// them by a connection's original destination.
func allOutboundListeners(v proxyView) []*listenerv3.Listener {
	return v.buildOutboundListeners(func(netip.AddrPort) bool { return true })
}

// buildOutboundListeners returns the outbound listeners for whose address wanted returns true.
func (v proxyView) buildOutboundListeners(wanted func(netip.AddrPort) bool) []*listenerv3.Listener {
	all := outboundListenerSet{byAddress: map[netip.AddrPort]*outboundListener{}}
	for _, svc := range v.scope.Services {
		for _, port := range svc.Ports {
			if v.scope.IsVisibleAtPort(svc, port.Number) {
				v.addServicePort(&all, svc, port)
			}
		}
	}
	out := make([]*listenerv3.Listener, 0, len(all.order))
	for _, g := range all.order {
		if wanted(g.addr) && (g.routes != "" || len(g.connections) > 0) { // Envoy rejects a listener without filter chains
			out = append(out, v.buildOutboundListener(g))
		}
	}
	return out
}

// addServicePort adds the traffic of a service's port. HTTP services share the wildcard listener of the port, where the
// Host header selects the service. For other services, the destination address selects the service. If the service has
// no address, the port alone selects it.
func (v proxyView) addServicePort(all *outboundListenerSet, svc *registry.Service, port registry.Port) {
	number := uint16(port.Number)
	t := traffic{side: outboundSide, port: port.Number, protocol: port.Protocol}
	switch {
	case port.Protocol == registry.UDP:
		return
	case port.Protocol.IsHTTP():
		all.getOrAdd(wildcard(port.Number)).setRequests(outboundRouteName(svc, port), t, false)
		return
	}
	for _, at := range listenAddresses(svc, number) {
		g := all.getOrAdd(at)
		if port.Protocol == registry.Undeclared {
			requests := t
			requests.protocol = registry.HTTP
			g.setRequests(outboundRouteName(svc, port), requests, true)
		}
		for _, c := range v.connectionRoutes(svc, port, t, at) {
			g.addRoute(c)
		}
	}
	if len(svc.Ranges) > 0 {
		v.addServiceRanges(all.getOrAdd(wildcard(port.Number)), svc, port, t)
	}
}

// addServiceRanges adds the traffic to one port of a service whose addresses are CIDR blocks.
func (v proxyView) addServiceRanges(g *outboundListener, svc *registry.Service, port registry.Port, t traffic) {
	if port.Protocol == registry.Undeclared {
		requests := t
		requests.protocol = registry.HTTP
		g.setRequests(strconv.FormatUint(uint64(port.Number), 10), requests, true)
	}
	for _, c := range v.connectionRoutes(svc, port, t, g.addr) {
		if c.match.subnets = intersectPrefixes(svc.Ranges, c.match.subnets); len(c.match.subnets) > 0 {
			g.addRoute(c)
		}
	}
}

// intersectPrefixes returns the intersection of two lists of CIDR blocks. If others is empty, it returns blocks
// unchanged.
func intersectPrefixes(blocks, others []netip.Prefix) []netip.Prefix {
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

// listenAddresses returns the addresses at which connections to a port of the service arrive.
func listenAddresses(svc *registry.Service, number uint16) []netip.AddrPort {
	var out []netip.AddrPort
	for _, a := range svc.Addresses {
		out = append(out, netip.AddrPortFrom(a, number))
	}
	if len(out)+len(svc.Ranges) == 0 {
		out = append(out, wildcard(uint32(number)))
	}
	return out
}

// outboundRouteName returns the name of the route configuration for a service's port. All services that share a
// listener share it.
func outboundRouteName(svc *registry.Service, port registry.Port) string {
	if port.Protocol == registry.Undeclared && len(svc.Addresses) > 0 {
		return upstreamRoute(svc, port.Number)
	}
	return strconv.FormatUint(uint64(port.Number), 10)
}

// outboundRouteNames returns the route configurations of all listeners that receive a service port's traffic.
func outboundRouteNames(svc *registry.Service, port registry.Port) []string {
	out := []string{outboundRouteName(svc, port)}
	if number := strconv.FormatUint(uint64(port.Number), 10); len(svc.Ranges) > 0 && out[0] != number {
		out = append(out, number)
	}
	return out
}

func (g *outboundListener) setRequests(routes string, t traffic, sniff bool) {
	if g.routes != "" {
		return
	}
	g.routes, g.requests = routes, t
	g.sniff = g.sniff || sniff
}

// addRoute adds a route. It removes matches from the route that earlier routes already have, because Envoy rejects
// duplicates.
func (g *outboundListener) addRoute(c connectionRoute) {
	for _, other := range g.connections {
		if !c.match.subtract(other.match) {
			return
		}
	}
	g.connections = append(g.connections, c)
}

// subtract removes the matches that o contains too, and reports whether any remain.
func (m *connectionMatch) subtract(o connectionMatch) bool {
	names, subnets := intersection(m.names, o.names), intersection(m.subnets, o.subnets)
	if len(m.names) == 0 && len(o.names) > 0 || len(m.names) > 0 && len(names) == 0 || len(m.subnets) == 0 && len(o.subnets) > 0 || len(m.subnets) > 0 && len(subnets) == 0 {
		return true // no match in common
	}
	if len(m.subnets) > 0 && len(names) == len(m.names) || len(m.names) == 0 {
		m.subnets = difference(m.subnets, subnets)
		return len(m.subnets) > 0
	}
	m.names = difference(m.names, names)
	return len(m.names) > 0
}

func intersection[T comparable](a, b []T) []T {
	var out []T
	for _, x := range a {
		if slices.Contains(b, x) {
			out = append(out, x)
		}
	}
	return out
}

func difference[T comparable](a, b []T) []T {
	return slices.DeleteFunc(slices.Clone(a), func(x T) bool { return slices.Contains(b, x) })
}

// addFallbackRoutes adds routes for address blocks whose routes all require a server name. The added route matches
// connections to the block with other names. Envoy considers only the chains of the narrowest matching block, so it
// would not use the route of a wider block.
func (v proxyView) addFallbackRoutes(g *outboundListener) {
	for _, c := range slices.Clone(g.connections) {
		if len(c.match.names) > 0 && len(c.match.subnets) > 0 {
			other := v.unknownDestinationRoute()
			other.name, other.match.subnets = "other_"+c.name, c.match.subnets
			g.addRoute(other)
		}
	}
}

func (v proxyView) unknownDestinationRoute() connectionRoute {
	return connectionRoute{stat: v.unknownDestinationCluster(), traffic: traffic{side: outboundSide}, to: toCluster(v.unknownDestinationCluster())}
}

// buildOutboundListener builds a listener. The listener inspects the first bytes of connections only if its chains
// require that.
func (v proxyView) buildOutboundListener(g *outboundListener) *listenerv3.Listener {
	l := listener(g.addr, corev3.TrafficDirection_OUTBOUND)
	if g.addr.Addr().IsUnspecified() {
		v.bindAllFamilies(l, uint32(g.addr.Port()))
	}
	l.BindToPort = boolean(false)
	v.addFallbackRoutes(g)
	names, rest := false, false
	for _, c := range g.connections {
		names = names || len(c.match.names) > 0
		rest = rest || c.match.matchesAll()
	}
	mixed := g.routes != "" && len(g.connections) > 0
	if len(g.connections) > 0 && !rest {
		g.connections = append(g.connections, v.unknownDestinationRoute())
	}
	if g.routes != "" {
		l.FilterChains = append(l.FilterChains, v.requestChain(g, l.Name, mixed, names))
	}
	withRequests := map[string]bool{}
	for _, c := range g.connections {
		chain := v.connectionChain(g, l.Name, c)
		if len(c.match.subnets) > 0 && c.traffic.protocol == registry.Undeclared {
			// Envoy considers only the chains of the narrowest subnet, and rejects two chains with the same match.
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
		if c.match.matchesAll() && mixed && names {
			l.FilterChains = append(l.FilterChains, plaintextCopy(chain))
		}
	}
	if names {
		l.ListenerFilters = append(l.ListenerFilters, tlsInspector())
	}
	if mixed {
		l.ListenerFilters = append(l.ListenerFilters, httpInspector())
	}
	if len(l.ListenerFilters) > 0 {
		v.setSniffTimeout(l)
	}
	return l
}

// plaintextCopy returns a copy of the chain that matches plaintext. Envoy considers only the chains with the most
// specific transport protocol. If a plaintext HTTP chain exists, plaintext TCP connections would match no chain without
// this copy.
func plaintextCopy(chain *listenerv3.FilterChain) *listenerv3.FilterChain {
	return &listenerv3.FilterChain{
		Name: chain.GetName() + "_plaintext", Filters: chain.GetFilters(),
		FilterChainMatch: &listenerv3.FilterChainMatch{TransportProtocol: "raw_buffer"},
	}
}

func (v proxyView) requestChain(g *outboundListener, name string, mixed, names bool) *listenerv3.FilterChain {
	requests := g.requests
	requests.byName = v.hasDynamicForward()
	chain := &listenerv3.FilterChain{Name: name, Filters: []*listenerv3.Filter{v.hcmFilter(hcmOptions{
		traffic: requests, statPrefix: "outbound_" + listenerName(g.addr), rds: g.routes,
	})}}
	if mixed {
		chain.Name += "_http"
		chain.FilterChainMatch = &listenerv3.FilterChainMatch{ApplicationProtocols: v.p.sniffedHTTP()}
		if names { // exclude TLS connections, which may have the same ALPN names
			chain.FilterChainMatch.TransportProtocol = "raw_buffer"
		}
	}
	return chain
}

func (v proxyView) connectionChain(g *outboundListener, name string, c connectionRoute) *listenerv3.FilterChain {
	chain := &listenerv3.FilterChain{Name: name, Filters: v.tcpFiltersForHosts(c.traffic, c.stat, c.match.names, c.to)}
	if c.match.matchesAll() {
		if g.routes != "" || len(g.connections) > 1 {
			chain.Name += "_tcp"
		}
		return chain
	}
	chain.Name += "_" + c.name
	chain.FilterChainMatch = &listenerv3.FilterChainMatch{ServerNames: c.match.names}
	for _, p := range c.match.subnets {
		for _, block := range matchablePrefixes(p) {
			chain.FilterChainMatch.PrefixRanges = append(chain.FilterChainMatch.PrefixRanges, cidr(block.String()))
		}
	}
	return chain
}

// matchablePrefixes returns the blocks for a filter chain match on this block. It splits a block of prefix length 0
// into two halves. Envoy treats length 0 as if there were no block, and might prefer a chain without one.
func matchablePrefixes(block netip.Prefix) []netip.Prefix {
	if block.Bits() > 0 {
		return []netip.Prefix{block}
	}
	lower := block.Masked().Addr()
	half := lower.AsSlice()
	half[0] = 0x80
	upper, _ := netip.AddrFromSlice(half)
	return []netip.Prefix{netip.PrefixFrom(lower, 1), netip.PrefixFrom(upper, 1)}
}

// unknownDestinationCluster returns the name of the cluster for connections to destinations that no service has.
func (v proxyView) unknownDestinationCluster() string {
	if !v.scope.AllowAny {
		return BlackHoleCluster
	}
	if proxy, host := v.scope.EgressProxy(); proxy != nil {
		return OutboundCluster(host, proxy.GetSubset(), proxy.GetPort().GetNumber())
	}
	return PassthroughCluster
}
