package translate

import (
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	tcpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
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
	var out []*listenerv3.Filter
	if t.side != outboundSide {
		out = append(out, v.networkRBAC()...)
	}
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
	vs := v.scope.VirtualService(svc.Hostname)
	r := v.routing(snapshot.MeshGateway, port)
	if vs != nil {
		for _, route := range vs.Spec.GetTcp() {
			if r.matchesTCP(vs, route.GetMatch()) {
				return r.shares(vs, route.GetRoute())
			}
		}
	}
	return toCluster(OutboundCluster(svc.Hostname, "", port))
}

// matchesTCP says whether one of the conditions is met; subnets are not looked at, as no client of a listener of its own
// has one.
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
