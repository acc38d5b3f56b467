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

	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
)

// gateway is the way of a router: it listens on the ports of the Gateways that select it.
type gateway struct{}

// server is one server of a Gateway as this router serves it.
type server struct {
	gw   snapshot.Gateway
	spec *networking.Server
	// port is where it listens, behind the port that the Gateway names.
	port uint32
	// nth is how many servers before it in its Gateway have its port and its name.
	nth int
}

// name is what the server's routes go by beside its port.
func (s server) name() string { return cmp.Or(s.spec.GetName(), s.spec.GetPort().GetName()) }

// hosts are the server's hosts without the namespaces that may bind to them.
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

// plainHTTP: requests arrive as they are. All such servers of a port share its routes.
func (s server) plainHTTP() bool {
	switch s.protocol() {
	case "HTTP", "HTTP2", "GRPC", "GRPC-WEB":
		return !s.terminatesTLS()
	}
	return false
}

func (s server) terminatesTLS() bool {
	tls := s.spec.GetTls()
	if tls == nil || tls.GetHttpsRedirect() && s.protocol() != "HTTPS" {
		return false
	}
	switch tls.GetMode() {
	case networking.ServerTLSSettings_PASSTHROUGH, networking.ServerTLSSettings_AUTO_PASSTHROUGH:
		return false
	}
	return true
}

// httpsHTTP: requests arrive within TLS that ends here.
func (s server) httpsHTTP() bool {
	switch s.protocol() {
	case "HTTPS", "HTTP", "HTTP2", "GRPC":
		return s.terminatesTLS()
	}
	return false
}

// route is the name of the server's route configuration; empty for a server of connections rather than requests. No two
// servers within TLS share one: what one of them asks of its callers would not hold for the other's. In the server's name
// dots are written otherwise, so that no Gateway's name can be taken for a part of it.
func (s server) route() string {
	switch {
	case s.plainHTTP():
		return fmt.Sprintf("http.%d", s.port)
	case s.httpsHTTP():
		name := fmt.Sprintf("https.%d.%s.%s.%s", s.spec.GetPort().GetNumber(), dotless.Replace(s.name()), s.gw.Name, s.gw.Namespace)
		if s.nth > 0 {
			name += fmt.Sprintf("#%d", s.nth+1)
		}
		return name
	}
	return ""
}

var dotless = strings.NewReplacer(".", "%2E", "%", "%25")

// servers are all servers of the router, by the port they listen on; those of one port in the order of their Gateways'
// age.
func (v view) servers() []server {
	var out []server
	for _, gw := range v.s.Gateways(v.p.Labels) {
		seen := map[string]int{}
		for _, spec := range gw.Spec.GetServers() {
			s := server{gw: gw, spec: spec, port: v.listenPort(spec.GetPort())}
			key := fmt.Sprint(spec.GetPort().GetNumber(), " ", s.name())
			s.nth = seen[key]
			seen[key]++
			out = append(out, s)
		}
	}
	slices.SortStableFunc(out, func(a, b server) int { return cmp.Compare(a.port, b.port) })
	return out
}

