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

// share is a cluster and its share of the connections.
type share struct {
	cluster string
	weight  uint32
}

func toCluster(name string) []share { return []share{{name, 1}} }

// tcpFilters are all filters of connections, in the order in which these pass them.
func (v view) tcpFilters(t traffic, statPrefix string, to []share) []*listenerv3.Filter {
	out := v.networkPlugins(t, extensions.PluginPhase_AUTHN, extensions.PluginPhase_AUTHZ)
	if t.side != outboundSide {
		out = append(out, v.networkRBAC()...)
	}
	out = append(out, v.networkPlugins(t, extensions.PluginPhase_STATS, extensions.PluginPhase_UNSPECIFIED_PHASE)...)
	out = append(out, v.tellsBytes(to)...)
	return append(out, v.tcpProxy(t, statPrefix, to))
}

// blackHoleFilters end connections.
func (v view) blackHoleFilters(t traffic) []*listenerv3.Filter {
	return []*listenerv3.Filter{v.tcpProxy(t, BlackHoleCluster, toCluster(BlackHoleCluster))}
}

// tcpProxy passes connections on to clusters by weight.
func (v view) tcpProxy(at traffic, statPrefix string, to []share) *listenerv3.Filter {
	t := &tcpv3.TcpProxy{StatPrefix: statPrefix, AccessLog: append(v.connectionLogs(at), v.auditLog(at, "envoy.filters.network.rbac")...)}
	if v.metrics(at.direction()).measured {
		t.AccessLogOptions = &tcpv3.TcpProxy_TcpAccessLogOptions{FlushAccessLogOnConnected: true}
	}
	if at.side != inboundSide {
		v.ruleConnections(t, to)
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

// tcpShares is where a sidecar sends connections to a service's port: what the first TCP route of its VirtualService
// that matches says, or the service itself.
func (v view) tcpShares(svc *registry.Service, port uint32) []share {
	declared, _ := svc.Port(port)
	at := wildcard(port)
	if len(svc.Addresses) > 0 {
		at = netip.AddrPortFrom(svc.Addresses[0], uint16(port))
	}
	for _, c := range v.connectionRoutes(svc, declared, traffic{}, at) {
		if c.match.all() {
			return c.to
		}
	}
	return toCluster(OutboundCluster(svc.Hostname, "", port))
}

// ruleConnections sets what the rule of the first destination says of connections.
func (v view) ruleConnections(t *tcpv3.TcpProxy, to []share) {
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

// connectionRoutes are where connections to a service's port go that arrive at an address, the special ones before the
// others: what its VirtualService says for TLS by the name that is called, what it says for TCP, and else to the service
// itself.
func (v view) connectionRoutes(svc *registry.Service, port registry.Port, t traffic, at netip.AddrPort) []gateChain {
	r := v.routing(snapshot.MeshGateway, port.Number)
	own := OutboundCluster(svc.Hostname, "", port.Number)
	var out []gateChain
	add := func(match connectionMatch, to []share) {
		out = append(out, gateChain{name: strconv.Itoa(len(out)) + "_" + svc.Hostname, stat: own, match: match, traffic: t, to: to})
	}
	if vs := v.scope.VirtualService(svc.Hostname); vs != nil {
		for _, route := range vs.Spec.GetTls() {
			for _, m := range route.GetMatch() {
				if match, ok := r.matchTLS(vs, m, at); ok {
					add(match, r.shares(vs, route.GetRoute()))
				}
			}
		}
		for _, route := range vs.Spec.GetTcp() {
			for _, match := range r.matchTCP(vs, v.p.Address, route.GetMatch(), at) {
				add(match, r.shares(vs, route.GetRoute()))
				if match.all() {
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
		for known := range v.scope.Names(svc) {
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

// endpointSubnets are the addresses of a service's endpoints, where callers connect to these themselves.
func (v view) endpointSubnets(svc *registry.Service, port uint32) []netip.Prefix {
	var out []netip.Prefix
	if instances := v.s.Instances(svc); instances != nil {
		for _, e := range instances.Endpoints {
			if addr, err := netip.ParseAddr(e.Address); err == nil && e.ServicePort == port {
				out = append(out, netip.PrefixFrom(addr, addr.BitLen()))
			}
		}
	}
	slices.SortFunc(out, netip.Prefix.Compare)
	return slices.Compact(out)
}

// matchTLS is what is left of a condition for connections that arrive at an address.
func (r routing) matchTLS(vs *snapshot.VirtualService, m *networking.TLSMatchAttributes, at netip.AddrPort) (connectionMatch, bool) {
	if !r.concerns(vs, m.GetGateways(), m.GetSourceLabels(), m.GetSourceNamespace(), m.GetPort()) {
		return connectionMatch{}, false
	}
	subnets, ok := reaching(m.GetDestinationSubnets(), at)
	match := connectionMatch{names: m.GetSniHosts(), subnets: subnets}
	if slices.Contains(match.names, "*") {
		match.names = nil
	}
	return match, ok
}

// matchTCP are the conditions of a route that connections from an address, which arrive at another, may meet.
func (r routing) matchTCP(vs *snapshot.VirtualService, from netip.Addr, matches []*networking.L4MatchAttributes, at netip.AddrPort) []connectionMatch {
	if len(matches) == 0 {
		return []connectionMatch{{}}
	}
	var out []connectionMatch
	for _, m := range matches {
		if !r.concerns(vs, m.GetGateways(), m.GetSourceLabels(), m.GetSourceNamespace(), m.GetPort()) || !within(m.GetSourceSubnet(), from) {
			continue
		}
		if subnets, ok := reaching(m.GetDestinationSubnets(), at); ok {
			out = append(out, connectionMatch{subnets: subnets})
		}
	}
	return out
}

// reaching says whether connections that arrive at an address can be for one of the subnets; where they arrive from all
// addresses, Envoy has to look at the subnets that are left.
func reaching(written []string, at netip.AddrPort) (left []netip.Prefix, ok bool) {
	if len(written) == 0 {
		return nil, true
	}
	for _, text := range written {
		subnet, valid := subnetOf(text)
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

func within(written string, addr netip.Addr) bool {
	if written == "" {
		return true
	}
	subnet, ok := subnetOf(written)
	return ok && subnet.Contains(addr)
}

// subnetOf reads an address or a block.
func subnetOf(text string) (netip.Prefix, bool) {
	if addr, err := netip.ParseAddr(text); err == nil {
		return netip.PrefixFrom(addr, addr.BitLen()), true
	}
	prefix, err := netip.ParsePrefix(text)
	return prefix.Masked(), err == nil
}

// matchesTCP says whether one of the conditions is met at a gateway, where no subnets are looked at.
func (r routing) matchesTCP(vs *snapshot.VirtualService, matches []*networking.L4MatchAttributes) bool {
	if len(matches) == 0 {
		return true
	}
	for _, m := range matches {
		if len(m.GetDestinationSubnets()) == 0 && m.GetSourceSubnet() == "" &&
			r.concerns(vs, m.GetGateways(), m.GetSourceLabels(), m.GetSourceNamespace(), m.GetPort()) {
			return true
		}
	}
	return false
}

// shares reads weighted destinations.
func (r routing) shares(vs *snapshot.VirtualService, routes []*networking.RouteDestination) []share {
	var out []share
	for _, d := range routes {
		if len(routes) > 1 && d.GetWeight() == 0 {
			continue
		}
		out = append(out, share{r.cluster(d.GetDestination(), vs.Namespace), uint32(max(1, d.GetWeight()))})
	}
	if len(out) == 0 {
		return toCluster(BlackHoleCluster)
	}
	return out
}
