package translate

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	proxyprotocolv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/proxy_protocol/v3"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
)

// gatewayMode is the interception mode of a gateway (node type router). It listens on the ports of the Gateways that
// select it.
type gatewayMode struct{}

// server is one server of a Gateway on this router.
type server struct {
	gw   snapshot.Gateway
	spec *networking.Server
	// port is the port on which the router listens, which may differ from the port in the Gateway.
	port uint32
	// nth is the number of earlier servers of the Gateway with the same port and name. It makes resource names unique.
	nth int
	// defaultRefused: the router may not connect to the server's defaultEndpoint.
	defaultRefused bool
}

// name returns the server's name, or else the name of its port. The name and the port together identify the server's
// routes.
func (s server) name() string { return cmp.Or(s.spec.GetName(), s.spec.GetPort().GetName()) }

// hosts returns the server's hosts without the namespace prefix.
func (s server) hosts() []string {
	out := make([]string, len(s.spec.GetHosts()))
	for i, h := range s.spec.GetHosts() {
		out[i] = h
		if _, host, ok := strings.Cut(h, "/"); ok {
			out[i] = host
		}
	}
	return out
}

func (s server) protocol() string { return strings.ToUpper(s.spec.GetPort().GetProtocol()) }

// isPlainHTTP reports whether the server accepts plaintext HTTP. All such servers of a port share one route
// configuration.
func (s server) isPlainHTTP() bool {
	switch s.protocol() {
	case "HTTP", "HTTP2", "GRPC", "GRPC-WEB":
		return !s.terminatesTLS()
	}
	return false
}

func (s server) terminatesTLS() bool {
	tls := s.spec.GetTls()
	if tls == nil || config.RedirectsToHTTPS(s.spec) {
		return false
	}
	switch tls.GetMode() {
	case networking.ServerTLSSettings_PASSTHROUGH, networking.ServerTLSSettings_AUTO_PASSTHROUGH:
		return false
	}
	return true
}

// isHTTPS reports whether the server terminates TLS and processes the content as HTTP.
func (s server) isHTTPS() bool {
	switch s.protocol() {
	case "HTTPS", "HTTP", "HTTP2", "GRPC":
		return s.terminatesTLS()
	}
	return false
}

// routeName returns the name of the server's route configuration, or "" for a server that accepts TCP connections. TLS
// servers do not share route configurations. Otherwise a client could send requests for one server on a connection that
// only fulfils the requirements of another. Dots in the server's name are escaped, to separate it from the Gateway's
// name.
func (s server) routeName() string {
	switch {
	case s.isPlainHTTP():
		return fmt.Sprintf("http.%d", s.port)
	case s.isHTTPS():
		name := fmt.Sprintf("https.%d.%s.%s.%s", s.spec.GetPort().GetNumber(), dotless.Replace(s.name()), s.gw.Name, s.gw.Namespace)
		if s.nth > 0 {
			name += fmt.Sprintf("#%d", s.nth+1)
		}
		return name
	}
	return ""
}

var dotless = strings.NewReplacer(".", "%2E", "%", "%25")

// servers returns all servers of the router, sorted by listening port. The servers on one port are sorted by the age of
// their Gateways.
func (v proxyView) servers() []server {
	var out []server
	for _, gw := range v.s.Gateways(v.p.Labels) {
		seen := map[string]int{}
		for _, spec := range gw.Spec.GetServers() {
			s := server{gw: gw, spec: spec, port: v.listenPort(spec.GetPort())}
			s.defaultRefused = v.s.RefuseDefault(spec.GetDefaultEndpoint(), gw.Namespace, v.p.Namespace).Reason != ""
			key := fmt.Sprint(spec.GetPort().GetNumber(), " ", s.name())
			s.nth = seen[key]
			seen[key]++
			out = append(out, s)
		}
	}
	slices.SortStableFunc(out, func(a, b server) int { return cmp.Compare(a.port, b.port) })
	return out
}

// listenPort returns the port on which the router receives the traffic for the port of a server. This is the Gateway's
// target port, or else the target port in the router's Service, or else the port itself.
func (v proxyView) listenPort(p *networking.Port) uint32 {
	number := p.GetNumber()
	//lint:ignore SA1019 the field is deprecated, but documents still use it
	if target := p.GetTargetPort(); target != 0 {
		return target
	}
	for _, svc := range v.s.LocalServices(v.p.Namespace, v.p.Labels) {
		if port, ok := svc.Port(number); ok {
			if target := v.targetPort(svc, port); target != 0 {
				return target
			}
		}
	}
	return number
}

// listenAddress returns the address of a server: the address that the mesh publishes for the port, the Gateway's bind
// address, or the router's address. A router in a separate network namespace listens on all addresses.
func (v proxyView) listenAddress(s server) netip.AddrPort {
	if at, ok := v.p.Publish[s.port]; ok {
		return at
	}
	addr := netip.IPv4Unspecified()
	if v.p.Address.Is6() {
		addr = netip.IPv6Unspecified()
	}
	if v.p.Interception == None {
		addr = v.p.Address
	}
	if bind, err := netip.ParseAddr(s.spec.GetBind()); err == nil {
		addr = bind
	}
	return netip.AddrPortFrom(addr, uint16(s.port))
}

func (gatewayMode) listeners(v proxyView) []*listenerv3.Listener {
	var order []netip.AddrPort
	byAddress := map[netip.AddrPort][]server{}
	for _, s := range v.servers() {
		at := v.listenAddress(s)
		if byAddress[at] == nil {
			order = append(order, at)
		}
		byAddress[at] = append(byAddress[at], s)
	}
	var out []*listenerv3.Listener
	for _, at := range order {
		if l := v.gatewayListener(at, byAddress[at]); l != nil {
			if other := v.otherFamily(at, byAddress[at]); other.IsValid() && byAddress[other] == nil {
				l.AdditionalAddresses = []*listenerv3.AdditionalAddress{{Address: socketAddress(other)}}
			}
			out = append(out, l)
		}
	}
	return out
}

