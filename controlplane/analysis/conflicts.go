package analysis

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/internal/phrase"
)

// checkRuleConflicts reports DestinationRules of one namespace with conflicting settings for one host.
func (c *snapshotCheck) checkRuleConflicts() {
	for _, d := range c.s.DestinationRules() {
		if len(d.From) < 2 {
			continue
		}
		var policy *config.Resource
		subsets := map[string]*config.Resource{}
		for _, r := range d.From {
			spec := r.Spec.(*networking.DestinationRule)
			if spec.GetTrafficPolicy() != nil {
				if policy != nil {
					c.reportWarning(config.RuleShadowed, r, "spec.trafficPolicy", "", fmt.Sprintf("the traffic policy of %[2]s, which %[3]s, applies to %[1]s; this policy has no effect", d.Host, describeResource(policy), config.ExplainPrecedence(policy, r)),
						"merge the two documents into one DestinationRule")
				}
				policy = cmp.Or(policy, r)
			}
			for i, s := range spec.GetSubsets() {
				if first := subsets[s.GetName()]; first != nil && first != r {
					c.reportWarning(config.DuplicateSubset, r, fmt.Sprintf("spec.subsets[%d]", i), s.GetName(),
						fmt.Sprintf("%[2]s, which %[3]s, has a subset with this name for %[1]s, so this subset has no effect", d.Host, describeResource(first), config.ExplainPrecedence(first, r)), "rename or remove one of them")
					continue
				}
				subsets[s.GetName()] = r
			}
		}
	}
}

// describeResource returns the key of a document and, if known, its position.
func describeResource(r *config.Resource) string {
	if r.Origin.File == "" {
		return r.Key.String()
	}
	return fmt.Sprintf("%s (%s)", r.Key, r.Origin)
}

// serverHost is a host of a Gateway's server.
type serverHost struct {
	gateway snapshot.Gateway
	server  int
	host    string
}

func (c serverHost) spec() *networking.Server { return c.gateway.Spec.GetServers()[c.server] }
func (c serverHost) path() string             { return fmt.Sprintf("spec.servers[%d]", c.server) }

// checkGatewayConflicts reports servers for the same proxies with conflicting protocols on one port, or with the same
// host.
func (c *snapshotCheck) checkGatewayConflicts() {
	type listenPort struct {
		port uint32
		bind string
	}
	servers := map[listenPort][]serverHost{}
	var order []listenPort
	for _, g := range c.s.AllGateways() {
		for i, s := range g.Spec.GetServers() {
			d := listenPort{s.GetPort().GetNumber(), s.GetBind()}
			if servers[d] == nil {
				order = append(order, d)
			}
			servers[d] = append(servers[d], serverHost{gateway: g, server: i})
		}
	}
	for _, d := range order {
		c.checkMixedPort(servers[d])
		c.checkDuplicateHosts(servers[d])
		c.checkSharedCertificates(servers[d])
	}
}

// portUsage returns "TLS", "TCP" or "HTTP". All servers of one port must have the same usage.
func portUsage(s *networking.Server) string {
	protocol := strings.ToUpper(s.GetPort().GetProtocol())
	tls := s.GetTls()
	switch {
	case tls != nil && !config.RedirectsToHTTPS(s), protocol == "HTTPS", protocol == "TLS":
		return "TLS"
	case protocol == "TCP", protocol == "MONGO", protocol == "MYSQL", protocol == "REDIS":
		return "TCP"
	}
	return "HTTP"
}

// explainServerPrecedence returns the reason why the server first takes precedence over second.
func explainServerPrecedence(first, second serverHost) string {
	if first.gateway.Resource == second.gateway.Resource {
		return "lists a server with another protocol first"
	}
	return config.ExplainPrecedence(first.gateway.Resource, second.gateway.Resource)
}

func (c *snapshotCheck) checkMixedPort(servers []serverHost) {
	for j, s := range servers {
		for _, first := range servers[:min(j, 16)] { // the first server of each of the three usages is sufficient
			if portUsage(first.spec()) == portUsage(s.spec()) || !mayShareProxies(first.gateway, s.gateway) {
				continue
			}
			c.reportWarning(config.GatewayPortMixed, s.gateway.Resource, s.path()+".port.protocol", s.spec().GetPort().GetProtocol(),
				fmt.Sprintf("%s, which %s, uses port %d for %s, so the gateway does not serve this server", describeResource(first.gateway.Resource),
					explainServerPrecedence(first, s), s.spec().GetPort().GetNumber(), portUsage(first.spec())), "use another port for one of the two servers")
			break
		}
	}
}

