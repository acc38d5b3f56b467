package snapshot

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
)

// ruleConflicts tells of DestinationRules of one namespace that say different things of one host.
func (c *checker) ruleConflicts() {
	for _, d := range c.w.destinationRules.all {
		if d.key.exportTo != localKey || len(d.From) < 2 {
			continue
		}
		var policy *config.Resource
		subsets := map[string]*config.Resource{}
		for _, r := range d.From {
			spec := r.Spec.(*networking.DestinationRule)
			if spec.GetTrafficPolicy() != nil {
				if policy != nil {
					c.find(config.RuleShadowed, r, "spec.trafficPolicy", "", fmt.Sprintf("for %s the policy of the older %s counts; this one has no effect", d.Host, at(policy)),
						"join the two into one DestinationRule")
				}
				policy = cmp.Or(policy, r)
			}
			for i, s := range spec.GetSubsets() {
				if first := subsets[s.GetName()]; first != nil && first != r {
					c.find(config.DuplicateSubset, r, fmt.Sprintf("spec.subsets[%d]", i), s.GetName(),
						fmt.Sprintf("for %s the subset of this name of the older %s counts", d.Host, at(first)), "rename or remove one of them")
					continue
				}
				subsets[s.GetName()] = r
			}
		}
	}
}

// at names a document with its place.
func at(r *config.Resource) string {
	if r.Origin.File == "" {
		return r.Key.String()
	}
	return fmt.Sprintf("%s, at %s,", r.Key, r.Origin)
}

// claim is one host of a server of a Gateway.
type claim struct {
	gateway Gateway
	server  int
	host    string
}

func (c claim) spec() *networking.Server { return c.gateway.Spec.GetServers()[c.server] }
func (c claim) path() string             { return fmt.Sprintf("spec.servers[%d]", c.server) }

// gatewayConflicts tells of servers that want the same port, or the same host of a port, of the same proxies.
func (c *checker) gatewayConflicts() {
	type door struct {
		port uint32
		bind string
	}
	doors := map[door][]claim{}
	var order []door
	for _, g := range c.s.gateways {
		for i, s := range g.Spec.GetServers() {
			d := door{s.GetPort().GetNumber(), s.GetBind()}
			if doors[d] == nil {
				order = append(order, d)
			}
			doors[d] = append(doors[d], claim{gateway: g, server: i})
		}
	}
	for _, d := range order {
		c.mixedPort(doors[d])
		c.sameHosts(doors[d])
	}
}

// use is what a port of a gateway is used for; servers of one port have to agree on it.
func use(s *networking.Server) string {
	protocol := strings.ToUpper(s.GetPort().GetProtocol())
	tls := s.GetTls()
	switch {
	case tls != nil && !(tls.GetHttpsRedirect() && protocol != "HTTPS"), protocol == "HTTPS", protocol == "TLS":
		return "TLS"
	case protocol == "TCP", protocol == "MONGO", protocol == "MYSQL", protocol == "REDIS":
		return "TCP"
	}
	return "HTTP"
}

func (c *checker) mixedPort(servers []claim) {
	for j, s := range servers {
		for _, first := range servers[:min(j, 16)] { // those of one use need only the first; there are three
			if use(first.spec()) == use(s.spec()) || !sameProxies(first.gateway, s.gateway) {
				continue
			}
			c.find(config.GatewayPortMixed, s.gateway.Resource, s.path()+".port.protocol", s.spec().GetPort().GetProtocol(),
				fmt.Sprintf("port %d is used for %s by %s, which is older: this server is not served", s.spec().GetPort().GetNumber(),
					use(first.spec()), at(first.gateway.Resource)), "use another port")
			break
		}
	}
}

// sameHosts tells of a host within TLS that two servers have, since the certificate of one of them only can be shown, and
// of one in plaintext that one redirects and the other serves.
func (c *checker) sameHosts(servers []claim) {
	byHost := map[string][]claim{}
	for _, s := range servers {
		if use(s.spec()) == "TCP" {
			continue
		}
		for _, h := range s.spec().GetHosts() {
			_, host, ok := strings.Cut(h, "/")
			if !ok {
				host = h
			}
			s.host = h
			for _, first := range byHost[host] {
				if use(first.spec()) == use(s.spec()) && sameProxies(first.gateway, s.gateway) && !agree(first, s) {
					c.find(config.GatewayOverlap, s.gateway.Resource, s.path()+".hosts", h,
						fmt.Sprintf("on port %d the server %s of %s has this host already: this one is not served for it", s.spec().GetPort().GetNumber(),
							first.path(), at(first.gateway.Resource)), "give the host to one of the two")
					break
				}
			}
			if len(byHost[host]) < 16 {
				byHost[host] = append(byHost[host], s)
			}
		}
	}
}

