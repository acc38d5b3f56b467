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

// This file implements the Sidecar resource: the workload's own ports (ingress), and listeners for its outbound traffic
// (egress).

// ingressPorts returns the workload's ports that its Sidecar defines, sorted by number, or nil if there are none.
func (v proxyView) ingressPorts() []inboundPort {
	var out []inboundPort
	for _, listener := range v.scope.Spec().GetIngress() {
		port := listener.GetPort()
		protocol := registry.PortProtocol(port.GetProtocol(), port.GetName(), port.GetNumber())
		if protocol == registry.Undeclared && listener.GetTls() != nil {
			protocol = registry.TCP // Envoy cannot inspect the first bytes inside TLS
		}
		if protocol != registry.UDP {
			out = append(out, inboundPort{number: port.GetNumber(), protocol: protocol, ingress: listener})
		}
	}
	slices.SortFunc(out, func(a, b inboundPort) int { return int(a.number) - int(b.number) })
	return out
}

// dedicatedListener returns the address of a listener for this port alone. It returns false if the port needs no such
// listener, because the kernel redirects connections to the port.
func (v proxyView) dedicatedListener(port inboundPort) (netip.AddrPort, bool) {
	at := netip.AddrPortFrom(v.p.Address, uint16(port.number))
	if bind, err := netip.ParseAddr(port.ingress.GetBind()); err == nil {
		return netip.AddrPortFrom(bind, uint16(port.number)), true
	}
	return at, port.ingress.GetCaptureMode() == networking.CaptureMode_NONE
}

// inboundPool returns the connection limits of the workload's port, or nil if there are none.
func (v proxyView) inboundPool(port inboundPort) *networking.ConnectionPoolSettings {
	if pool := port.ingress.GetConnectionPool(); pool != nil {
		return pool
	}
	return v.scope.Spec().GetInboundConnectionPool()
}

// applyInboundPool applies connection limits to the cluster of a workload's port.
func applyInboundPool(c *clusterv3.Cluster, port inboundPort, pool *networking.ConnectionPoolSettings) {
	if pool == nil {
		return
	}
	c.CircuitBreakers = circuitBreakers(pool, nil)
	setConnectionOptions(c, pool, nil)
	if !port.protocol.MayBeHTTP() {
		return
	}
	if port.protocol == registry.Undeclared {
		options := downstreamProtocolOptions()
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

// setWorkloadEndpoint sets the cluster's endpoint to the address that the Sidecar specifies for a port. Without such an
// address, a redirected sidecar forwards connections of a dedicated listener to 127.0.0.1. setWorkloadEndpoint returns
// false in all other cases.
func (v proxyView) setWorkloadEndpoint(c *clusterv3.Cluster, port inboundPort) bool {
	endpoint := port.ingress.GetDefaultEndpoint()
	if _, own := v.dedicatedListener(port); endpoint == "" && own && port.ingress != nil && v.p.Interception == Redirect {
		endpoint = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(port.number)).String()
	}
	if endpoint == "" {
		return false
	}
	c.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC}
	c.LbPolicy = clusterv3.Cluster_ROUND_ROBIN
	if v.s.RefuseDefault(endpoint, v.p.Namespace, v.p.Namespace).Reason != "" {
		return true // the cluster has no endpoint
	}
	to, instance := v.workloadAddress(endpoint)
	c.LoadAssignment = &endpointv3.ClusterLoadAssignment{ClusterName: c.GetName(), Endpoints: []*endpointv3.LocalityLbEndpoints{{
		LbEndpoints: []*endpointv3.LbEndpoint{{HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: to}}}},
	}}}
	if instance && v.p.Interception == Redirect {
		c.UpstreamBindConfig = v.p.captureBindConfig()
	}
	return true
}

// workloadAddress parses an endpoint of the workload. If a workload shares its network namespace, its own address
// replaces the address in endpoint. instance reports whether peers reach the workload at the resulting address.
func (v proxyView) workloadAddress(endpoint string) (to *corev3.Address, instance bool) {
	if path, ok := strings.CutPrefix(endpoint, "unix://"); ok {
		return pipe(path), false
	}
	at, err := netip.ParseAddrPort(endpoint)
	switch {
	case err != nil: // validation refuses such endpoints
		return address("127.0.0.1", 0), false
	case v.p.Interception == None && v.p.AppAddress.IsValid():
		return address(v.p.AppAddress.String(), uint32(at.Port())), false
	case at.Addr().IsUnspecified():
		return address(v.p.Address.String(), uint32(at.Port())), true
	}
	return socketAddress(at), false
}

// ingressTLS returns the transport socket for the TLS settings that the Sidecar specifies for a port without mesh TLS.
// It returns nil if there are none, or if the certificate is not available.
func (v proxyView) ingressTLS(port inboundPort) *corev3.TransportSocket {
	if port.ingress.GetTls() == nil {
		return nil
	}
	return v.terminateTLS(port.ingress.GetTls(), port.protocol.IsHTTP())
}

