package registry

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// maxAliasSteps bounds how many names lead on to the next, about as resolvers of DNS do: longer ways are circles mostly.
const maxAliasSteps = 8

// nameAliases has Kubernetes Services of type ExternalName, whose name is that of another service, be names of that one, also
// where one leads to the next. It depends on nothing but which services there are.
func nameAliases(sources []*source) []*source {
	external := map[string]*Service{}
	each(sources, func(s *Service) {
		if s.ExternalName != "" {
			external[s.Hostname] = s
		}
	})
	inside := internalNames(sources, external)
	sources = replaced(sources, func(s *Service) *Service {
		of := ""
		if s.ExternalName != "" {
			of = aliasOf(s, external, inside)
		}
		if of == s.AliasOf {
			return s
		}
		other := *s
		other.AliasOf = of
		return &other
	})
	aliases := map[string][]*Service{}
	each(sources, func(s *Service) {
		if s.AliasOf != "" {
			aliases[s.AliasOf] = append(aliases[s.AliasOf], s)
		}
	})
	for _, list := range aliases {
		slices.SortFunc(list, func(a, b *Service) int { return strings.Compare(a.Hostname, b.Hostname) })
	}
	return replaced(sources, func(s *Service) *Service {
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

// internalNames are those names that Services of type ExternalName lead to which another sort of service has.
func internalNames(sources []*source, external map[string]*Service) map[string]bool {
	inside := make(map[string]bool, len(external))
	for _, s := range external {
		inside[s.ExternalName] = false
	}
	if len(inside) == 0 {
		return inside
	}
	each(sources, func(s *Service) {
		if _, wanted := inside[s.Hostname]; wanted && s.ExternalName == "" {
			inside[s.Hostname] = true
		}
	})
	return inside
}

// aliasOf is the hostname of the service that a Service of type ExternalName is another name of; "" where it leads outside.
// Where it leads round in a circle, it is that of one that is an alias itself: such names lead nowhere, as in DNS.
func aliasOf(s *Service, external map[string]*Service, inside map[string]bool) string {
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

// replaced has copies in the place of sources of whose services there is another now.
func replaced(sources []*source, by func(*Service) *Service) []*source {
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

// aliasProblems says which of the Services of type ExternalName do not lead where their authors may think.
func (r *Registry) aliasProblems() []config.Problem {
	var problems []config.Problem
	for _, s := range r.sources {
		for _, service := range s.services {
			if service.ExternalName != "" {
				problems = append(problems, r.aliasProblem(s.resource, service)...)
			}
		}
	}
	return problems
}

func (r *Registry) aliasProblem(doc *config.Resource, service *Service) []config.Problem {
	const field = "spec.externalName"
	name := service.ExternalName
	full, named := r.aliases[name]
	switch of := r.byHost[service.AliasOf]; {
	case len(of) > 0:
		return deadPorts(doc, service, of)
	case service.AliasOf != "":
		return []config.Problem{coded(config.UnknownHost, problemAt(doc, field, name,
			"the name leads round in a circle, or on through too many others: it is no service's", "give the name of the service that is meant"))}
	case named:
		return []config.Problem{problemAt(doc, field, name, "this is a short name, which DNS does not know: it is called as a host outside of the mesh",
			"write "+full)}
	case strings.HasSuffix(name, ".svc."+r.opts.Domain):
		return []config.Problem{coded(config.UnknownHost, problemAt(doc, field, name,
			"there is no such service: it is called as a host outside of the mesh", "add the Service, or correct the name"))}
	case len(service.Ports) == 0:
		return []config.Problem{problemAt(doc, "spec.ports", "", "a Service of type ExternalName without ports is not routed", "list the ports that callers use")}
	}
	return nil
}

// deadPorts tells of ports of an alias that the service, which may be there for several namespaces, does not have.
func deadPorts(doc *config.Resource, alias *Service, of []*Service) []config.Problem {
	var problems []config.Problem
	for i, p := range alias.Ports {
		if !slices.ContainsFunc(of, func(s *Service) bool { _, has := s.Port(p.Number); return has }) {
			problems = append(problems, coded(config.UnknownPort, problemAt(doc, fmt.Sprintf("spec.ports[%d].port", i), fmt.Sprint(p.Number),
				fmt.Sprintf("%s has no such port, and the ports of an alias are those of its service", of[0].Hostname), "remove it, or give it to the service")))
		}
	}
	return problems
}
