package snapshot

import (
	"slices"
	"strings"
	"sync"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
)

// claims are the names by which requests come for services and for the hosts of rules, and where the rules of sidecars
// lead: what else a service has a part in when it comes or goes. Whether proxies see any of it does not matter here.
type claims struct {
	once sync.Once
	// owner is the host that a name is of, in lower case; "" where several hosts have it.
	owner map[string]string
	// short are the names of services that only callers of their own namespaces use.
	short map[string]struct{}
	// wild are the patterns among the hosts of rules.
	wild []string
	// bytes are the rules that are for connections too.
	bytes []*VirtualService
	// leads are the rules that lead to a host.
	leads map[string][]*VirtualService
	// written are the names that rules mean hosts by.
	written map[string]struct{}
	// spread are the rules of which it is not known where they lead.
	spread []*VirtualService
}

func (w *world) claimed() *claims {
	w.claims.once.Do(func() { w.claims.read(w) })
	return &w.claims
}

func (c *claims) read(w *world) {
	c.owner, c.short, c.leads = map[string]string{}, map[string]struct{}{}, map[string][]*VirtualService{}
	c.written = map[string]struct{}{}
	for _, svc := range w.services {
		for name := range everywhere(svc) {
			c.claim(name, svc.Hostname)
		}
		for known := range svc.WithAliases() {
			if known.Kubernetes {
				c.short[strings.ToLower(known.Name)] = struct{}{}
			}
		}
	}
	for _, v := range w.virtualServices.byGateway[MeshGateway] {
		for _, host := range v.Hosts {
			c.claim(host, host)
			if strings.HasPrefix(host, "*") {
				c.wild = append(c.wild, host)
			}
		}
		if len(v.Spec.GetTcp())+len(v.Spec.GetTls()) > 0 {
			c.bytes = append(c.bytes, v)
		}
		c.follow(v, w.resolve)
	}
	for _, v := range w.virtualServices.all {
		c.note(v.Resource)
	}
	for _, r := range w.virtualServices.others.byKey {
		c.note(r)
	}
}

// note keeps the names in a document as it is written.
func (c *claims) note(r *config.Resource) {
	spec := r.Spec.(*networking.VirtualService)
	for _, host := range spec.GetHosts() {
		c.written[strings.TrimSuffix(host, ".")] = struct{}{}
	}
	for d := range destinations(spec) {
		c.written[strings.TrimSuffix(d.destination.GetHost(), ".")] = struct{}{}
	}
}

// means says whether rules mean a host by a name.
func (c *claims) means(name string) bool {
	_, written := c.written[name]
	return written
}

// meansAlias says whether rules mean a service by a name that it has of an alias.
func (c *claims) meansAlias(alias *registry.Service) bool {
	return c.means(alias.Hostname) || c.means(alias.Name) || slices.ContainsFunc(alias.Aliases, c.means)
}

// everywhere gives the names of a service that all callers know it by.
func everywhere(svc *registry.Service) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for known := range svc.WithAliases() {
			if !yield(known.Hostname) {
				return
			}
			for _, name := range known.Aliases {
				if !yield(name) {
					return
				}
			}
		}
		for _, at := range svc.Addresses {
			if !yield(at.String()) {
				return
			}
		}
	}
}

func (c *claims) claim(name, host string) {
	name = strings.ToLower(name)
	if owner, taken := c.owner[name]; taken && owner != host {
		host = ""
	}
	c.owner[name] = host
}

func (c *claims) follow(v *VirtualService, resolve resolver) {
	if slices.ContainsFunc(v.Spec.GetHttp(), func(r *networking.HTTPRoute) bool { return r.GetDelegate() != nil }) || len(v.from) > 0 {
		c.spread = append(c.spread, v)
		return
	}
	for d := range destinations(v.Spec) {
		host := resolve(d.destination.GetHost(), v.Namespace)
		if rules := c.leads[host]; len(rules) == 0 || rules[len(rules)-1] != v {
			c.leads[host] = append(rules, v)
		}
	}
}

// contested says whether anything but a service of this hostname wants a name of the service's.
func (c *claims) contested(svc *registry.Service) bool {
	for name := range everywhere(svc) {
		name = strings.ToLower(name)
		if owner, taken := c.owner[name]; taken && owner != svc.Hostname {
			return true
		}
		if _, taken := c.short[name]; taken {
			return true
		}
	}
	for known := range svc.WithAliases() {
		if _, taken := c.owner[strings.ToLower(known.Name)]; taken && known.Kubernetes {
			return true
		}
	}
	return false
}

// Contested says whether a service, present or past, goes by a name that another service or the host of a rule goes by
// too: which of them gets the requests for it depends on which there are.
func (s *Snapshot) Contested(svc *registry.Service) bool { return s.world.claimed().contested(svc) }

// LeadingTo are the rules for sidecars that may lead to a service, by any of its names, whoever sees them.
func (s *Snapshot) LeadingTo(svc *registry.Service) []*VirtualService {
	c := s.world.claimed()
	out := slices.Clone(c.spread)
	for known := range svc.WithAliases() {
		out = append(out, c.leads[known.Hostname]...)
	}
	return out
}

// Patterns are the hosts of rules for sidecars that are patterns and cover a host, whoever sees them.
func (s *Snapshot) Patterns(hostname string) []string {
	var out []string
	for _, pattern := range s.world.claimed().wild {
		if MatchHost(pattern, hostname) {
			out = append(out, pattern)
		}
	}
	return out
}

// AnyForBytes says whether there are rules for connections whose hosts overlap with one: of several rules for a host one is
// in force, and another when it goes.
func (s *Snapshot) AnyForBytes(host string) bool {
	return slices.ContainsFunc(s.world.claimed().bytes, func(v *VirtualService) bool {
		return slices.ContainsFunc(v.Hosts, func(h string) bool { return overlapHosts(h, host) })
	})
}
