package translate

import (
	"net/netip"
	"slices"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
)

// What a Sidecar resource says of a workload's own ports, and of listeners of its own for what the workload calls.

// ingressPorts are the workload's ports as its Sidecar lists them, by number; nil when it lists none.
func (v view) ingressPorts() []inboundPort {
	var out []inboundPort
	for _, listener := range v.scope.Spec().GetIngress() {
		port := listener.GetPort()
		protocol := registry.ProtocolOf(port.GetProtocol(), port.GetName(), port.GetNumber())
		if protocol == registry.Undeclared && listener.GetTls() != nil {
			protocol = registry.TCP // of what is within TLS nobody sees the first bytes
		}
		if protocol != registry.UDP {
			out = append(out, inboundPort{number: port.GetNumber(), protocol: protocol, ingress: listener})
		}
	}
	slices.SortFunc(out, func(a, b inboundPort) int { return int(a.number) - int(b.number) })
	return out
}

// ownListener says whether a port has a listener by itself, though connections are captured; and where.
func (v view) ownListener(port inboundPort) (netip.AddrPort, bool) {
	at := netip.AddrPortFrom(v.p.Address, uint16(port.number))
	if bind, err := netip.ParseAddr(port.ingress.GetBind()); err == nil {
		return netip.AddrPortFrom(bind, uint16(port.number)), true
	}
	return at, port.ingress.GetCaptureMode() == networking.CaptureMode_NONE
}

// inboundPool bounds the connections to the workload's port; nil when nothing does.
func (v view) inboundPool(port inboundPort) *networking.ConnectionPoolSettings {
	if pool := port.ingress.GetConnectionPool(); pool != nil {
		return pool
	}
	return v.scope.Spec().GetInboundConnectionPool()
}

// bounded applies a pool's settings to the cluster of a workload's port.
func bounded(c *clusterv3.Cluster, port inboundPort, pool *networking.ConnectionPoolSettings) {
	if pool == nil {
		return
	}
	c.CircuitBreakers = circuitBreakers(pool, nil)
	connect(c, pool, nil)
	if !port.protocol.MayBeHTTP() {
		return
	}
	if port.protocol == registry.Undeclared {
		options := asCalled()
		options.CommonHttpProtocolOptions = commonHTTPOptions(pool)
		setHTTPOptions(c, options)
		return
	}
	options := &httpv3.HttpProtocolOptions{CommonHttpProtocolOptions: commonHTTPOptions(pool), UpstreamProtocolOptions: explicitHTTP1()}
	if port.protocol.IsHTTP2() || pool.GetHttp().GetH2UpgradePolicy() == networking.ConnectionPoolSettings_HTTPSettings_UPGRADE {
		options.UpstreamProtocolOptions = explicitHTTP2(http2Options(pool.GetHttp()))
	}
	setHTTPOptions(c, options)
}

// toWorkload leads a cluster to where the Sidecar says that the workload serves a port; false when it does not say.
func (v view) toWorkload(c *clusterv3.Cluster, port inboundPort) bool {
	endpoint := port.ingress.GetDefaultEndpoint()
	if _, own := v.ownListener(port); endpoint == "" && own && port.ingress != nil && v.p.Interception == Redirect {
		endpoint = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(port.number)).String()
	}
	if endpoint == "" {
		return false
	}
	to, instance := v.workloadAddress(endpoint)
	c.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC}
	c.LbPolicy = clusterv3.Cluster_ROUND_ROBIN
	c.LoadAssignment = &endpointv3.ClusterLoadAssignment{ClusterName: c.GetName(), Endpoints: []*endpointv3.LocalityLbEndpoints{{
		LbEndpoints: []*endpointv3.LbEndpoint{{HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: to}}}},
	}}}
	if instance && v.p.Interception == Redirect {
		c.UpstreamBindConfig = v.p.fromCapturedSource()
	}
	return true
}

// workloadAddress reads an endpoint of the workload; instance says that it is at the address that others reach it by. A
// workload that shares its network with others has an address of its own instead of the loopback one.
func (v view) workloadAddress(endpoint string) (to *corev3.Address, instance bool) {
	if path, ok := strings.CutPrefix(endpoint, "unix://"); ok {
		return pipe(path), false
	}
	at, err := netip.ParseAddrPort(endpoint)
	switch {
	case err != nil: // validation lets none in
		return address("127.0.0.1", 0), false
	case v.p.Interception == None && v.p.AppAddress.IsValid():
		return address(v.p.AppAddress.String(), uint32(at.Port())), false
	case at.Addr().IsUnspecified():
		return address(v.p.Address.String(), uint32(at.Port())), true
	}
	return socketAddress(at), false
}