// checkDuplicateHosts reports a host that two TLS servers have, because a gateway can present only one certificate for
// the host. It also reports a plaintext host that one server redirects and another one serves.
func (c *snapshotCheck) checkDuplicateHosts(servers []serverHost) {
	byHost := map[string][]serverHost{}
	for _, s := range servers {
		if portUsage(s.spec()) == "TCP" {
			continue
		}
		for _, h := range s.spec().GetHosts() {
			_, host, ok := strings.Cut(h, "/")
			if !ok {
				host = h
			}
			s.host = h
			for _, first := range byHost[host] {
				if portUsage(first.spec()) == portUsage(s.spec()) && mayShareProxies(first.gateway, s.gateway) && !canCoexist(first, s) {
					c.reportWarning(config.GatewayOverlap, s.gateway.Resource, s.path()+".hosts", h,
						fmt.Sprintf("the server %[2]s of %[3]s already has this host on port %[1]d, so the gateway does not serve the host here", s.spec().GetPort().GetNumber(),
							first.path(), describeResource(first.gateway.Resource)), "remove the host from one of the two")
					break
				}
			}
			if len(byHost[host]) < 16 {
				byHost[host] = append(byHost[host], s)
			}
		}
	}
}

// canCoexist reports whether a gateway can serve two servers with the same host. Plaintext servers are merged, unless
// only one of them redirects. TLS servers must be identical copies in identical Gateways.
func canCoexist(a, b serverHost) bool {
	if portUsage(a.spec()) == "HTTP" {
		return config.RedirectsToHTTPS(a.spec()) == config.RedirectsToHTTPS(b.spec())
	}
	return proto.Equal(a.spec(), b.spec()) && a.gateway.Resource != b.gateway.Resource && proto.Equal(a.gateway.Spec, b.gateway.Spec)
}

// mayShareProxies reports whether both Gateways may select the same proxy: one selector contains all labels of the
// other.
func mayShareProxies(a, b snapshot.Gateway) bool {
	return snapshot.Selects(a.Spec.GetSelector(), b.Spec.GetSelector()) || snapshot.Selects(b.Spec.GetSelector(), a.Spec.GetSelector())
}

// checkGatewayHosts reports a VirtualService that has no host in common with its Gateway g. i is the index of g in
// spec.gateways.
func (c *snapshotCheck) checkGatewayHosts(v *snapshot.VirtualService, i int, g snapshot.Gateway) {
	var hosts []string
	for _, s := range g.Spec.GetServers() {
		for _, h := range s.GetHosts() {
			namespace, host, ok := strings.Cut(h, "/")
			if !ok {
				namespace, host = "*", h
			}
			if namespace == "." {
				namespace = g.Namespace
			}
			if (namespace == "*" || namespace == v.Namespace) && slices.ContainsFunc(v.Hosts, func(own string) bool { return snapshot.HostsOverlap(host, own) }) {
				return
			}
			hosts = append(hosts, h)
		}
	}
	if len(v.Hosts) == 0 {
		return // a delegate
	}
	slices.Sort(hosts)
	c.reportWarning(config.GatewayHostMissing, v.Resource, fmt.Sprintf("spec.gateways[%d]", i), v.Spec.GetGateways()[i],
		fmt.Sprintf("no server of the Gateway has a host of this VirtualService for the namespace %s: the Gateway does not serve its routes", v.Namespace),
		"use a host of the Gateway, or add the host to a server of the Gateway; the Gateway's hosts are "+phrase.ListFirst(slices.Compact(hosts), 8))
}

// checkSharedAddresses reports services with the same address and port. Proxies cannot distinguish connections to them.
func (c *snapshotCheck) checkSharedAddresses() {
	type addressPort struct {
		address string
		port    uint32
	}
	first := map[addressPort]*registry.Service{}
	for _, svc := range c.s.Registry.Services {
		for _, address := range svc.Addresses {
			for _, p := range svc.Ports {
				if p.Protocol.IsHTTP() || p.Protocol == registry.UDP || p.Protocol == registry.TLS || p.Protocol == registry.HTTPS {
					continue
				}
				key := addressPort{address.String(), p.Number}
				other := first[key]
				if other == nil {
					first[key] = svc
				} else if r := c.s.Registry.Document(svc); r != nil && other.Hostname != svc.Hostname && !c.interchangeable(svc, other) {
					c.reportWarning(config.SharedAddress, r, addressField(r, address), key.address, fmt.Sprintf("%s has the same address %s and port %d: proxies treat all connections to it as connections to one of the two services",
						other.Hostname, key.address, key.port), "change the address or port of one of them")
				}
			}
		}
	}
}

// interchangeable reports whether a and b are hosts of one document with the same endpoints and rules. Proxies then
// need not distinguish connections to them.
func (c *snapshotCheck) interchangeable(a, b *registry.Service) bool {
	if a.Source != b.Source || c.s.DestinationRule(a.Namespace, a) != c.s.DestinationRule(b.Namespace, b) {
		return false
	}
	for _, v := range c.s.VirtualServices() {
		covers := func(svc *registry.Service) bool {
			return slices.ContainsFunc(v.Hosts, func(host string) bool { return snapshot.MatchHost(host, svc.Hostname) })
		}
		if v.IsForGateway(snapshot.MeshGateway) && covers(a) != covers(b) {
			return false
		}
	}
	return slices.EqualFunc(c.s.Registry.Endpoints(a), c.s.Registry.Endpoints(b), func(x, y registry.Endpoint) bool {
		return x.Address == y.Address && x.Port == y.Port && x.ServicePort == y.ServicePort
	})
}
