package translate

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
)

// noneMode is the mode of a sidecar without redirection. Its workload uses the sidecar as an HTTP proxy, or connects to
// a listener of the sidecar for one port of a service. Clients reach the workload's ports at the sidecar's address.
type noneMode struct{}

// defaultHTTPProxyPort is the port of the HTTP proxy if the mesh configuration sets none.
const defaultHTTPProxyPort = 15080

// httpProxyAddress returns the listen address of the HTTP proxy. If the workload is on the proxy's machine, this is a
// loopback address: a client on another machine could otherwise send requests with the workload's identity.
func httpProxyAddress(v proxyView) netip.AddrPort {
	port := v.s.Mesh.GetProxyHttpPort()
	if port == 0 {
		port = defaultHTTPProxyPort
	}
	address := v.p.Address
	if v.p.AppAddress.IsLoopback() && !address.IsLoopback() {
		address = v.p.AppAddress
	}
	return netip.AddrPortFrom(address, uint16(port))
}

func (noneMode) listeners(v proxyView) []*listenerv3.Listener {
	out := []*listenerv3.Listener{httpProxyListener(v)}
	taken := map[netip.AddrPort]bool{httpProxyAddress(v): true}
	for _, u := range v.p.Upstreams {
		if l := upstreamListener(v, u); l != nil && !taken[u.Listen] {
			taken[u.Listen] = true
			out = append(out, l)
		}
	}
	out = append(out, v.buildEgressListeners(taken)...)
	for _, port := range v.inboundPorts() {
		at, _ := v.dedicatedListener(port)
		if taken[at] {
			continue
		}
		taken[at] = true
		l := listener(at, corev3.TrafficDirection_INBOUND)
		v.inboundChains(port).apply(v, l)
		out = append(out, l)
	}
	return out
}

func listener(at netip.AddrPort, direction corev3.TrafficDirection) *listenerv3.Listener {
	return &listenerv3.Listener{Name: listenerName(at), Address: socketAddress(at), TrafficDirection: direction}
}

func httpProxyListener(v proxyView) *listenerv3.Listener {
	l := listener(httpProxyAddress(v), corev3.TrafficDirection_OUTBOUND)
	// The filter is always present. It has an effect only on routes to clusters that resolve names.
	t := traffic{side: outboundSide, protocol: registry.HTTP, byName: true}
	l.FilterChains = []*listenerv3.FilterChain{{
		Name:    httpProxyRoute,
		Filters: []*listenerv3.Filter{v.hcmFilter(hcmOptions{traffic: t, statPrefix: "outbound_http_proxy", rds: httpProxyRoute})},
	}}
	return l
}

// upstreamListener returns a listener for one port of a service. If the service does not exist, it returns nil. The
// kernel then refuses the workload's connections immediately.
func upstreamListener(v proxyView, u Upstream) *listenerv3.Listener {
	svc := v.scope.Resolve(u.Host, v.p.Namespace)
	if svc == nil {
		return nil
	}
	port, ok := svc.Port(u.Port)
	if !ok {
		return nil
	}
	l := listener(u.Listen, corev3.TrafficDirection_OUTBOUND)
	cluster := OutboundCluster(svc.Hostname, "", u.Port)
	t := traffic{side: outboundSide, port: u.Port, protocol: port.Protocol, byName: true}
	filters := v.tcpFilters(t, cluster, v.tcpClusterWeights(svc, u.Port))
	if port.Protocol.IsHTTP() {
		filters = []*listenerv3.Filter{v.hcmFilter(hcmOptions{traffic: t, statPrefix: "outbound_" + listenerName(u.Listen), rds: upstreamRoute(svc, u.Port)})}
	}
	l.FilterChains = []*listenerv3.FilterChain{{Name: cluster, Filters: filters}}
	return l
}

func upstreamRoute(svc *registry.Service, port uint32) string {
	return svc.Hostname + ":" + strconv.FormatUint(uint64(port), 10)
}

