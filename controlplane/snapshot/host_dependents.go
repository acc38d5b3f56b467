package snapshot

import (
	"slices"
	"strings"
	"sync"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
)

// hostDependents is an index of the rules and names that depend on a service, regardless of visibility. It contains the
// names by which requests address services, the hosts of rules, and the destinations of sidecar rules. It is used when
// a service is added or removed.
type hostDependents struct {
	once sync.Once
	// owner maps each lower-case name to the host that has it. The value is "" if several hosts have the name.
	owner map[string]string
	// shortNames contains the service names that only clients in the service's namespace can use.
	shortNames map[string]struct{}
	// patterns contains the rule hosts with a wildcard.
	patterns []string
	// tcpRules contains the rules with TCP or TLS routes.
	tcpRules []*VirtualService
	// rulesByHost maps a host to the rules that route to it.
	rulesByHost map[string][]*VirtualService
	// writtenNames contains the host names as they are written in documents.
	writtenNames map[string]struct{}
	// delegatingRules contains the rules with delegates. The index does not contain the destinations of the delegates.
	delegatingRules []*VirtualService
}

func (w *meshIndex) hostDependents() *hostDependents {
	w.dependents.once.Do(func() { w.dependents.build(w) })
	return &w.dependents
}

func (c *hostDependents) build(w *meshIndex) {
	c.owner, c.shortNames, c.rulesByHost = map[string]string{}, map[string]struct{}{}, map[string][]*VirtualService{}
	c.writtenNames = map[string]struct{}{}
	for _, svc := range w.services {
		for name := range globalNames(svc) {
			c.addOwner(name, svc.Hostname)
		}
		for known := range svc.WithAliases() {
			if known.Kubernetes {
				c.shortNames[strings.ToLower(known.Name)] = struct{}{}
			}
		}
	}
	for _, v := range w.virtualServices.byGateway[MeshGateway] {
		for _, host := range v.Hosts {
			c.addOwner(host, host)
			if strings.HasPrefix(host, "*") {
				c.patterns = append(c.patterns, host)
			}
		}
		if len(v.Spec.GetTcp())+len(v.Spec.GetTls()) > 0 {
			c.tcpRules = append(c.tcpRules, v)
		}
		c.addRoutes(v, w.resolve)
	}
	for _, v := range w.virtualServices.all {
		c.addWrittenNames(v.Resource)
	}
	for _, r := range w.virtualServices.delegates.byKey {
		c.addWrittenNames(r)
	}
}

// addWrittenNames adds the host names that a VirtualService contains, as they are written there.
func (c *hostDependents) addWrittenNames(r *config.Resource) {
	spec := r.Spec.(*networking.VirtualService)
	for _, host := range spec.GetHosts() {
		c.writtenNames[strings.TrimSuffix(host, ".")] = struct{}{}
	}
	for d := range Destinations(spec) {
		c.writtenNames[strings.TrimSuffix(d.Destination.GetHost(), ".")] = struct{}{}
	}
}

// isWritten reports whether a VirtualService contains name.
func (c *hostDependents) isWritten(name string) bool {
	_, written := c.writtenNames[name]
	return written
}

// isAliasWritten reports whether a VirtualService contains one of the names of an alias.
func (c *hostDependents) isAliasWritten(alias *registry.Service) bool {
	return c.isWritten(alias.Hostname) || c.isWritten(alias.Name) || slices.ContainsFunc(alias.Aliases, c.isWritten)
}

// globalNames returns the names and addresses of a service that callers in all namespaces can use.
func globalNames(svc *registry.Service) func(yield func(string) bool) {
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

func (c *hostDependents) addOwner(name, host string) {
	name = strings.ToLower(name)
	if owner, taken := c.owner[name]; taken && owner != host {
		host = ""
	}
	c.owner[name] = host
}

func (c *hostDependents) addRoutes(v *VirtualService, resolve resolver) {
	if slices.ContainsFunc(v.Spec.GetHttp(), func(r *networking.HTTPRoute) bool { return r.GetDelegate() != nil }) || len(v.from) > 0 {
		c.delegatingRules = append(c.delegatingRules, v)
		return
	}
	for d := range Destinations(v.Spec) {
		host := resolve(d.Destination.GetHost(), v.Namespace)
		if rules := c.rulesByHost[host]; len(rules) == 0 || rules[len(rules)-1] != v {
			c.rulesByHost[host] = append(rules, v)
		}
	}
}

// hasNameConflict reports whether another host has one of the names of the service.
func (c *hostDependents) hasNameConflict(svc *registry.Service) bool {
	for name := range globalNames(svc) {
		name = strings.ToLower(name)
		if owner, taken := c.owner[name]; taken && owner != svc.Hostname {
			return true
		}
		if _, taken := c.shortNames[name]; taken {
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

// HasNameConflict reports whether a service, which may have been removed, shares a name with another service or a
// rule's host. If so, adding or removing it changes which of them receives the requests.
func (s *Snapshot) HasNameConflict(svc *registry.Service) bool {
	return s.index.hostDependents().hasNameConflict(svc)
}

// RulesRoutingTo returns the sidecar rules that may route to a service or one of its aliases, regardless of visibility.
// It includes all rules with delegates, because the index does not contain the destinations of delegates.
func (s *Snapshot) RulesRoutingTo(svc *registry.Service) []*VirtualService {
	c := s.index.hostDependents()
	out := slices.Clone(c.delegatingRules)
	for known := range svc.WithAliases() {
		out = append(out, c.rulesByHost[known.Hostname]...)
	}
	return out
}

// HostPatterns returns the wildcard hosts of sidecar rules that match a host, regardless of visibility.
func (s *Snapshot) HostPatterns(hostname string) []string {
	var out []string
	for _, pattern := range s.index.hostDependents().patterns {
		if MatchHost(pattern, hostname) {
			out = append(out, pattern)
		}
	}
	return out
}

// HasTCPRules reports whether rules with TCP or TLS routes have a host that overlaps with host. It also considers rules
// that another rule currently hides: if that rule is removed, they take effect.
func (s *Snapshot) HasTCPRules(host string) bool {
	return slices.ContainsFunc(s.index.hostDependents().tcpRules, func(v *VirtualService) bool {
		return slices.ContainsFunc(v.Hosts, func(h string) bool { return HostsOverlap(h, host) })
	})
}