// otherFamily returns the wildcard address of the other IP family if the router uses both families. It returns an
// invalid address if the listen address is configured explicitly.
func (v proxyView) otherFamily(at netip.AddrPort, servers []server) netip.AddrPort {
	hasBind := slices.ContainsFunc(servers, func(s server) bool { return s.spec.GetBind() != "" })
	if _, published := v.p.Publish[uint32(at.Port())]; hasBind || published || !at.Addr().IsUnspecified() || !v.p.IPv4 || !v.p.IPv6 {
		return netip.AddrPort{}
	}
	if at.Addr().Is4() {
		return netip.AddrPortFrom(netip.IPv6Unspecified(), at.Port())
	}
	return netip.AddrPortFrom(netip.IPv4Unspecified(), at.Port())
}

// gatewayListener builds the listener of the servers on one address. It returns nil if the router can serve none of
// them.
func (v proxyView) gatewayListener(at netip.AddrPort, servers []server) *listenerv3.Listener {
	l := listener(at, corev3.TrafficDirection_OUTBOUND)
	tls := !servers[0].isPlainHTTP() && servers[0].protocol() != "TCP"
	seen := domains{}
	for _, s := range servers {
		// The first server on a port determines whether the port uses TLS.
		if tls == (s.isPlainHTTP() || s.protocol() == "TCP") {
			continue
		}
		for _, chain := range v.serverChains(at, s) {
			if !seen.claimChain(chain) {
				continue
			}
			l.FilterChains = append(l.FilterChains, chain)
		}
	}
	if len(l.FilterChains) == 0 {
		return nil
	}
	if v.gatewayTopology().GetProxyProtocol() != nil {
		l.ListenerFilters = append(l.ListenerFilters, listenerFilter("envoy.filters.listener.proxy_protocol", &proxyprotocolv3.ProxyProtocol{}))
	}
	if tls {
		l.ListenerFilters = append(l.ListenerFilters, tlsInspector())
	}
	return l
}

// claimChain removes the server names of chain that an earlier chain of the listener has. It reports whether chain
// still matches any names. Envoy rejects a listener with two chains that have the same match.
func (d domains) claimChain(chain *listenerv3.FilterChain) bool {
	match := chain.GetFilterChainMatch()
	if len(match.GetServerNames()) == 0 {
		return len(d.claim("*")) > 0
	}
	match.ServerNames = d.claim(match.GetServerNames()...)
	return len(match.ServerNames) > 0
}

// serverChains returns the filter chains of one server. It returns nil if the certificate of an HTTPS server is not
// available.
func (v proxyView) serverChains(at netip.AddrPort, s server) []*listenerv3.FilterChain {
	switch {
	case s.isPlainHTTP():
		return []*listenerv3.FilterChain{{Name: s.routeName(), Filters: v.gatewayHCM(at, s)}}
	case s.isHTTPS():
		socket := v.gatewayTLS(s)
		if socket == nil {
			return nil
		}
		return []*listenerv3.FilterChain{{
			Name: s.routeName(), FilterChainMatch: sniMatch(s.hosts()), TransportSocket: socket, Filters: v.gatewayHCM(at, s),
		}}
	}
	return v.connectionChains(s)
}

func (v proxyView) gatewayHCM(at netip.AddrPort, s server) []*listenerv3.Filter {
	t := s.traffic()
	t.protocol = registry.HTTP
	t.byName = slices.ContainsFunc(v.scope.Services, func(svc *registry.Service) bool { return svc.Resolution == registry.Passthrough })
	return []*listenerv3.Filter{v.hcmFilter(hcmOptions{traffic: t, statPrefix: "outbound_" + listenerName(at), rds: s.routeName()})}
}

// traffic describes the traffic of the server's chains.
func (s server) traffic() traffic {
	return traffic{side: edgeSide, port: s.port, protocol: registry.TCP}
}

// sniMatch returns a match on the SNI, or nil if all connections match.
func sniMatch(hosts []string) *listenerv3.FilterChainMatch {
	if len(hosts) == 0 || slices.Contains(hosts, "*") {
		return nil
	}
	return &listenerv3.FilterChainMatch{ServerNames: hosts}
}

func (gatewayMode) routeNames(v proxyView) []string {
	var out []string
	for _, s := range v.servers() {
		if name := s.routeName(); name != "" && !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	return out
}

// serversOf returns the servers that use the route configuration that is called route.
func (v proxyView) serversOf(route string) []server {
	var servers []server
	for _, s := range v.servers() {
		if route != "" && s.routeName() == route {
			servers = append(servers, s)
		}
	}
	return servers
}

func (gatewayMode) routeConfiguration(v proxyView, name string) (*xds.Resource, error) {
	servers := v.serversOf(name)
	if len(servers) == 0 {
		return nil, nil
	}
	routes := sanitizeRoutes(v.gatewayRoutes(name, servers))
	if !v.p.UseVHDS {
		return v.routesResource(routes, nil)
	}
	taken := domainsOf(routes.GetVirtualHosts())
	routes.VirtualHosts, routes.Vhds = nil, vhds()
	return v.routesResource(routes, taken)
}

func (gatewayMode) hostPlan(proxyView, string) *hostPlan { return nil }

func (gatewayMode) nonServiceClusters(s *snapshot.Snapshot, p *Proxy) []*clusterv3.Cluster {
	v := newView(s, p)
	return slices.Concat(v.autoPassthroughClusters(), v.defaultClusters(), v.credentialClusters(), []*clusterv3.Cluster{blackHole(s)})
}
