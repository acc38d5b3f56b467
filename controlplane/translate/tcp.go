package translate

import (
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	tcpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	extensions "istio.io/api/extensions/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
)

// clusterWeight is a cluster and its share of the connections.
type clusterWeight struct {
	cluster string
	weight  uint32
}

func toCluster(name string) []clusterWeight { return []clusterWeight{{name, 1}} }

// tcpFilters returns all filters of TCP connections, in processing order.
func (v proxyView) tcpFilters(t traffic, statPrefix string, to []clusterWeight) []*listenerv3.Filter {
	out := v.networkPlugins(t, extensions.PluginPhase_AUTHN, extensions.PluginPhase_AUTHZ)
	if t.side != outboundSide {
		out = append(out, v.networkRBAC()...)
	}
	out = append(out, v.networkPlugins(t, extensions.PluginPhase_STATS, extensions.PluginPhase_UNSPECIFIED_PHASE)...)
	out = append(out, v.tcpALPNFilters(to)...)
	return append(out, v.tcpProxy(t, statPrefix, to))
}

// blackHoleFilters returns filters that close all connections.
func (v proxyView) blackHoleFilters(t traffic) []*listenerv3.Filter {
	return []*listenerv3.Filter{v.tcpProxy(t, BlackHoleCluster, toCluster(BlackHoleCluster))}
}

// tcpProxy returns the filter that forwards connections to clusters by weight.
func (v proxyView) tcpProxy(at traffic, statPrefix string, to []clusterWeight) *listenerv3.Filter {
	t := &tcpv3.TcpProxy{StatPrefix: statPrefix, AccessLog: append(v.connectionLogs(at), v.auditLog(at, "envoy.filters.network.rbac")...)}
	if v.metrics(at.direction()).enabled {
		t.AccessLogOptions = &tcpv3.TcpProxy_TcpAccessLogOptions{FlushAccessLogOnConnected: true}
	}
	if at.side != inboundSide {
		v.applyConnectionSettings(t, to)
	}
	if v.p.OnDemand && at.side == outboundSide {
		t.OnDemand = v.tcpOnDemand()
	}
	if len(to) == 1 {
		t.ClusterSpecifier = &tcpv3.TcpProxy_Cluster{Cluster: to[0].cluster}
		return networkFilter("envoy.filters.network.tcp_proxy", t)
	}
	weighted := &tcpv3.TcpProxy_WeightedCluster{}
	for _, s := range to {
		weighted.Clusters = append(weighted.Clusters, &tcpv3.TcpProxy_WeightedCluster_ClusterWeight{Name: s.cluster, Weight: s.weight})
	}
	t.ClusterSpecifier = &tcpv3.TcpProxy_WeightedClusters{WeightedClusters: weighted}
	return networkFilter("envoy.filters.network.tcp_proxy", t)
}

// tcpClusterWeights returns the destinations of a sidecar's connections to a service's port. These are the destinations
// of the first matching TCP route of the service's VirtualService. Without such a route, the destination is the service
// itself.
func (v proxyView) tcpClusterWeights(svc *registry.Service, port uint32) []clusterWeight {
	declared, _ := svc.Port(port)
	at := wildcard(port)
	if len(svc.Addresses) > 0 {
		at = netip.AddrPortFrom(svc.Addresses[0], uint16(port))
	}
	for _, c := range v.connectionRoutes(svc, declared, traffic{}, at) {
		if c.match.matchesAll() {
			return c.to
		}
	}
	return toCluster(OutboundCluster(svc.Hostname, "", port))
}

