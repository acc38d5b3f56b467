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

// redirectMode is the mode of a sidecar that receives redirected connections: outbound connections arrive at one port,
// inbound ones at another. Their original destination determines how they are processed.
type redirectMode struct{}

// capturedSource and capturedSource6 are the source addresses of the sidecar's connections to its workload. The
// redirection rules do not capture connections from these addresses again.
const (
	capturedSource  = "127.0.0.6"
	capturedSource6 = "::6"
)

// wildcard returns the IPv4 wildcard address with this port. It is also used to name listeners on the wildcard
// addresses of both families.
func wildcard(port uint32) netip.AddrPort {
	return netip.AddrPortFrom(netip.IPv4Unspecified(), uint16(port))
}

// bindAllFamilies binds a listener to the wildcard address of each IP family of the proxy. The listener's name does not
// depend on the families, so that statistics and EnvoyFilters can refer to it.
func (v proxyView) bindAllFamilies(l *listenerv3.Listener, port uint32) *listenerv3.Listener {
	six := socketAddress(netip.AddrPortFrom(netip.IPv6Unspecified(), uint16(port)))
	switch {
	case v.p.IPv6 && v.p.IPv4:
		l.AdditionalAddresses = []*listenerv3.AdditionalAddress{{Address: six}}
	case v.p.IPv6:
		l.Address = six
	}
	return l
}

func (redirectMode) listeners(v proxyView) []*listenerv3.Listener {
	out := allOutboundListeners(v)
	taken := map[netip.AddrPort]bool{}
	out = append(out, v.buildEgressListeners(taken)...)
	for _, port := range v.inboundPorts() {
		if at, own := v.dedicatedListener(port); own && !taken[at] {
			taken[at] = true
			l := listener(at, corev3.TrafficDirection_INBOUND)
			v.inboundChains(port).apply(v, l)
			out = append(out, l)
		}
	}
	return append(out, virtualOutboundListener(v), virtualInboundListener(v))
}

func (v proxyView) captureListener(name string, port uint32, direction corev3.TrafficDirection) *listenerv3.Listener {
	return v.bindAllFamilies(&listenerv3.Listener{Name: name, Address: socketAddress(wildcard(port)), TrafficDirection: direction}, port)
}

func virtualOutboundListener(v proxyView) *listenerv3.Listener {
	port := uint32(v.s.Mesh.GetProxyListenPort())
	other := v.unknownDestinationCluster()
	l := v.captureListener(virtualOutbound, port, corev3.TrafficDirection_OUTBOUND)
	l.UseOriginalDst = boolean(true)
	l.FilterChains = []*listenerv3.FilterChain{
		blackHoleChain(v, "virtualOutbound-trafficloop", traffic{side: outboundSide, port: port}),
		{Name: "virtualOutbound-catchall-tcp", Filters: v.tcpFilters(traffic{side: outboundSide}, other, toCluster(other))},
	}
	return l
}

// blackHoleChain returns a chain that closes connections whose original destination is the redirection port itself.
// Otherwise Envoy would connect to itself in an endless loop.
func blackHoleChain(v proxyView, name string, t traffic) *listenerv3.FilterChain {
	return &listenerv3.FilterChain{
		Name:             name,
		FilterChainMatch: &listenerv3.FilterChainMatch{DestinationPort: u32(t.port)},
		Filters:          v.blackHoleFilters(t),
	}
}

func virtualInboundListener(v proxyView) *listenerv3.Listener {
	port := uint32(v.s.Mesh.GetProxyInboundListenPort())
	l := v.captureListener(virtualInbound, port, corev3.TrafficDirection_INBOUND)
	l.FilterChains = []*listenerv3.FilterChain{blackHoleChain(v, "virtualInbound-blackhole", traffic{side: inboundSide, port: port})}
	var declared []uint32
	serverMayTalkFirst := false
	for _, p := range v.inboundPorts() {
		if _, own := v.dedicatedListener(p); own {
			continue
		}
		set := v.inboundChains(p)
		serverMayTalkFirst = serverMayTalkFirst || set.serverMayTalkFirst
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
	for _, set := range unlistedChains(v) {
		serverMayTalkFirst = serverMayTalkFirst || set.serverMayTalkFirst
		l.FilterChains = append(l.FilterChains, set.chains...)
	}
	if serverMayTalkFirst {
		v.setSniffTimeout(l)
	}
	l.ListenerFilters = []*listenerv3.ListenerFilter{
		listenerFilter("envoy.filters.listener.original_dst", &originaldstv3.OriginalDst{}),
		tlsInspector(),
		disableOnPorts(httpInspector(), declared),
	}
	return l
}

// unlistedChains returns the chains for ports that no service has. The mesh's policies apply to these ports too. Each
// port that a policy configures has its own chains, and all other ports share the catch-all chains.
func unlistedChains(v proxyView) []chainSet {
	listed := map[uint32]bool{}
	for _, p := range v.inboundPorts() {
		listed[p.number] = true
	}
	var sets []chainSet
	for _, port := range v.s.MTLSPorts(v.p.Namespace, v.p.Labels) {
		if !listed[port] {
			sets = append(sets, passthroughChains(v, port))
		}
	}
	return append(sets, passthroughChains(v, 0))
}

// passthroughChains returns the chains that forward connections on one port to their original destination. Port 0
// represents all ports without their own chains.
func passthroughChains(v proxyView, port uint32) chainSet {
	set := v.inboundChains(inboundPort{number: port, protocol: registry.Undeclared, unlisted: true})
	for _, chain := range set.chains {
		chain.Name = "virtualInbound-catchall-" + chain.Name
		if port != 0 {
			if chain.FilterChainMatch == nil {
				chain.FilterChainMatch = &listenerv3.FilterChainMatch{}
			}
			chain.FilterChainMatch.DestinationPort = u32(port)
		}
	}
	return set
}

func (redirectMode) routeNames(v proxyView) []string {
	var out []string
	seen := map[string]bool{}
	for _, svc := range v.scope.Services {
		for _, port := range svc.Ports {
			for _, name := range outboundRouteNames(svc, port) {
				if port.Protocol.MayBeHTTP() && !seen[name] && v.scope.IsVisibleAtPort(svc, port.Number) {
					seen[name] = true
					out = append(out, name)
				}
			}
		}
	}
	return slices.Concat(out, v.egressRoutes(), v.inboundRoutes())
}

func (redirectMode) routeConfiguration(v proxyView, name string) (*xds.Resource, error) {
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
		return v.setVirtualHosts(&routev3.RouteConfiguration{
			Name: name, ValidateClusters: boolean(false), IgnorePortInHostMatching: true,
		}, func() *hostPlan { return v.portPlan(uint32(port)) })
	})
}

