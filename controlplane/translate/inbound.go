package translate

import (
	"fmt"
	"slices"
	"sort"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
)

// inboundPort is one port of the proxy's workload.
type inboundPort struct {
	number   uint32
	protocol registry.Protocol
	// unlisted: no service has this port. Port number 0 represents all ports that share the catch-all chains.
	unlisted bool
	// ingress is the configuration of the port in the workload's Sidecar; nil if the Sidecar has no ingress listeners.
	ingress *networking.IstioIngressListener
}

// withProtocol returns a copy of the port with the specified protocol.
func (p inboundPort) withProtocol(protocol registry.Protocol) inboundPort {
	p.protocol = protocol
	return p
}

func (p inboundPort) cluster() string {
	if p.unlisted {
		return inboundPassthroughCluster
	}
	return InboundCluster(p.number)
}

// routeName returns the name of the port's route configuration.
func (p inboundPort) routeName() string {
	if p.unlisted {
		return inboundRouteName(0)
	}
	return inboundRouteName(p.number)
}

// inboundPorts returns the workload's ports, sorted by number. If several services have the same port, the first
// service by name determines its protocol.
func (v proxyView) inboundPorts() []inboundPort {
	if listed := v.ingressPorts(); listed != nil {
		return listed
	}
	var out []inboundPort
	seen := map[uint32]bool{}
	for _, svc := range v.s.LocalServices(v.p.Namespace, v.p.Labels) {
		for _, port := range svc.Ports {
			number := v.targetPort(svc, port)
			if number == 0 || seen[number] || port.Protocol == registry.UDP {
				continue
			}
			seen[number] = true
			out = append(out, inboundPort{number: number, protocol: port.Protocol})
		}
	}
	sort.Slice(out, func(i, j int) bool { return out[i].number < out[j].number })
	return out
}

// targetPort returns the workload's port for a service's port. It returns 0 if the service refers to the workload's
// port by a name that the workload does not define.
func (v proxyView) targetPort(svc *registry.Service, port registry.Port) uint32 {
	switch {
	case port.TargetPort != 0:
		return port.TargetPort
	case port.TargetPortName == "":
		return port.Number
	}
	if n := v.p.PodPorts[port.TargetPortName]; n != 0 {
		return n
	}
	instances := v.p.instances(v.s, svc)
	if instances == nil {
		return 0
	}
	own := v.p.Address.String()
	if v.p.RegisteredAddress.IsValid() {
		own = v.p.RegisteredAddress.String()
	}
	for _, e := range instances.Endpoints {
		if e.ServicePort == port.Number && e.Address == own {
			return e.Port
		}
	}
	return 0
}

// The ALPN protocols with which sidecars announce the content of mutual TLS connections.
var (
	meshHTTPProtocols   = []string{"istio-http/1.0", "istio-http/1.1", "istio-h2"}
	meshTCPProtocols    = []string{"istio", "istio-peer-exchange"}
	meshProtocols       = append(append([]string{}, meshHTTPProtocols...), meshTCPProtocols...)
	inboundHTTPProtocol = []string{"h2", "http/1.1"}
	inboundTCPProtocol  = []string{"istio-peer-exchange", "istio"}
)

// chainSet contains the filter chains of one inbound port.
type chainSet struct {
	chains []*listenerv3.FilterChain
	// sniffTLS, sniffHTTP: Envoy selects the chain by the first bytes of the connection. Listener filters inspect these
	// bytes.
	sniffTLS, sniffHTTP bool
	// serverMayTalkFirst: the port accepts plaintext other than HTTP. The client may then wait for the server's first
	// bytes, so Envoy must not wait long for the client's first bytes. In mutual TLS, the client sends first.
	serverMayTalkFirst bool
}