// agree says whether two servers of one host can both be served: plaintext ones are joined, unless one of them redirects.
func agree(a, b claim) bool {
	if use(a.spec()) == "HTTP" {
		return a.spec().GetTls().GetHttpsRedirect() == b.spec().GetTls().GetHttpsRedirect()
	}
	return proto.Equal(a.spec(), b.spec()) && a.gateway.Resource != b.gateway.Resource && proto.Equal(a.gateway.Spec, b.gateway.Spec)
}

// sameProxies says whether there can be a proxy that both Gateways are for: what one of them asks for includes what the
// other does.
func sameProxies(a, b Gateway) bool {
	return Selects(a.Spec.GetSelector(), b.Spec.GetSelector()) || Selects(b.Spec.GetSelector(), a.Spec.GetSelector())
}

// gatewayHosts tells of a VirtualService none of whose hosts a Gateway has that it is bound to.
func (c *checker) gatewayHosts(v *VirtualService, i int, g Gateway) {
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
			if (namespace == "*" || namespace == v.Namespace) && slices.ContainsFunc(v.Hosts, func(own string) bool { return overlapHosts(host, own) }) {
				return
			}
			hosts = append(hosts, h)
		}
	}
	if len(v.Hosts) == 0 {
		return // a delegate
	}
	slices.Sort(hosts)
	c.find(config.GatewayHostMissing, v.Resource, fmt.Sprintf("spec.gateways[%d]", i), v.Spec.GetGateways()[i],
		fmt.Sprintf("no server of the Gateway has a host of this VirtualService for the namespace %s: its routes are not served there", v.Namespace),
		"the Gateway's hosts are "+strings.Join(head(slices.Compact(hosts), 8), ", "))
}

func head(list []string, most int) []string {
	if len(list) > most {
		return append(slices.Clone(list[:most]), "…")
	}
	return list
}

// sharedAddresses tells of services of one address and port that connections cannot be told apart for.
func (c *checker) sharedAddresses() {
	type place struct {
		address string
		port    uint32
	}
	first := map[place]*registry.Service{}
	for _, svc := range c.w.services {
		for _, address := range svc.Addresses {
			for _, p := range svc.Ports {
				if p.Protocol.IsHTTP() || p.Protocol == registry.UDP || p.Protocol == registry.TLS || p.Protocol == registry.HTTPS {
					continue
				}
				key := place{address.String(), p.Number}
				other := first[key]
				if other == nil {
					first[key] = svc
				} else if r := c.s.Registry.Document(svc); r != nil && other.Hostname != svc.Hostname && !c.interchangeable(svc, other) {
					c.find(config.SharedAddress, r, addressField(r, address), key.address, fmt.Sprintf("%s has the address %s and the port %d too: connections go to one of the two",
						other.Hostname, key.address, key.port), "give one of them another address or port")
				}
			}
		}
	}
}

// interchangeable says whether it makes no difference which of two hosts of one document a connection is taken to be for: they
// are served in the same places, and the same rules are for both.
func (c *checker) interchangeable(a, b *registry.Service) bool {
	if a.Source != b.Source || c.w.destinationRules.lookup(a.Namespace, a.Hostname, a.Namespace) != c.w.destinationRules.lookup(b.Namespace, b.Hostname, b.Namespace) {
		return false
	}
	for _, v := range c.w.virtualServices.byGateway[MeshGateway] {
		covers := func(svc *registry.Service) bool {
			return slices.ContainsFunc(v.Hosts, func(host string) bool { return MatchHost(host, svc.Hostname) })
		}
		if covers(a) != covers(b) {
			return false
		}
	}
	return slices.EqualFunc(c.s.Registry.Endpoints(a), c.s.Registry.Endpoints(b), func(x, y registry.Endpoint) bool {
		return x.Address == y.Address && x.Port == y.Port && x.ServicePort == y.ServicePort
	})
}