// egressListener is a listener of the Sidecar resource to which the workload connects by address.
type egressListener struct {
	snapshot.EgressListener
	addr     netip.AddrPort
	protocol registry.Protocol
}

func (e egressListener) routeName() string { return egressPrefix + listenerName(e.addr) }

// egressPrefix is the prefix of the names of route configurations for egress listeners.
const egressPrefix = "egress|"

// egressListeners returns the egress listeners of the Sidecar to which the workload connects by address. Without
// redirection these are all egress listeners with a port.
func (v proxyView) egressListeners() []egressListener {
	var out []egressListener
	for _, l := range v.scope.EgressListeners() {
		if !l.IsBound() && v.p.Interception != None {
			continue
		}
		addr := v.p.Address
		if v.p.Interception == Redirect {
			addr = netip.AddrFrom4([4]byte{127, 0, 0, 1})
		}
		if bind, err := netip.ParseAddr(l.GetBind()); err == nil {
			addr = bind
		}
		e := egressListener{EgressListener: l, addr: netip.AddrPortFrom(addr, uint16(l.GetPort().GetNumber()))}
		e.protocol = registry.PortProtocol(l.GetPort().GetProtocol(), l.GetPort().GetName(), l.GetPort().GetNumber())
		if !slices.ContainsFunc(out, func(o egressListener) bool { return o.addr == e.addr }) {
			out = append(out, e)
		}
	}
	return out
}

// services returns those services that are visible through the listener and have its port.
func (e egressListener) services(v proxyView) []*registry.Service {
	var out []*registry.Service
	for _, svc := range v.scope.Services {
		if port, ok := svc.Port(e.GetPort().GetNumber()); ok && port.Protocol != registry.UDP && v.scope.IsVisibleFrom(e.EgressListener, svc) {
			out = append(out, svc)
		}
	}
	return out
}

// buildEgressListeners returns the egress listeners of the Sidecar, and adds their addresses to taken. It omits
// listeners whose address is already in taken, and listeners through which no service is visible.
func (v proxyView) buildEgressListeners(taken map[netip.AddrPort]bool) []*listenerv3.Listener {
	var out []*listenerv3.Listener
	for _, e := range v.egressListeners() {
		filters := v.egressFilters(e)
		if filters == nil || taken[e.addr] {
			continue
		}
		taken[e.addr] = true
		l := listener(e.addr, corev3.TrafficDirection_OUTBOUND)
		l.FilterChains = []*listenerv3.FilterChain{{Name: l.Name, Filters: filters}}
		out = append(out, l)
	}
	return out
}

// egressFilters returns filters that forward HTTP according to the Host header, and other traffic to the first service.
// It returns nil if no service is visible through the listener.
func (v proxyView) egressFilters(e egressListener) []*listenerv3.Filter {
	number := e.GetPort().GetNumber()
	t := traffic{side: outboundSide, port: number, protocol: e.protocol}
	if e.protocol.IsHTTP() {
		return []*listenerv3.Filter{v.hcmFilter(hcmOptions{traffic: t, statPrefix: "outbound_" + listenerName(e.addr), rds: e.routeName()})}
	}
	services := e.services(v)
	if len(services) == 0 {
		return nil
	}
	return v.tcpFilters(t, OutboundCluster(services[0].Hostname, "", number), v.tcpClusterWeights(services[0], number))
}

// egressRoutes returns the names of the route configurations of egress listeners.
func (v proxyView) egressRoutes() []string {
	var out []string
	for _, e := range v.egressListeners() {
		if e.protocol.IsHTTP() {
			out = append(out, e.routeName())
		}
	}
	return out
}

// egressRoute returns the route configuration of an egress listener. VHDS never delivers its virtual hosts.
func (v proxyView) egressRoute(name string) (*xds.Resource, error) {
	i := slices.IndexFunc(v.egressListeners(), func(e egressListener) bool { return e.routeName() == name && e.protocol.IsHTTP() })
	if i < 0 {
		return nil, nil
	}
	e := v.egressListeners()[i]
	return v.cachedRoutes(name, func() *routev3.RouteConfiguration {
		plan := newHostPlan(v.hostsAt(e.services(v), e.GetPort().GetNumber(), domains{}))
		return &routev3.RouteConfiguration{
			Name: name, ValidateClusters: boolean(false), IgnorePortInHostMatching: true, VirtualHosts: v.buildVirtualHosts(plan),
		}
	})
}

// hasEgressRoutes reports whether the proxy has route configurations of egress listeners.
func (v proxyView) hasEgressRoutes() bool { return len(v.egressRoutes()) > 0 }
