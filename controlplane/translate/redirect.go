package translate

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	originaldstv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/original_dst/v3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
)

// redirect is the way of a sidecar that the kernel redirects its workload's connections to: all that go out arrive at one
// port, all that come in at another, and where they were bound for says what becomes of them.
type redirect struct{}

// capturedSource and capturedSource6 are the addresses that the sidecar calls its workload from: connections from them are
// not captured again.
const (
	capturedSource  = "127.0.0.6"
	capturedSource6 = "::6"
)

// wildcard is all addresses. It names what listens on those of both families, too.
func wildcard(port uint32) netip.AddrPort {
	return netip.AddrPortFrom(netip.IPv4Unspecified(), uint16(port))
}

// onAllAddresses has a listener be for the families that the proxy has addresses of. Its name stays the same, so that
// statistics and EnvoyFilters do.
func (v view) onAllAddresses(l *listenerv3.Listener, port uint32) *listenerv3.Listener {
	six := socketAddress(netip.AddrPortFrom(netip.IPv6Unspecified(), uint16(port)))
	switch {
	case v.p.IPv6 && v.p.IPv4:
		l.AdditionalAddresses = []*listenerv3.AdditionalAddress{{Address: six}}
	case v.p.IPv6:
		l.Address = six
	}
	return l
}

func (redirect) listeners(v view) []*listenerv3.Listener {
	out := outboundListeners(v)
	taken := map[netip.AddrPort]bool{}
	out = append(out, v.boundListeners(taken)...)
	for _, port := range v.inboundPorts() {
		if at, own := v.ownListener(port); own && !taken[at] {
			taken[at] = true
			l := listener(at, corev3.TrafficDirection_INBOUND)
			v.inboundChains(port).apply(v, l)
			out = append(out, l)
		}
	}
	return append(out, virtualOutboundListener(v), virtualInboundListener(v))
}

func (v view) captured(name string, port uint32, direction corev3.TrafficDirection) *listenerv3.Listener {
	return v.onAllAddresses(&listenerv3.Listener{Name: name, Address: socketAddress(wildcard(port)), TrafficDirection: direction}, port)
}

func virtualOutboundListener(v view) *listenerv3.Listener {
	port := uint32(v.s.Mesh.GetProxyListenPort())
	other := v.unknownCluster()
	l := v.captured(virtualOutbound, port, corev3.TrafficDirection_OUTBOUND)
	l.UseOriginalDst = boolean(true)
	l.FilterChains = []*listenerv3.FilterChain{
		blackHoleChain(v, "virtualOutbound-trafficloop", traffic{side: outboundSide, port: port}),
		{Name: "virtualOutbound-catchall-tcp", Filters: v.tcpFilters(traffic{side: outboundSide}, other, toCluster(other))},
	}
	return l
}

// blackHoleChain ends connections to the capturing port itself, which would go round for ever.
func blackHoleChain(v view, name string, t traffic) *listenerv3.FilterChain {
	return &listenerv3.FilterChain{
		Name:             name,
		FilterChainMatch: &listenerv3.FilterChainMatch{DestinationPort: u32(t.port)},
		Filters:          v.blackHoleFilters(t),
	}
}

func virtualInboundListener(v view) *listenerv3.Listener {
	port := uint32(v.s.Mesh.GetProxyInboundListenPort())
	l := v.captured(virtualInbound, port, corev3.TrafficDirection_INBOUND)
	v.boundSniffing(l)
	l.FilterChains = []*listenerv3.FilterChain{blackHoleChain(v, "virtualInbound-blackhole", traffic{side: inboundSide, port: port})}
	var declared []uint32
	for _, p := range v.inboundPorts() {
		if _, own := v.ownListener(p); own {
			continue
		}
		set := v.inboundChains(p)
		if !set.sniffHTTP {
			declared = append(declared, p.number)
		}
		for _, chain := range set.chains {
			if chain.FilterChainMatch == nil {
				chain.FilterChainMatch = &listenerv3.FilterChainMatch{}
			}
			chain.FilterChainMatch.DestinationPort = u32(p.number)
			l.FilterChains = append(l.FilterChains, chain)
		}
	}
	l.FilterChains = append(l.FilterChains, unlistedChains(v)...)
	l.ListenerFilters = []*listenerv3.ListenerFilter{
		listenerFilter("envoy.filters.listener.original_dst", &originaldstv3.OriginalDst{}),
		tlsInspector(),
		onlyOn(httpInspector(), declared),
	}
	return l
}

// unlistedChains are for ports that no service lists. What the mesh's policies say of the workload holds for them too:
// each port that a policy names has chains of its own, and the rest have the catch-all.
func unlistedChains(v view) []*listenerv3.FilterChain {
	listed := map[uint32]bool{}
	for _, p := range v.inboundPorts() {
		listed[p.number] = true
	}
	var chains []*listenerv3.FilterChain
	for _, port := range v.s.MTLSPorts(v.p.Namespace, v.p.Labels) {
		if !listed[port] {
			chains = append(chains, passthroughChains(v, port)...)
		}
	}
	return append(chains, passthroughChains(v, 0)...)
}