// applyConnectionSettings applies the connection settings of the first destination's DestinationRule to t.
func (v proxyView) applyConnectionSettings(t *tcpv3.TcpProxy, to []clusterWeight) {
	host, subset, number, ok := parseOutbound(to[0].cluster)
	if !ok {
		return
	}
	svc := v.scope.Service(host)
	if svc == nil {
		return
	}
	traffic := v.scope.DestinationRule(svc).Traffic(subset, number)
	if idle := traffic.ConnectionPool.GetTcp().GetIdleTimeout(); idle != nil {
		t.IdleTimeout = idle
	}
	if traffic.LoadBalancer.GetConsistentHash().GetUseSourceIp() {
		t.HashPolicy = []*typev3.HashPolicy{{PolicySpecifier: &typev3.HashPolicy_SourceIp_{SourceIp: &typev3.HashPolicy_SourceIp{}}}}
	}
	if tunnel := traffic.Tunnel; tunnel != nil {
		t.TunnelingConfig = &tcpv3.TcpProxy_TunnelingConfig{
			Hostname: net.JoinHostPort(tunnel.GetTargetHost(), strconv.FormatUint(uint64(tunnel.GetTargetPort()), 10)),
			UsePost:  strings.EqualFold(tunnel.GetProtocol(), "POST"),
		}
	}
}

// connectionRoutes returns the routes of connections that arrive at the address at, for a port of svc. They are ordered
// by precedence: TLS routes of the service's VirtualService by SNI, its TCP routes, the route to the service itself.
func (v proxyView) connectionRoutes(svc *registry.Service, port registry.Port, t traffic, at netip.AddrPort) []connectionRoute {
	r := v.routing(snapshot.MeshGateway, port.Number)
	own := OutboundCluster(svc.Hostname, "", port.Number)
	var out []connectionRoute
	add := func(match connectionMatch, to []clusterWeight) {
		out = append(out, connectionRoute{name: strconv.Itoa(len(out)) + "_" + svc.Hostname, stat: own, match: match, traffic: t, to: to})
	}
	if vs := v.scope.VirtualService(svc.Hostname); vs != nil {
		for _, route := range vs.Spec.GetTls() {
			for _, m := range route.GetMatch() {
				if match, ok := r.matchTLS(vs, m, at); ok {
					add(match, r.clusterWeights(vs, route.GetRoute()))
				}
			}
		}
		for _, route := range vs.Spec.GetTcp() {
			for _, match := range r.matchTCP(vs, v.p.Address, route.GetMatch(), at) {
				add(match, r.clusterWeights(vs, route.GetRoute()))
				if match.matchesAll() {
					return out
				}
			}
		}
	}
	switch {
	case svc.ByName && (port.Protocol == registry.TLS || port.Protocol == registry.HTTPS):
		add(connectionMatch{names: []string{svc.Hostname}}, toCluster(own))
	case !at.Addr().IsUnspecified():
		add(connectionMatch{}, toCluster(own))
	case port.Protocol == registry.TLS || port.Protocol == registry.HTTPS:
		match := connectionMatch{}
		for known := range v.scope.VisibleNames(svc) {
			match.names = append(match.names, known.Hostname)
		}
		add(match, toCluster(own))
	case svc.Headless():
		if subnets := v.endpointSubnets(svc, port.Number); len(subnets) > 0 {
			add(connectionMatch{subnets: subnets}, toCluster(own))
		}
	default:
		add(connectionMatch{}, toCluster(own))
	}
	return out
}

// endpointSubnets returns the addresses of a service's endpoints. Clients may connect to an endpoint directly, so these
// addresses select the service too.
func (v proxyView) endpointSubnets(svc *registry.Service, port uint32) []netip.Prefix {
	var out []netip.Prefix
	if instances := v.p.instances(v.s, svc); instances != nil {
		for _, e := range instances.Endpoints {
			if e.ServicePort != port {
				continue
			}
			for _, text := range []string{e.Address, e.SecondAddress} {
				if addr, err := netip.ParseAddr(text); err == nil {
					out = append(out, netip.PrefixFrom(addr, addr.BitLen()))
				}
			}
		}
	}
	slices.SortFunc(out, netip.Prefix.Compare)
	return slices.Compact(out)
}

