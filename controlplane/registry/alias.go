package registry

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// maxAliasSteps limits the length of a chain of aliases, about as DNS resolvers do. Longer chains are usually cycles.
const maxAliasSteps = 8

// nameAliases makes Kubernetes Services of type ExternalName aliases of the service that they name, also through a
// chain. The result depends only on the set of services.
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

// internalNames maps the external names to whether a service of another type has the name.
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

// resolveAlias returns the hostname of the service that a Service of type ExternalName is an alias of, or "" if it is
// outside the mesh. For a cycle it returns the hostname of an alias: such names do not resolve, as in DNS.
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

// replaceServices applies replace to all services. It copies the sources whose services change.
func replaceServices(sources []*source, by func(*Service) *Service) []*source {
	var out []*source
	for n, s := range sources {
		for i, service := range s.services {
			other := by(service)
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

// checkAliases returns the problems of Services of type ExternalName that do not lead to a service.
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
	switch of := r.byHost[service.AliasOf]; {
	case len(of) > 0:
		return findMissingPorts(doc, service, of)
	case service.AliasOf != "":
		return []config.Problem{withCode(config.UnknownHost, problemAt(doc, field, name,
			"the name is part of a cycle or a long chain of aliases, and does not lead to a service", "set the name of the service"))}
	case named:
		return []config.Problem{problemAt(doc, field, name, "this is a short name, which DNS does not resolve: it is treated as a host outside the mesh",
			"write "+full)}
	case strings.HasSuffix(name, ".svc."+r.opts.Domain):
		return []config.Problem{withCode(config.UnknownHost, problemAt(doc, field, name,
			"there is no such service: it is treated as a host outside the mesh", "add the Service, or correct the name"))}
	case len(service.Ports) == 0:
		return []config.Problem{problemAt(doc, "spec.ports", "", "a Service of type ExternalName without ports is not routed", "list the ports that callers use")}
	}
	return nil
}

// findMissingPorts returns problems for ports of an alias that its service does not have. The service may exist in
// several namespaces.
func findMissingPorts(doc *config.Resource, alias *Service, of []*Service) []config.Problem {
	var problems []config.Problem
	for i, p := range alias.Ports {
		if !slices.ContainsFunc(of, func(s *Service) bool { _, has := s.Port(p.Number); return has }) {
			problems = append(problems, withCode(config.UnknownPort, problemAt(doc, fmt.Sprintf("spec.ports[%d].port", i), fmt.Sprint(p.Number),
				fmt.Sprintf("%s has no such port, and an alias has only the ports of its service", of[0].Hostname), "remove it, or add it to the service")))
		}
	}
	return problems
}