// inboundChains returns the chains of a port. They accept mutual TLS, plaintext or both, as the effective
// PeerAuthentication specifies.
func (v proxyView) inboundChains(port inboundPort) chainSet {
	if port.protocol == registry.Undeclared {
		return v.sniffedChains(port)
	}
	mtls, plain := v.mtlsChain("mtls", port, nil), v.plainChain("plaintext", port)
	switch v.s.MTLSMode(v.p.Namespace, v.p.Labels, port.number) {
	case snapshot.Strict:
		return chainSet{chains: []*listenerv3.FilterChain{mtls}}
	case snapshot.Disable:
		if plain.TransportSocket = v.ingressTLS(port); plain.TransportSocket == nil && port.ingress.GetTls() != nil {
			// If its certificate is not available, Envoy must not serve the port.
			plain.Filters = v.tcpFilters(port.traffic(false), BlackHoleCluster, toCluster(BlackHoleCluster))
		}
		return chainSet{chains: []*listenerv3.FilterChain{plain}, serverMayTalkFirst: !port.protocol.IsHTTP()}
	}
	// Only the ALPN protocols of sidecars select the chain for mesh TLS, so that Envoy forwards the application's own
	// TLS unchanged.
	mtls.FilterChainMatch = &listenerv3.FilterChainMatch{TransportProtocol: "tls", ApplicationProtocols: meshProtocols}
	if port.protocol.IsHTTP2() {
		// Proxyless gRPC clients offer only this ALPN protocol.
		mtls.FilterChainMatch.ApplicationProtocols = append(slices.Clone(meshProtocols), "h2")
	}
	if port.protocol.IsHTTP() {
		plain.FilterChainMatch = &listenerv3.FilterChainMatch{TransportProtocol: "raw_buffer"}
	}
	return chainSet{
		chains:             []*listenerv3.FilterChain{mtls, plain},
		sniffTLS:           true,
		serverMayTalkFirst: !port.protocol.IsHTTP(),
	}
}

// sniffedChains returns the chains of a port without a declared protocol. In mutual TLS, the client's sidecar announces
// the protocol by ALPN. In plaintext, Envoy detects it from the first bytes. Envoy processes everything except HTTP as
// TCP.
func (v proxyView) sniffedChains(port inboundPort) chainSet {
	requests, bytes := port.withProtocol(registry.HTTP), port.withProtocol(registry.TCP)
	mtlsTCP, plainTCP, ownTLS := v.mtlsChain("mtls_tcp", bytes, nil), v.plainChain("plaintext_tcp", bytes), v.plainChain("tls", bytes)
	plainTCP.FilterChainMatch = &listenerv3.FilterChainMatch{TransportProtocol: "raw_buffer"}
	plainHTTP := v.plainChain("plaintext_http", requests)
	plainHTTP.FilterChainMatch = &listenerv3.FilterChainMatch{TransportProtocol: "raw_buffer", ApplicationProtocols: v.p.sniffedHTTP()}
	out := chainSet{sniffTLS: true, sniffHTTP: true, serverMayTalkFirst: true}
	switch v.s.MTLSMode(v.p.Namespace, v.p.Labels, port.number) {
	case snapshot.Strict:
		// Clients without a sidecar may offer the standard ALPN protocols of HTTP.
		mtlsHTTP := v.mtlsChain("mtls_http", requests, append(append([]string{}, meshHTTPProtocols...), inboundHTTPProtocol...))
		out.chains, out.sniffHTTP, out.serverMayTalkFirst = []*listenerv3.FilterChain{mtlsHTTP, mtlsTCP}, false, false
	case snapshot.Disable:
		out.chains = []*listenerv3.FilterChain{plainHTTP, plainTCP, ownTLS}
	default:
		mtlsTCP.FilterChainMatch = &listenerv3.FilterChainMatch{TransportProtocol: "tls", ApplicationProtocols: meshTCPProtocols}
		out.chains = []*listenerv3.FilterChain{v.mtlsChain("mtls_http", requests, meshHTTPProtocols), mtlsTCP, plainHTTP, plainTCP, ownTLS}
	}
	return out
}

// mtlsChain returns a chain for mesh mutual TLS. If protocols is not nil, the client must offer one of them.
func (v proxyView) mtlsChain(name string, port inboundPort, protocols []string) *listenerv3.FilterChain {
	chain := &listenerv3.FilterChain{
		Name:            fmt.Sprintf("%d_%s", port.number, name),
		TransportSocket: v.inboundTLS(port),
		Filters:         v.inboundFilters(port, true),
	}
	if protocols != nil {
		chain.FilterChainMatch = &listenerv3.FilterChainMatch{TransportProtocol: "tls", ApplicationProtocols: protocols}
	}
	return chain
}

func (v proxyView) plainChain(name string, port inboundPort) *listenerv3.FilterChain {
	return &listenerv3.FilterChain{Name: fmt.Sprintf("%d_%s", port.number, name), Filters: v.inboundFilters(port, false)}
}

// apply sets the chains and their listener filters on l, which is a listener for this port only.
func (c chainSet) apply(v proxyView, l *listenerv3.Listener) {
	l.FilterChains = c.chains
	if c.sniffTLS {
		l.ListenerFilters = append(l.ListenerFilters, tlsInspector())
	}
	if c.sniffHTTP {
		l.ListenerFilters = append(l.ListenerFilters, httpInspector())
	}
	if len(l.ListenerFilters) > 0 && c.serverMayTalkFirst {
		v.setSniffTimeout(l)
	}
}

