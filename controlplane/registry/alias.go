package registry

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// maxAliasSteps limits the length of a chain of aliases, as DNS resolvers do. Longer chains are usually cycles.
const maxAliasSteps = 8

// nameAliases finds Kubernetes Services of type ExternalName whose external name refers to a service of the mesh,
// directly or through other aliases. It replaces such a Service by an alias of that service. The result depends only on
// the set of services.
func nameAliases(sources []*source) []*source {
	external := map[string]*Service{}
	forEachService(sources, func(s *Service) {
		if s.ExternalName != "" {
			external[s.Hostname] = s
		}
	})
	inside := internalNames(sources, external)
	sources = replaceServices(sources, func(s *Service) *Service {
		of := ""
		if s.ExternalName != "" {
			of = resolveAlias(s, external, inside)
		}
		if of == s.AliasOf {
			return s
		}
		other := *s
		other.AliasOf = of
		return &other
	})
	aliases := map[string][]*Service{}
	forEachService(sources, func(s *Service) {
		if s.AliasOf != "" {
			aliases[s.AliasOf] = append(aliases[s.AliasOf], s)
		}
	})
	for _, list := range aliases {
		slices.SortFunc(list, func(a, b *Service) int { return strings.Compare(a.Hostname, b.Hostname) })
	}
	return replaceServices(sources, func(s *Service) *Service {
		var own []*Service
		if s.AliasOf == "" {
			own = aliases[s.Hostname]
		}
		if slices.Equal(own, s.AliasServices) {
			return s
		}
		other := *s
		other.AliasServices = own
		return &other
	})
}

// internalNames maps each external name to true if a service of the mesh has it as hostname. Services of type
// ExternalName do not count.
func internalNames(sources []*source, external map[string]*Service) map[string]bool {
	inside := make(map[string]bool, len(external))
	for _, s := range external {
		inside[s.ExternalName] = false
	}
	if len(inside) == 0 {
		return inside
	}
	forEachService(sources, func(s *Service) {
		if _, wanted := inside[s.Hostname]; wanted && s.ExternalName == "" {
			inside[s.Hostname] = true
		}
	})
	return inside
}

// resolveAlias follows the external name of a Service and returns the hostname of the service to which it refers. It
// returns "" if the name is outside the mesh. If a chain of aliases leads outside the mesh, it returns the hostname of
// the last Service in the chain. In a cycle it returns the external name of s, which does not resolve to a service, as
// in DNS.
func resolveAlias(s *Service, external map[string]*Service, inside map[string]bool) string {
	at := s
	for range maxAliasSteps {
		if inside[at.ExternalName] {
			return at.ExternalName
		}
		next := external[at.ExternalName]
		switch {
		case next == nil && at == s:
			return ""
		case next == nil:
			return at.Hostname
		}
		at = next
	}
	return s.ExternalName
}

// replaceServices replaces each service by the result of replace. It copies the sources whose services change, because
// sources are immutable.
func replaceServices(sources []*source, replace func(*Service) *Service) []*source {
	var out []*source
	for n, s := range sources {
		for i, service := range s.services {
			other := replace(service)
			if other == service {
				continue
			}
			if out == nil {
				out = slices.Clone(sources)
			}
			if out[n] == s {
				out[n] = s.copy()
			}
			out[n].services[i] = other
		}
	}
	if out == nil {
		return sources
	}
	return out
}

func (s *source) copy() *source {
	other := *s
	other.services = slices.Clone(s.services)
	return &other
}

// checkAliases returns findings about Services of type ExternalName. A finding reports that the external name does not
// belong to a service, that a port is missing there, or that the endpoint is refused.
func (r *Registry) checkAliases() []config.Problem {
	var problems []config.Problem
	for _, s := range r.sources {
		for _, service := range s.services {
			if service.ExternalName != "" {
				problems = append(problems, r.checkAlias(s.resource, service)...)
			}
		}
	}
	return problems
}

func (r *Registry) checkAlias(doc *config.Resource, service *Service) []config.Problem {
	const field = "spec.externalName"
	name := service.ExternalName
	full, named := r.aliases[name]
	if service.AliasOf == "" {
		var ports []uint32
		for _, p := range service.Ports {
			ports = append(ports, p.Number)
		}
		if p, refused := r.opts.checkEndpoint(doc, field, name, ports...); refused {
			return []config.Problem{p}
		}
	}
	switch of := r.byHost[service.AliasOf]; {
	case len(of) > 0:
		return findMissingPorts(doc, service, of)
	case service.AliasOf != "":
		return []config.Problem{withCode(config.UnknownHost, problemAt(doc, field, name,
			"the name is part of a cycle or of a long chain of aliases, so it does not resolve to a service", "set the name of the service itself"))}
	case named:
		return []config.Problem{problemAt(doc, field, name, "this is a short name, which DNS does not resolve, so proxies treat it as a host outside the mesh",
			"write "+full)}
	case strings.HasSuffix(name, ".svc."+r.opts.Domain):
		return []config.Problem{withCode(config.UnknownHost, problemAt(doc, field, name,
			"no service has this name, so proxies treat it as a host outside the mesh", "add the Service, or correct the name"))}
	case len(service.Ports) == 0:
		return []config.Problem{problemAt(doc, "spec.ports", "", "proxies do not route requests to a Service of type ExternalName without ports", "list the ports to which clients connect")}
	}
	return nil
}

// findMissingPorts returns findings about ports of an alias that none of the target services has. Several namespaces
// may have services with the hostname of the target.
func findMissingPorts(doc *config.Resource, alias *Service, of []*Service) []config.Problem {
	var problems []config.Problem
	for i, p := range alias.Ports {
		if !slices.ContainsFunc(of, func(s *Service) bool { _, has := s.Port(p.Number); return has }) {
			problems = append(problems, withCode(config.UnknownPort, problemAt(doc, fmt.Sprintf("spec.ports[%d].port", i), fmt.Sprint(p.Number),
				fmt.Sprintf("%s has no such port, so requests to this port of the alias fail", of[0].Hostname), "remove the port, or add it to the service")))
		}
	}
	return problems
}
