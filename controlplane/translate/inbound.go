package translate

import (
	"fmt"
	"slices"
	"sort"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
)

// inboundPort is one port of the proxy's workload that a service lists.
type inboundPort struct {
	number   uint32
	protocol registry.Protocol
}

// inboundPorts are the workload's ports, by number. Of two services that list one port, the first by name says what it
// speaks.
func (v view) inboundPorts() []inboundPort {
	var out []inboundPort
	seen := map[uint32]bool{}
	for _, svc := range v.s.LocalServices(v.p.Namespace, v.p.Labels) {
		for _, port := range svc.Ports {
			number := v.targetPort(svc, port)
			if number == 0 || seen[number] || port.Protocol == registry.UDP {
				continue
			}
			seen[number] = true
			out = append(out, inboundPort{number, port.Protocol})
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
	meshProtocols       = []string{"istio-http/1.0", "istio-http/1.1", "istio-h2", "istio", "istio-peer-exchange"}
	inboundHTTPProtocol = []string{"h2", "http/1.1"}
	inboundTCPProtocol  = []string{"istio-peer-exchange", "istio"}
)

// sniffTimeout bounds the wait for the first bytes on a port that takes both TLS and plaintext of a protocol in which the
// server may speak first. Nobody in the mesh waits that long: mutual TLS starts with the client's bytes.
const sniffTimeout = time.Second

// chainSet is the filter chains of one inbound port.
type chainSet struct {
	chains []*listenerv3.FilterChain
	// sniffTLS: they are told apart by looking at the first bytes.
	sniffTLS bool
	// serverMayTalkFirst: and those may never come.
	serverMayTalkFirst bool
}

// inboundChains are the ways into a port: mutual TLS, plaintext, or both, as the PeerAuthentication in force says.
func (v view) inboundChains(port inboundPort) chainSet {
	mtls := &listenerv3.FilterChain{
		Name:            fmt.Sprintf("%d_mtls", port.number),
		TransportSocket: v.inboundTLS(port),
		Filters:         v.inboundFilters(port, true),
	}
	plain := &listenerv3.FilterChain{
		Name:    fmt.Sprintf("%d_plaintext", port.number),
		Filters: v.inboundFilters(port, false),
	}
	switch v.s.MTLSMode(v.p.Namespace, v.p.Labels, port.number) {
	case snapshot.Strict:
		return chainSet{chains: []*listenerv3.FilterChain{mtls}}
	case snapshot.Disable:
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

// apply puts the chains into a listener of their own.
func (c chainSet) apply(l *listenerv3.Listener) {
	l.FilterChains = c.chains
	if !c.sniffTLS {
		return
	}
	l.ListenerFilters = append(l.ListenerFilters, tlsInspector())
	if c.serverMayTalkFirst {
		l.ListenerFiltersTimeout = duration(sniffTimeout)
		l.ContinueOnListenerFiltersTimeout = true
	}
}

func (v view) inboundFilters(port inboundPort, mtls bool) []*listenerv3.Filter {
	cluster := InboundCluster(port.number)
	t := port.traffic(mtls)
	if !port.protocol.IsHTTP() {
		return v.tcpFilters(t, cluster, toCluster(cluster))
	}
	return []*listenerv3.Filter{v.hcmFilter(hcm{
		traffic:    t,
		statPrefix: fmt.Sprintf("inbound_%d", port.number),
		rds:        inboundRouteName(port.number),
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
		if port.protocol.IsHTTP() {
			out = append(out, inboundRouteName(port.number))
		}
	}
	return out
}

// inboundRoute sends all requests to the workload's port, as far as its AuthorizationPolicies let them. The policies are
// here and not in the listener, so that a change of theirs holds for the very next request, also on connections that are
// open: those keep the listener's filters that they began with.
func (v view) inboundRoute(name string) (*xds.Resource, error) {
	for _, port := range v.inboundPorts() {
		if !port.protocol.IsHTTP() || inboundRouteName(port.number) != name {
			continue
		}
		return xds.NewResource(name, v.patchRoutes(name, &routev3.RouteConfiguration{
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
						ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: InboundCluster(port.number)},
						Timeout:          duration(0),
					}},
				}},
			}},
		}, nil))
	}
	return nil, nil
}

// inboundTLS shows the workload's certificate and wants one of the mesh.
func (v view) inboundTLS(port inboundPort) *corev3.TransportSocket {
	common := meshCertificates()
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
		CircuitBreakers: circuitBreakers(nil),
	}
	if port.protocol.IsHTTP() {
		setHTTPOptions(c, plainHTTPOptions(port.protocol.IsHTTP2()))
	}
	return c
}