func (v proxyView) inboundFilters(port inboundPort, mtls bool) []*listenerv3.Filter {
	cluster := port.cluster()
	t := port.traffic(mtls)
	if !port.protocol.IsHTTP() {
		return v.tcpFilters(t, cluster, toCluster(cluster))
	}
	return []*listenerv3.Filter{v.hcmFilter(hcmOptions{
		traffic:    t,
		statPrefix: fmt.Sprintf("inbound_%d", port.number),
		rds:        port.routeName(),
	})}
}

// traffic returns the traffic of the port's chains.
func (p inboundPort) traffic(mtls bool) traffic {
	return traffic{side: inboundSide, port: p.number, protocol: p.protocol, mtls: mtls}
}

// inboundRouteName returns the name of the route configuration of a workload's port.
func inboundRouteName(port uint32) string { return InboundCluster(port) }

// inboundRoutes returns the names of the route configurations of the workload's HTTP ports.
func (v proxyView) inboundRoutes() []string {
	var out []string
	for _, port := range v.inboundPorts() {
		if port.protocol.MayBeHTTP() {
			out = append(out, port.routeName())
		}
	}
	if v.p.Interception == Redirect {
		out = append(out, inboundPort{unlisted: true}.routeName())
	}
	return out
}

// inboundRoute returns the route configuration that sends all requests to the workload's port. The
// AuthorizationPolicies are in the route, so that a change applies to the next request even on open connections. A
// change of a listener's filters applies only to new connections.
func (v proxyView) inboundRoute(name string) (*xds.Resource, error) {
	ports := v.inboundPorts()
	if v.p.Interception == Redirect {
		ports = append(ports, inboundPort{protocol: registry.Undeclared, unlisted: true})
	}
	for _, port := range ports {
		if !port.protocol.MayBeHTTP() || port.routeName() != name {
			continue
		}
		return v.routesResource(&routev3.RouteConfiguration{
			Name:                 name,
			ValidateClusters:     boolean(false),
			TypedPerFilterConfig: v.rbacSettings(),
			// Envoy removes the client's peer metadata header, because the application must not receive it.
			RequestHeadersToRemove: []string{peerHeader},
			VirtualHosts: []*routev3.VirtualHost{{
				Name:    fmt.Sprintf("inbound|http|%d", port.number),
				Domains: []string{"*"},
				Routes: []*routev3.Route{{
					Name:  "default",
					Match: matchAllPaths(),
					Action: &routev3.Route_Route{Route: &routev3.RouteAction{
						ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: port.cluster()},
						Timeout:          duration(0),
					}},
				}},
			}},
		}, nil)
	}
	return nil, nil
}

// inboundTLS returns a TLS transport socket that uses the workload's certificate and requires a client certificate of
// the mesh.
func (v proxyView) inboundTLS(port inboundPort) *corev3.TransportSocket {
	common := meshCertificates(v.s.Mesh)
	domains := append([]string{v.s.Mesh.GetTrustDomain()}, v.s.Mesh.GetTrustDomainAliases()...)
	names := make([]*tlsv3.SubjectAltNameMatcher, 0, len(domains))
	for _, d := range domains {
		names = append(names, &tlsv3.SubjectAltNameMatcher{SanType: tlsv3.SubjectAltNameMatcher_URI, Matcher: prefix("spiffe://" + d + "/")})
	}
	common.ValidationContextType = validateWith(rootSecret, names)
	common.AlpnProtocols = inboundTCPProtocol
	if port.protocol.IsHTTP() {
		common.AlpnProtocols = inboundHTTPProtocol
	}
	return serverTLS(&tlsv3.DownstreamTlsContext{CommonTlsContext: common, RequireClientCertificate: boolean(true)})
}

// inboundCluster returns the cluster of the workload's port without its endpoint. The interception mode adds the
// endpoint.
func inboundCluster(v proxyView, port inboundPort) *clusterv3.Cluster {
	c := &clusterv3.Cluster{
		Name:            InboundCluster(port.number),
		ConnectTimeout:  v.s.Mesh.GetConnectTimeout(),
		CircuitBreakers: circuitBreakers(nil, nil),
	}
	switch {
	case port.protocol == registry.Undeclared:
		setHTTPOptions(c, downstreamProtocolOptions())
	case port.protocol.IsHTTP():
		setHTTPOptions(c, plainHTTPOptions(port.protocol.IsHTTP2()))
	}
	applyInboundPool(c, port, v.inboundPool(port))
	return c
}