func (redirectMode) hostPlan(v proxyView, route string) *hostPlan {
	port, err := strconv.ParseUint(route, 10, 16)
	if err != nil {
		return nil
	}
	return v.portPlan(uint32(port))
}

func (v proxyView) portPlan(number uint32) *hostPlan {
	return v.cachedHostPlan(strconv.FormatUint(uint64(number), 10), func() []plannedHost { return v.portHosts(number) })
}

// portHosts returns the virtual hosts of the services that have this HTTP port.
func (v proxyView) portHosts(number uint32) []plannedHost {
	var services []*registry.Service
	for _, svc := range v.scope.Services {
		if port, ok := svc.Port(number); ok && port.Protocol.MayBeHTTP() && v.scope.IsVisibleAtPort(svc, number) {
			services = append(services, svc)
		}
	}
	taken := domains{}
	hosts := v.hostsAt(services, number, taken)
	for _, svc := range services {
		if port, _ := svc.Port(number); !v.p.hasInstanceCluster(svc, port) {
			continue
		}
		names := taken.claim(instanceHost(svc.Hostname))
		for _, short := range v.shortNames(svc) {
			names = append(names, taken.claim(instanceHost(short))...)
		}
		if len(names) > 0 {
			hosts = append(hosts, plannedHost{host: instanceHost(svc.Hostname), port: number, domains: names, svc: svc, forInstances: true})
		}
	}
	return hosts
}

// hostsAt returns the virtual hosts of services at a port. It omits the domains that taken contains, and adds the
// others to taken.
func (v proxyView) hostsAt(services []*registry.Service, number uint32, taken domains) []plannedHost {
	full := map[*registry.Service][]string{}
	for _, svc := range services {
		full[svc] = taken.claim(svc.Hostname)
	}
	var hosts []plannedHost
	for _, svc := range services {
		names := full[svc]
		for _, short := range v.shortNames(svc) {
			names = append(names, taken.claim(bracketIPv6(short))...)
		}
		if len(names) > 0 {
			hosts = append(hosts, v.planServiceHost(svc, number, names))
		}
	}
	if number == 80 {
		hosts = append(hosts, v.ruleHosts(func(host string) []string { return taken.claim(host) }, number)...)
	}
	return hosts
}

func (redirectMode) nonServiceClusters(s *snapshot.Snapshot, p *Proxy) []*clusterv3.Cluster {
	v := newView(s, p)
	var out []*clusterv3.Cluster
	for _, port := range v.inboundPorts() {
		c := inboundCluster(v, port)
		if !v.setWorkloadEndpoint(c, port) {
			setOriginalDst(c)
			c.UpstreamBindConfig = p.captureBindConfig()
		}
		out = append(out, c)
	}
	for _, name := range []string{inboundPassthroughCluster, PassthroughCluster} {
		c := &clusterv3.Cluster{Name: name, ConnectTimeout: s.Mesh.GetConnectTimeout(), CircuitBreakers: circuitBreakers(nil, nil), Metadata: clusterNameMetadata(name)}
		setOriginalDst(c)
		setHTTPOptions(c, downstreamProtocolOptions())
		out = append(out, c)
	}
	out[len(out)-2].UpstreamBindConfig = p.captureBindConfig()
	return append(append(out, v.credentialClusters()...), blackHole(s))
}

func (p *Proxy) captureBindConfig() *corev3.BindConfig {
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
