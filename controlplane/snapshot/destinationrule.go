package snapshot

import (
	"maps"
	"slices"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
)

// DestinationRule is the merged content of all DestinationRules of one namespace for one host. It is immutable.
type DestinationRule struct {
	Host      string
	Namespace string
	// From contains the merged documents, oldest first.
	From []*config.Resource
	// Subsets are in document order. If a name occurs twice, the subset of the oldest document is used.
	Subsets []*networking.Subset

	policy   *networking.TrafficPolicy
	exportTo []string
	key      ruleKey
	traits   ruleTraits
}

// Traffic is the policy of one port of a host or subset. Nil fields have default values.
type Traffic struct {
	LoadBalancer     *networking.LoadBalancerSettings
	ConnectionPool   *networking.ConnectionPoolSettings
	OutlierDetection *networking.OutlierDetection
	TLS              *networking.ClientTLSSettings
	// These settings apply to all ports.
	ProxyProtocol *networking.TrafficPolicy_ProxyProtocol
	Tunnel        *networking.TrafficPolicy_TunnelSettings
	RetryBudget   *networking.TrafficPolicy_RetryBudget
}

// DocumentTraffic returns the policy that one document specifies for a port of a subset. An empty subset stands for the
// host.
func DocumentTraffic(spec *networking.DestinationRule, subset string, port uint32) Traffic {
	d := DestinationRule{policy: spec.GetTrafficPolicy(), Subsets: spec.GetSubsets()}
	return d.Traffic(subset, port)
}

// Subset returns the subset that is called name, or nil if there is none. d may be nil.
func (d *DestinationRule) Subset(name string) *networking.Subset {
	if d == nil {
		return nil
	}
	for _, s := range d.Subsets {
		if s.GetName() == name {
			return s
		}
	}
	return nil
}

// Traffic returns the policy of a port of a subset. An empty subset stands for the host. d may be nil.
func (d *DestinationRule) Traffic(subset string, port uint32) Traffic {
	var t Traffic
	if d == nil {
		return t
	}
	t.override(d.policy, port)
	if s := d.Subset(subset); s != nil {
		t.override(s.GetTrafficPolicy(), port)
	}
	return t
}

// override applies a more specific policy as Istio does: a set field replaces the whole field. Port-level settings do
// not inherit from the policy that contains them.
func (t *Traffic) override(p *networking.TrafficPolicy, port uint32) {
	if p == nil {
		return
	}
	if p.GetLoadBalancer() != nil {
		t.LoadBalancer = p.GetLoadBalancer()
	}
	if p.GetConnectionPool() != nil {
		t.ConnectionPool = p.GetConnectionPool()
	}
	if p.GetOutlierDetection() != nil {
		t.OutlierDetection = p.GetOutlierDetection()
	}
	if p.GetTls() != nil {
		t.TLS = p.GetTls()
	}
	if p.GetProxyProtocol() != nil {
		t.ProxyProtocol = p.GetProxyProtocol()
	}
	if p.GetTunnel() != nil {
		t.Tunnel = p.GetTunnel()
	}
	if p.GetRetryBudget() != nil {
		t.RetryBudget = p.GetRetryBudget()
	}
	for _, ps := range p.GetPortLevelSettings() {
		if ps.GetPort().GetNumber() == port {
			t.LoadBalancer, t.ConnectionPool = ps.GetLoadBalancer(), ps.GetConnectionPool()
			t.OutlierDetection, t.TLS = ps.GetOutlierDetection(), ps.GetTls()
			return
		}
	}
}

// destinationRules contains all DestinationRules.
type destinationRules struct {
	root        string
	byNamespace map[string]*namespaceRules
	all         []*DestinationRule
	traits      ruleTraits
	// subsets maps hosts to the subset names of all rules. A host is a key both as it is written in documents and as
	// the full name.
	subsets hostTable[[]string]
}