// ingressTLS is the TLS that the Sidecar has end at a port where the mesh's own is disabled; nil when it says nothing.
func (v view) ingressTLS(port inboundPort) *corev3.TransportSocket {
	if port.ingress.GetTls() == nil {
		return nil
	}
	return v.endTLS(port.ingress.GetTls(), port.protocol.IsHTTP())
}

// boundEgress is a listener of the Sidecar that the workload calls by its address.
type boundEgress struct {
	snapshot.EgressListener
	at       netip.AddrPort
	protocol registry.Protocol
}

func (e boundEgress) route() string { return egressPrefix + listenerName(e.at) }

// egressPrefix is what the names of the routes of such listeners begin with.
const egressPrefix = "egress|"

// boundEgress are those listeners; where nothing is captured, all that have a port.
func (v view) boundEgress() []boundEgress {
	var out []boundEgress
	for _, l := range v.scope.EgressListeners() {
		if !l.Bound() && v.p.Interception != None {
			continue
		}
		addr := v.p.Address
		if v.p.Interception == Redirect {
			addr = netip.AddrFrom4([4]byte{127, 0, 0, 1})
		}
		if bind, err := netip.ParseAddr(l.GetBind()); err == nil {
			addr = bind
		}
		e := boundEgress{EgressListener: l, at: netip.AddrPortFrom(addr, uint16(l.GetPort().GetNumber()))}
		e.protocol = registry.ProtocolOf(l.GetPort().GetProtocol(), l.GetPort().GetName(), l.GetPort().GetNumber())
		if !slices.ContainsFunc(out, func(o boundEgress) bool { return o.at == e.at }) {
			out = append(out, e)
		}
	}
	return out
}

// services are those that a listener leads to: those that it sees, and that have its port.
func (e boundEgress) services(v view) []*registry.Service {
	var out []*registry.Service
	for _, svc := range v.scope.Services {
		if port, ok := svc.Port(e.GetPort().GetNumber()); ok && port.Protocol != registry.UDP && v.scope.SeesFrom(e.EgressListener, svc) {
			out = append(out, svc)
		}
	}
	return out
}

// boundListeners are the listeners of the Sidecar, but for addresses that are taken.
func (v view) boundListeners(taken map[netip.AddrPort]bool) []*listenerv3.Listener {
	var out []*listenerv3.Listener
	for _, e := range v.boundEgress() {
		filters := v.boundFilters(e)
		if filters == nil || taken[e.at] {
			continue
		}
		taken[e.at] = true
		l := listener(e.at, corev3.TrafficDirection_OUTBOUND)
		l.FilterChains = []*listenerv3.FilterChain{{Name: l.Name, Filters: filters}}
		out = append(out, l)
	}
	return out
}

// boundFilters lead to the services by the Host header, or, where no message has one, to the first; nil when there is none.
func (v view) boundFilters(e boundEgress) []*listenerv3.Filter {
	number := e.GetPort().GetNumber()
	t := traffic{side: outboundSide, port: number, protocol: e.protocol}
	if e.protocol.IsHTTP() {
		return []*listenerv3.Filter{v.hcmFilter(hcm{traffic: t, statPrefix: "outbound_" + listenerName(e.at), rds: e.route()})}
	}
	services := e.services(v)
	if len(services) == 0 {
		return nil
	}
	return v.tcpFilters(t, OutboundCluster(services[0].Hostname, "", number), v.tcpShares(services[0], number))
}

// egressRoutes are the names of the routes of such listeners.
func (v view) egressRoutes() []string {
	var out []string
	for _, e := range v.boundEgress() {
		if e.protocol.IsHTTP() {
			out = append(out, e.route())
		}
	}
	return out
}

// egressRoute is the route configuration of such a listener. Its virtual hosts never go by themselves.
func (v view) egressRoute(name string) (*xds.Resource, error) {
	i := slices.IndexFunc(v.boundEgress(), func(e boundEgress) bool { return e.route() == name && e.protocol.IsHTTP() })
	if i < 0 {
		return nil, nil
	}
	e := v.boundEgress()[i]
	return v.cachedRoutes(name, func() *routev3.RouteConfiguration {
		plan := newHostPlan(v.hostsAt(e.services(v), e.GetPort().GetNumber(), domains{}))
		return &routev3.RouteConfiguration{
			Name: name, ValidateClusters: boolean(false), IgnorePortInHostMatching: true, VirtualHosts: v.wholeHosts(plan),
		}
	})
}

// hasEgressRoutes says whether the proxy has routes that are named after no port alone.
func (v view) hasEgressRoutes() bool { return len(v.egressRoutes()) > 0 }
