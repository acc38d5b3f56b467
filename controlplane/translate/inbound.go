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
	// unlisted: no service lists the port. Number 0 is all ports that have no chains of their own.
	unlisted bool
	// ingress is what the workload's Sidecar says of the port; nil where it lists no ports.
	ingress *networking.IstioIngressListener
}

// as is the port where it is known what a connection speaks.
func (p inboundPort) as(protocol registry.Protocol) inboundPort {
	p.protocol = protocol
	return p
}

func (p inboundPort) cluster() string {
	if p.unlisted {
		return inboundPassthroughCluster
	}
	return InboundCluster(p.number)
}

// route is the name of the port's routes.
func (p inboundPort) route() string {
	if p.unlisted {
		return inboundRouteName(0)
	}
	return inboundRouteName(p.number)
}

// inboundPorts are the workload's ports, by number. Of two services that list one port, the first by name says what it
// speaks.
func (v view) inboundPorts() []inboundPort {
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

// targetPort is the port of the workload behind a service's port; 0 when the service names one that the workload has not.
func (v view) targetPort(svc *registry.Service, port registry.Port) uint32 {
	switch {
	case port.TargetPort != 0:
		return port.TargetPort
	case port.TargetPortName == "":
		return port.Number
	}
	if n := v.p.PodPorts[port.TargetPortName]; n != 0 {
		return n
	}
	instances := v.s.Instances(svc)
	if instances == nil {
		return 0
	}
	own := v.p.Address.String()
	for _, e := range instances.Endpoints {
		if e.ServicePort == port.Number && e.Address == own {
			return e.Port
		}
	}
	return 0
}

// The ALPN protocols by which sidecars tell each other what is inside mutual TLS.
var (
	meshHTTPProtocols   = []string{"istio-http/1.0", "istio-http/1.1", "istio-h2"}
	meshTCPProtocols    = []string{"istio", "istio-peer-exchange"}
	meshProtocols       = append(append([]string{}, meshHTTPProtocols...), meshTCPProtocols...)
	inboundHTTPProtocol = []string{"h2", "http/1.1"}
	inboundTCPProtocol  = []string{"istio-peer-exchange", "istio"}
)

// chainSet is the filter chains of one inbound port.
type chainSet struct {
	chains []*listenerv3.FilterChain
	// sniffTLS, sniffHTTP: they are told apart by looking at the first bytes.
	sniffTLS, sniffHTTP bool
	// serverMayTalkFirst: and those may never come.
	serverMayTalkFirst bool
}

// inboundChains are the ways into a port: mutual TLS, plaintext, or both, as the PeerAuthentication in force says.
func (v view) inboundChains(port inboundPort) chainSet {
	if port.protocol == registry.Undeclared {
		return v.sniffedChains(port)
	}
	mtls, plain := v.mtlsChain("mtls", port, nil), v.plainChain("plaintext", port)
	switch v.s.MTLSMode(v.p.Namespace, v.p.Labels, port.number) {
	case snapshot.Strict:
		return chainSet{chains: []*listenerv3.FilterChain{mtls}}
	case snapshot.Disable:
		if plain.TransportSocket = v.ingressTLS(port); plain.TransportSocket == nil && port.ingress.GetTls() != nil {
			plain.Filters = v.tcpFilters(port.traffic(false), BlackHoleCluster, toCluster(BlackHoleCluster)) // not served without its certificate
		}
		return chainSet{chains: []*listenerv3.FilterChain{plain}}
	}
	// Only what sidecars offer is taken for the mesh's TLS: the workload's own TLS passes as it is.
	mtls.FilterChainMatch = &listenerv3.FilterChainMatch{TransportProtocol: "tls", ApplicationProtocols: meshProtocols}
	if port.protocol.IsHTTP2() {
		// gRPC applications that need no sidecar offer this alone.
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

// sniffedChains are the ways into a port of which nobody says what it speaks. Inside mutual TLS nobody can look, so there
// the caller's sidecar tells; of plaintext the first bytes do. All that is no HTTP passes as bytes.
func (v view) sniffedChains(port inboundPort) chainSet {
	requests, bytes := port.as(registry.HTTP), port.as(registry.TCP)
	mtlsTCP, plainTCP, ownTLS := v.mtlsChain("mtls_tcp", bytes, nil), v.plainChain("plaintext_tcp", bytes), v.plainChain("tls", bytes)
	plainTCP.FilterChainMatch = &listenerv3.FilterChainMatch{TransportProtocol: "raw_buffer"}
	plainHTTP := v.plainChain("plaintext_http", requests)
	plainHTTP.FilterChainMatch = &listenerv3.FilterChainMatch{TransportProtocol: "raw_buffer", ApplicationProtocols: sniffedHTTP}
	out := chainSet{sniffTLS: true, sniffHTTP: true, serverMayTalkFirst: true}
	switch v.s.MTLSMode(v.p.Namespace, v.p.Labels, port.number) {
	case snapshot.Strict:
		// Callers that are no sidecars may offer HTTP by its usual names.
		mtlsHTTP := v.mtlsChain("mtls_http", requests, append(append([]string{}, meshHTTPProtocols...), inboundHTTPProtocol...))
		out.chains, out.sniffHTTP = []*listenerv3.FilterChain{mtlsHTTP, mtlsTCP}, false
	case snapshot.Disable:
		out.chains = []*listenerv3.FilterChain{plainHTTP, plainTCP, ownTLS}
	default:
		mtlsTCP.FilterChainMatch = &listenerv3.FilterChainMatch{TransportProtocol: "tls", ApplicationProtocols: meshTCPProtocols}
		out.chains = []*listenerv3.FilterChain{v.mtlsChain("mtls_http", requests, meshHTTPProtocols), mtlsTCP, plainHTTP, plainTCP, ownTLS}
	}
	return out
}

// mtlsChain takes mutual TLS of the mesh; protocols, if any, are those that the caller has to offer.
func (v view) mtlsChain(name string, port inboundPort, protocols []string) *listenerv3.FilterChain {
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

func (v view) plainChain(name string, port inboundPort) *listenerv3.FilterChain {
	return &listenerv3.FilterChain{Name: fmt.Sprintf("%d_%s", port.number, name), Filters: v.inboundFilters(port, false)}
}

// apply puts the chains into a listener of their own.
func (c chainSet) apply(v view, l *listenerv3.Listener) {
	l.FilterChains = c.chains
	if c.sniffTLS {
		l.ListenerFilters = append(l.ListenerFilters, tlsInspector())
	}
	if c.sniffHTTP {
		l.ListenerFilters = append(l.ListenerFilters, httpInspector())
	}
	if len(l.ListenerFilters) > 0 && c.serverMayTalkFirst {
		v.boundSniffing(l)
	}
}

func (v view) inboundFilters(port inboundPort, mtls bool) []*listenerv3.Filter {
	cluster := port.cluster()
	t := port.traffic(mtls)
	if !port.protocol.IsHTTP() {
		return v.tcpFilters(t, cluster, toCluster(cluster))
	}
	return []*listenerv3.Filter{v.hcmFilter(hcm{
		traffic:    t,
		statPrefix: fmt.Sprintf("inbound_%d", port.number),
		rds:        port.route(),
	})}
}

// traffic is what passes a chain of the port.
func (p inboundPort) traffic(mtls bool) traffic {
	return traffic{side: inboundSide, port: p.number, protocol: p.protocol, mtls: mtls}
}

// inboundRouteName is the name of the routes of a workload's port.
func inboundRouteName(port uint32) string { return InboundCluster(port) }

// inboundRoutes are the names of the routes of the workload's HTTP ports.
func (v view) inboundRoutes() []string {
	var out []string
	for _, port := range v.inboundPorts() {
		if port.protocol.MayBeHTTP() {
			out = append(out, port.route())
		}
	}
	if v.p.Interception == Redirect {
		out = append(out, inboundPort{unlisted: true}.route())
	}
	return out
}

// inboundRoute sends all requests to the workload's port, as far as its AuthorizationPolicies let them. The policies are
// here and not in the listener, so that a change of theirs holds for the very next request, also on connections that are
// open: those keep the listener's filters that they began with.
func (v view) inboundRoute(name string) (*xds.Resource, error) {
	ports := v.inboundPorts()
	if v.p.Interception == Redirect {
		ports = append(ports, inboundPort{protocol: registry.Undeclared, unlisted: true})
	}
	for _, port := range ports {
		if !port.protocol.MayBeHTTP() || port.route() != name {
			continue
		}
		return v.routesResource(&routev3.RouteConfiguration{
			Name:                 name,
			ValidateClusters:     boolean(false),
			TypedPerFilterConfig: v.rbacSettings(),
			// What callers say of themselves is not the application's.
			RequestHeadersToRemove: []string{peerHeader},
			VirtualHosts: []*routev3.VirtualHost{{
				Name:    fmt.Sprintf("inbound|http|%d", port.number),
				Domains: []string{"*"},
				Routes: []*routev3.Route{{
					Name:  "default",
					Match: everyPath(),
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

// inboundTLS shows the workload's certificate and wants one of the mesh.
func (v view) inboundTLS(port inboundPort) *corev3.TransportSocket {
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

// inboundCluster leads to the workload's port; where to is for the capture to say.
func inboundCluster(v view, port inboundPort) *clusterv3.Cluster {
	c := &clusterv3.Cluster{
		Name:            InboundCluster(port.number),
		ConnectTimeout:  v.s.Mesh.GetConnectTimeout(),
		CircuitBreakers: circuitBreakers(nil, nil),
	}
	switch {
	case port.protocol == registry.Undeclared:
		setHTTPOptions(c, asCalled())
	case port.protocol.IsHTTP():
		setHTTPOptions(c, plainHTTPOptions(port.protocol.IsHTTP2()))
	}
	bounded(c, port, v.inboundPool(port))
	return c
}