// inNamespace returns the rules of a namespace. The result is never nil. r may be nil.
func (r *destinationRules) inNamespace(namespace string) *namespaceRules {
	if r != nil {
		if n := r.byNamespace[namespace]; n != nil {
			return n
		}
	}
	return &noRules
}

// newDestinationRules indexes DestinationRules, which are sorted by namespace. prev may be nil. sameNames means that
// host names in documents resolve to the same services as for prev.
func newDestinationRules(prev *destinationRules, resources []*config.Resource, resolve resolver, root string, defaultExportTo []string, sameNames bool) *destinationRules {
	index := &destinationRules{root: root, byNamespace: map[string]*namespaceRules{}}
	sameSubsets := true
	for len(resources) > 0 {
		namespace, n := resources[0].Namespace, 1
		for n < len(resources) && resources[n].Namespace == namespace {
			n++
		}
		old := prev.inNamespace(namespace)
		rules := old
		if !sameNames || !slices.Equal(old.from, resources[:n]) {
			rules = newNamespaceRules(old, resources[:n], resolve, defaultExportTo, sameNames)
			sameSubsets = sameSubsets && old != &noRules && maps.EqualFunc(rules.subsets, old.subsets, slices.Equal)
		}
		resources = resources[n:]
		index.byNamespace[namespace] = rules
		index.all = append(index.all, rules.all...)
		index.traits.add(rules.traits)
	}
	if sameSubsets && prev != nil && len(prev.byNamespace) == len(index.byNamespace) {
		index.subsets = prev.subsets
	} else {
		index.subsets = newHostTable(index.subsetNames())
	}
	return index
}

func (r *destinationRules) subsetNames() map[string][]string {
	byHost := map[string][]string{}
	for _, namespace := range slices.Sorted(maps.Keys(r.byNamespace)) {
		for host, names := range r.byNamespace[namespace].subsets {
			byHost[host] = append(byHost[host], names...)
		}
	}
	return byHost
}

// HidesRule reports whether a DestinationRule of the namespace for host hides another one for a broader pattern.
// Clients to which the specific rule is not exported do not use the broader rule either.
func (s *Snapshot) HidesRule(namespace, host string) bool {
	return slices.ContainsFunc(s.index.destinationRules.inNamespace(namespace).exported.wild, func(pattern string) bool {
		return pattern != host && MatchHost(pattern, host)
	})
}

// SubsetNames returns the subset names that DestinationRules define for a service, even if the rules are not visible to
// a client. The service may have been removed. The result may contain duplicates.
func (s *Snapshot) SubsetNames(svc *registry.Service) []string {
	table := s.index.destinationRules.subsets
	names := slices.Clone(table.exact[svc.Hostname])
	names = append(names, table.exact[svc.Name]...)
	for _, alias := range svc.Aliases {
		names = append(names, table.exact[alias]...)
	}
	for _, pattern := range table.wild {
		if MatchHost(pattern, svc.Hostname) {
			names = append(names, table.exact[pattern]...)
		}
	}
	return names
}

// lookup returns the rule that applies when a client in namespace calls host, which belongs to a service in
// serviceNamespace. It searches the client's namespace, then the service's namespace, then the root namespace. It
// returns nil if there is no rule.
func (r *destinationRules) lookup(namespace, host, serviceNamespace string) *DestinationRule {
	if d, ok := r.inNamespace(namespace).local.find(host); ok {
		return d
	}
	for _, ns := range []string{serviceNamespace, r.root} {
		if ns == namespace {
			continue
		}
		rules, _ := r.inNamespace(ns).exported.find(host)
		for _, d := range rules {
			if exportedTo(d.exportTo, d.Namespace, namespace) {
				return d
			}
		}
	}
	return nil
}