func (noneMode) routeNames(v proxyView) []string {
	names := []string{httpProxyRoute}
	seen := map[string]bool{}
	for _, u := range v.p.Upstreams {
		svc := v.scope.Resolve(u.Host, v.p.Namespace)
		if svc == nil {
			continue
		}
		name := upstreamRoute(svc, u.Port)
		if port, ok := svc.Port(u.Port); ok && port.Protocol.IsHTTP() && !seen[name] {
			seen[name] = true
			names = append(names, name)
		}
	}
	return slices.Concat(names, v.egressRoutes(), v.inboundRoutes())
}

func (noneMode) routeConfiguration(v proxyView, name string) (*xds.Resource, error) {
	if name == httpProxyRoute {
		return v.cachedRoutes(name, func() *routev3.RouteConfiguration {
			return v.setVirtualHosts(&routev3.RouteConfiguration{Name: name, ValidateClusters: boolean(false)}, func() *hostPlan { return noneMode{}.hostPlan(v, name) })
		})
	}
	if strings.HasPrefix(name, "inbound|") {
		return v.inboundRoute(name)
	}
	if strings.HasPrefix(name, egressPrefix) {
		return v.egressRoute(name)
	}
	return v.serviceRoute(name)
}

func (noneMode) hostPlan(v proxyView, route string) *hostPlan {
	if route != httpProxyRoute {
		return nil
	}
	return v.cachedHostPlan(route, v.httpProxyHosts)
}

// serviceRoute returns the route configuration that is called name ("host:port"), for the listener of one port of a
// service. It returns nil if the service has no such HTTP port.
func (v proxyView) serviceRoute(name string) (*xds.Resource, error) {
	i := strings.LastIndexByte(name, ':')
	if i < 0 {
		return nil, nil
	}
	number, err := strconv.ParseUint(name[i+1:], 10, 16)
	svc := v.scope.Service(name[:i])
	if err != nil || svc == nil {
		return nil, nil
	}
	if port, ok := svc.Port(uint32(number)); !ok || !port.Protocol.MayBeHTTP() {
		return nil, nil
	}
	return v.cachedRoutes(name, func() *routev3.RouteConfiguration {
		r := v.routing(snapshot.MeshGateway, uint32(number))
		host := &routev3.VirtualHost{Name: name, Domains: []string{"*"}, Routes: r.serviceRoutes(svc)}
		return &routev3.RouteConfiguration{Name: name, ValidateClusters: boolean(false), VirtualHosts: []*routev3.VirtualHost{host}}
	})
}

func (noneMode) nonServiceClusters(s *snapshot.Snapshot, p *Proxy) []*clusterv3.Cluster {
	v := newView(s, p)
	var out []*clusterv3.Cluster
	for _, port := range v.inboundPorts() {
		c := inboundCluster(v, port)
		if v.setWorkloadEndpoint(c, port) {
			out = append(out, c)
			continue
		}
		c.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC}
		if at := netip.AddrPortFrom(p.AppAddress, uint16(port.number)); s.RefuseDefault(at.String(), p.Namespace, p.Namespace).Reason != "" {
			out = append(out, c) // c has no endpoint
			continue
		}
		c.LoadAssignment = &endpointv3.ClusterLoadAssignment{ClusterName: c.Name, Endpoints: []*endpointv3.LocalityLbEndpoints{{
			LbEndpoints: []*endpointv3.LbEndpoint{{HostIdentifier: &endpointv3.LbEndpoint_Endpoint{
				Endpoint: &endpointv3.Endpoint{Address: address(p.AppAddress.String(), port.number)},
			}}},
		}}}
		out = append(out, c)
	}
	passthrough := &clusterv3.Cluster{Name: PassthroughCluster, ConnectTimeout: s.Mesh.GetConnectTimeout(), CircuitBreakers: circuitBreakers(nil, nil), Metadata: clusterNameMetadata(PassthroughCluster)}
	setDynamicForward(passthrough, p.dnsFamily(registry.Passthrough))
	return append(append(out, v.credentialClusters()...), passthrough, blackHole(s))
}

// blackHole returns a cluster without endpoints.
func blackHole(s *snapshot.Snapshot) *clusterv3.Cluster {
	return &clusterv3.Cluster{
		Name:                 BlackHoleCluster,
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC},
		ConnectTimeout:       s.Mesh.GetConnectTimeout(),
		Metadata:             clusterNameMetadata(BlackHoleCluster),
	}
}