// listenPort is where what arrives at a server's port is sent to: where the Gateway says, or else the router's own Service;
// the port itself when neither does.
func (v view) listenPort(p *networking.Port) uint32 {
	number := p.GetNumber()
	//lint:ignore SA1019 the field is deprecated, and documents have it
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

// listenAddress is where a server listens: what the mesh publishes the port as, what the Gateway says, or the router's
// own address; all addresses where the router has its network for itself.
func (v view) listenAddress(s server) netip.AddrPort {
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

func (gateway) listeners(v view) []*listenerv3.Listener {
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

// otherFamily is where the servers of all addresses listen too, on a router that has addresses of both families; invalid
// where somebody says which address it is to be.
func (v view) otherFamily(at netip.AddrPort, servers []server) netip.AddrPort {
	said := slices.ContainsFunc(servers, func(s server) bool { return s.spec.GetBind() != "" })
	if _, published := v.p.Publish[uint32(at.Port())]; said || published || !at.Addr().IsUnspecified() || !v.p.IPv4 || !v.p.IPv6 {
		return netip.AddrPort{}
	}
	if at.Addr().Is4() {
		return netip.AddrPortFrom(netip.IPv6Unspecified(), at.Port())
	}
	return netip.AddrPortFrom(netip.IPv4Unspecified(), at.Port())
}

// gatewayListener joins the servers of one address; nil when none of them can be served.
func (v view) gatewayListener(at netip.AddrPort, servers []server) *listenerv3.Listener {
	l := listener(at, corev3.TrafficDirection_OUTBOUND)
	tls := !servers[0].plainHTTP() && servers[0].protocol() != "TCP"
	seen := domains{}
	for _, s := range servers {
		// The first server of a port says whether it is one for TLS.
		if tls == (s.plainHTTP() || s.protocol() == "TCP") {
			continue
		}
		for _, chain := range v.serverChains(at, s) {
			if !seen.takeChain(chain) {
				continue
			}
			l.FilterChains = append(l.FilterChains, chain)
		}
	}
	if len(l.FilterChains) == 0 {
		return nil
	}
	if v.topology().GetProxyProtocol() != nil {
		l.ListenerFilters = append(l.ListenerFilters, listenerFilter("envoy.filters.listener.proxy_protocol", &proxyprotocolv3.ProxyProtocol{}))
	}
	if tls {
		l.ListenerFilters = append(l.ListenerFilters, tlsInspector())
	}
	return l
}

// takeChain says whether no chain before it matches the same: Envoy refuses a listener with two such. Names that an
// older server has are taken out of the chain.
func (d domains) takeChain(chain *listenerv3.FilterChain) bool {
	match := chain.GetFilterChainMatch()
	if len(match.GetServerNames()) == 0 {
		return len(d.take("*")) > 0
	}
	match.ServerNames = d.take(match.GetServerNames()...)
	return len(match.ServerNames) > 0
}

// serverChains are the filter chains of one server.
func (v view) serverChains(at netip.AddrPort, s server) []*listenerv3.FilterChain {
	switch {
	case s.plainHTTP():
		return []*listenerv3.FilterChain{{Name: s.route(), Filters: v.gatewayHCM(at, s)}}
	case s.httpsHTTP():
		socket := v.gatewayTLS(s)
		if socket == nil {
			return nil
		}
		return []*listenerv3.FilterChain{{
			Name: s.route(), FilterChainMatch: sniMatch(s.hosts()), TransportSocket: socket, Filters: v.gatewayHCM(at, s),
		}}
	}
	return v.connectionChains(s)
}

func (v view) gatewayHCM(at netip.AddrPort, s server) []*listenerv3.Filter {
	t := s.traffic()
	t.protocol = registry.HTTP
	t.byName = slices.ContainsFunc(v.scope.Services, func(svc *registry.Service) bool { return svc.Resolution == registry.Passthrough })
	return []*listenerv3.Filter{v.hcmFilter(hcm{traffic: t, statPrefix: "outbound_" + listenerName(at), rds: s.route()})}
}

// traffic is what passes the server's chains.
func (s server) traffic() traffic {
	return traffic{side: edgeSide, port: s.port, protocol: registry.TCP}
}

// sniMatch matches what the caller names in the TLS handshake; nil for any name or none.
func sniMatch(hosts []string) *listenerv3.FilterChainMatch {
	if len(hosts) == 0 || slices.Contains(hosts, "*") {
		return nil
	}
	return &listenerv3.FilterChainMatch{ServerNames: hosts}
}

func (gateway) routeNames(v view) []string {
	var out []string
	for _, s := range v.servers() {
		if name := s.route(); name != "" && !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	return out
}

// serversOf are those whose requests follow a route configuration.
func (v view) serversOf(route string) []server {
	var servers []server
	for _, s := range v.servers() {
		if route != "" && s.route() == route {
			servers = append(servers, s)
		}
	}
	return servers
}

func (gateway) route(v view, name string) (*xds.Resource, error) {
	servers := v.serversOf(name)
	if len(servers) == 0 {
		return nil, nil
	}
	routes := acceptable(v.gatewayRoutes(name, servers))
	if !v.p.HostsApart {
		return v.routesResource(routes, nil)
	}
	taken := domainsOf(routes.GetVirtualHosts())
	routes.VirtualHosts, routes.Vhds = nil, vhds()
	return v.routesResource(routes, taken)
}

func (gateway) hostPlan(view, string) *hostPlan { return nil }

func (gateway) ownClusters(s *snapshot.Snapshot, p *Proxy) []*clusterv3.Cluster {
	v := newView(s, p)
	return append(append(v.autoClusters(), v.defaultClusters()...), blackHole(s))
}