// forCaller returns the rules, by host, whose workload selector matches a client with the labels. If two rules have the
// same host, the rule with more labels in its selector takes precedence. choice identifies the set of matching rules;
// it is empty if there are none.
func (r *destinationRules) forCaller(namespace string, labels map[string]string) (byHost map[string]*DestinationRule, choice string) {
	for _, d := range r.inNamespace(namespace).selective {
		if !Selects(d.selector(), labels) {
			continue
		}
		if byHost == nil {
			byHost = map[string]*DestinationRule{}
		}
		if other := byHost[d.Host]; other == nil || len(d.selector()) > len(other.selector()) {
			byHost[d.Host] = d
		}
		choice += d.key.selector + "\x00"
	}
	return byHost, choice
}

func (d *DestinationRule) selector() map[string]string {
	return d.From[0].Spec.(*networking.DestinationRule).GetWorkloadSelector().GetMatchLabels()
}

// DestinationRules returns the rules as they apply to clients in the same namespace as the rule. They are sorted by
// namespace, host and selector.
func (s *Snapshot) DestinationRules() []*DestinationRule {
	return slices.DeleteFunc(slices.Clone(s.index.destinationRules.all), func(d *DestinationRule) bool { return d.key.exportTo != localKey })
}

// DestinationRule returns the rule for calls from a namespace to a service, or nil if there is none. It ignores rules
// with a workload selector, because these apply only to some clients.
func (s *Snapshot) DestinationRule(namespace string, svc *registry.Service) *DestinationRule {
	return s.index.destinationRules.lookup(namespace, svc.Hostname, svc.Namespace)
}

// HasConsistentHashing reports whether any DestinationRule uses consistent hashing.
func (s *Snapshot) HasConsistentHashing() bool { return s.index.destinationRules.traits.hashing }

// HasConnectionSettings reports whether any DestinationRule has connection settings that affect listeners.
func (s *Snapshot) HasConnectionSettings() bool { return s.index.destinationRules.traits.connecting }

// HasCredentials reports whether any DestinationRule refers to a Secret.
func (s *Snapshot) HasCredentials() bool { return s.index.destinationRules.traits.credentialed }

// IsSelective reports whether the rule has a workload selector. d may be nil.
func (d *DestinationRule) IsSelective() bool { return d != nil && d.key.selector != "" }

// settings is the common interface of traffic policies and their port-level settings.
type settings interface {
	GetLoadBalancer() *networking.LoadBalancerSettings
	GetConnectionPool() *networking.ConnectionPoolSettings
	GetTls() *networking.ClientTLSSettings
}

// UsesConsistentHash reports whether a DestinationRule uses consistent hashing.
func UsesConsistentHash(spec *networking.DestinationRule) bool {
	return anyPolicy(spec, func(s settings) bool { return s.GetLoadBalancer().GetConsistentHash() != nil })
}

// UsesConnectionSettings reports whether a DestinationRule has connection settings that affect the callers' listeners:
// TLS to servers outside the mesh, an idle timeout, consistent hashing, or a tunnel.
func UsesConnectionSettings(spec *networking.DestinationRule) bool {
	return UsesConsistentHash(spec) || anyPolicy(spec, func(s settings) bool {
		mode := s.GetTls().GetMode()
		whole, _ := s.(*networking.TrafficPolicy)
		return mode == networking.ClientTLSSettings_SIMPLE || mode == networking.ClientTLSSettings_MUTUAL ||
			s.GetConnectionPool().GetTcp().GetIdleTimeout() != nil || whole.GetTunnel() != nil
	})
}

// UsesCredential reports whether a DestinationRule refers to a Secret.
func UsesCredential(spec *networking.DestinationRule) bool {
	return anyPolicy(spec, func(s settings) bool { return s.GetTls().GetCredentialName() != "" })
}

func anyPolicy(spec *networking.DestinationRule, is func(settings) bool) bool {
	policies := []*networking.TrafficPolicy{spec.GetTrafficPolicy()}
	for _, s := range spec.GetSubsets() {
		policies = append(policies, s.GetTrafficPolicy())
	}
	for _, p := range policies {
		if is(p) || slices.ContainsFunc(p.GetPortLevelSettings(), func(ps *networking.TrafficPolicy_PortTrafficPolicy) bool { return is(ps) }) {
			return true
		}
	}
	return false
}