// passthroughChains lead to where the connection was going, for one port; 0 is every port without chains of its own.
func passthroughChains(v view, port uint32) []*listenerv3.FilterChain {
	chains := v.inboundChains(inboundPort{number: port, protocol: registry.Undeclared, unlisted: true}).chains
	for _, chain := range chains {
		chain.Name = "virtualInbound-catchall-" + chain.Name
		if port != 0 {
			if chain.FilterChainMatch == nil {
				chain.FilterChainMatch = &listenerv3.FilterChainMatch{}
			}
			chain.FilterChainMatch.DestinationPort = u32(port)
		}
	}
	return chains
}

func (redirect) routeNames(v view) []string {
	var out []string
	seen := map[string]bool{}
	for _, svc := range v.scope.Services {
		for _, port := range svc.Ports {
			for _, name := range gateRoutes(svc, port) {
				if port.Protocol.MayBeHTTP() && !seen[name] && v.scope.SeesAt(svc, port.Number) {
					seen[name] = true
					out = append(out, name)
				}
			}
		}
	}
	return slices.Concat(out, v.egressRoutes(), v.inboundRoutes())
}

func (redirect) route(v view, name string) (*xds.Resource, error) {
	if strings.HasPrefix(name, "inbound|") {
		return v.inboundRoute(name)
	}
	if strings.HasPrefix(name, egressPrefix) {
		return v.egressRoute(name)
	}
	port, err := strconv.ParseUint(name, 10, 16)
	if err != nil {
		return v.serviceRoute(name)
	}
	return v.cachedRoutes(name, func() *routev3.RouteConfiguration {
		return v.routesOf(&routev3.RouteConfiguration{
			Name: name, ValidateClusters: boolean(false), IgnorePortInHostMatching: true,
		}, func() *hostPlan { return v.portPlan(uint32(port)) })
	})
}

func (redirect) hostPlan(v view, route string) *hostPlan {
	port, err := strconv.ParseUint(route, 10, 16)
	if err != nil {
		return nil
	}
	return v.portPlan(uint32(port))
}

func (v view) portPlan(number uint32) *hostPlan {
	return v.plan(strconv.FormatUint(uint64(number), 10), func() []planned { return v.portHosts(number) })
}

// portHosts are the virtual hosts of the services that have an HTTP port of this number.
func (v view) portHosts(number uint32) []planned {
	var services []*registry.Service
	for _, svc := range v.scope.Services {
		if port, ok := svc.Port(number); ok && port.Protocol.MayBeHTTP() && v.scope.SeesAt(svc, number) {
			services = append(services, svc)
		}
	}
	taken := domains{}
	hosts := v.hostsAt(services, number, taken)
	for _, svc := range services {
		if port, _ := svc.Port(number); !v.p.callsInstances(svc, port) {
			continue
		}
		names := taken.take(instancesOf(svc.Hostname))
		for _, short := range v.shortNames(svc) {
			names = append(names, taken.take(instancesOf(short))...)
		}
		if len(names) > 0 {
			hosts = append(hosts, planned{host: instancesOf(svc.Hostname), port: number, domains: names, svc: svc, instances: true})
		}
	}
	return hosts
}

// hostsAt are the virtual hosts of services at a port, by domains that are not taken.
func (v view) hostsAt(services []*registry.Service, number uint32, taken domains) []planned {
	full := map[*registry.Service][]string{}
	for _, svc := range services {
		full[svc] = taken.take(svc.Hostname)
	}
	var hosts []planned
	for _, svc := range services {
		names := full[svc]
		for _, short := range v.shortNames(svc) {
			names = append(names, taken.take(bracketed(short))...)
		}
		if len(names) > 0 {
			hosts = append(hosts, v.serviceHost(svc, number, names))
		}
	}
	if number == 80 {
		hosts = append(hosts, v.ruleHosts(func(host string) []string { return taken.take(host) }, number)...)
	}
	return hosts
}

func (redirect) ownClusters(s *snapshot.Snapshot, p *Proxy) []*clusterv3.Cluster {
	v := newView(s, p)
	var out []*clusterv3.Cluster
	for _, port := range v.inboundPorts() {
		c := inboundCluster(v, port)
		if !v.toWorkload(c, port) {
			originalDestination(c)
			c.UpstreamBindConfig = p.fromCapturedSource()
		}
		out = append(out, c)
	}
	for _, name := range []string{inboundPassthroughCluster, PassthroughCluster} {
		c := &clusterv3.Cluster{Name: name, ConnectTimeout: s.Mesh.GetConnectTimeout(), CircuitBreakers: circuitBreakers(nil, nil), Metadata: noService(name)}
		originalDestination(c)
		setHTTPOptions(c, asCalled())
		out = append(out, c)
	}
	out[len(out)-2].UpstreamBindConfig = p.fromCapturedSource()
	return append(out, blackHole(s))
}

func (p *Proxy) fromCapturedSource() *corev3.BindConfig {
	source := func(address string) *corev3.SocketAddress {
		return &corev3.SocketAddress{Address: address, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: 0}}
	}
	switch {
	case p.IPv6 && p.IPv4:
		return &corev3.BindConfig{
			SourceAddress:        source(capturedSource),
			ExtraSourceAddresses: []*corev3.ExtraSourceAddress{{Address: source(capturedSource6)}},
		}
	case p.IPv6:
		return &corev3.BindConfig{SourceAddress: source(capturedSource6)}
	}
	return &corev3.BindConfig{SourceAddress: source(capturedSource)}
}