// matchTLS returns those conditions of m that Envoy must evaluate for connections that arrive at the address at. It
// returns false if such connections never match.
func (r routing) matchTLS(vs *snapshot.VirtualService, m *networking.TLSMatchAttributes, at netip.AddrPort) (connectionMatch, bool) {
	if !r.appliesTo(vs, m.GetGateways(), m.GetSourceLabels(), m.GetSourceNamespace(), m.GetPort()) {
		return connectionMatch{}, false
	}
	subnets, ok := matchDestination(m.GetDestinationSubnets(), at)
	match := connectionMatch{names: m.GetSniHosts(), subnets: subnets}
	if slices.Contains(match.names, "*") {
		match.names = nil
	}
	return match, ok
}

// matchTCP returns a match for each condition that connections from client to the address at may meet.
func (r routing) matchTCP(vs *snapshot.VirtualService, client netip.Addr, matches []*networking.L4MatchAttributes, at netip.AddrPort) []connectionMatch {
	if len(matches) == 0 {
		return []connectionMatch{{}}
	}
	var out []connectionMatch
	for _, m := range matches {
		if !r.appliesTo(vs, m.GetGateways(), m.GetSourceLabels(), m.GetSourceNamespace(), m.GetPort()) || !isInSubnet(m.GetSourceSubnet(), client) {
			continue
		}
		if subnets, ok := matchDestination(m.GetDestinationSubnets(), at); ok {
			out = append(out, connectionMatch{subnets: subnets})
		}
	}
	return out
}

// matchDestination reports whether connections that arrive at the address at may match one of the written subnets. If
// at is a wildcard address, left contains the subnets that Envoy must check for each connection.
func matchDestination(written []string, at netip.AddrPort) (left []netip.Prefix, ok bool) {
	if len(written) == 0 {
		return nil, true
	}
	for _, text := range written {
		subnet, valid := parseSubnet(text)
		switch {
		case !valid:
		case at.Addr().IsUnspecified():
			left = append(left, subnet)
		case subnet.Contains(at.Addr()):
			return nil, true
		}
	}
	return left, len(left) > 0
}

func isInSubnet(written string, addr netip.Addr) bool {
	if written == "" {
		return true
	}
	subnet, ok := parseSubnet(written)
	return ok && subnet.Contains(addr)
}

// parseSubnet parses an IP address or a CIDR block.
func parseSubnet(text string) (netip.Prefix, bool) {
	if addr, err := netip.ParseAddr(text); err == nil {
		return netip.PrefixFrom(addr, addr.BitLen()), true
	}
	prefix, err := netip.ParsePrefix(text)
	return prefix.Masked(), err == nil
}

// matchesTCP reports whether one of the conditions matches at a gateway. Conditions with subnets never match there.
func (r routing) matchesTCP(vs *snapshot.VirtualService, matches []*networking.L4MatchAttributes) bool {
	if len(matches) == 0 {
		return true
	}
	for _, m := range matches {
		if len(m.GetDestinationSubnets()) == 0 && m.GetSourceSubnet() == "" &&
			r.appliesTo(vs, m.GetGateways(), m.GetSourceLabels(), m.GetSourceNamespace(), m.GetPort()) {
			return true
		}
	}
	return false
}

// clusterWeights converts weighted destinations to clusters. It omits destinations with weight 0. If none remains, it
// returns BlackHoleCluster.
func (r routing) clusterWeights(vs *snapshot.VirtualService, routes []*networking.RouteDestination) []clusterWeight {
	var out []clusterWeight
	for _, d := range routes {
		if len(routes) > 1 && d.GetWeight() == 0 {
			continue
		}
		out = append(out, clusterWeight{r.cluster(d.GetDestination(), vs.Namespace), uint32(max(1, d.GetWeight()))})
	}
	if len(out) == 0 {
		return toCluster(BlackHoleCluster)
	}
	return out
}
