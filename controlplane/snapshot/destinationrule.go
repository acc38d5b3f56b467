package snapshot

import (
	"cmp"
	"maps"
	"slices"
	"sort"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
)

// DestinationRule is what all DestinationRules of one namespace say of one host, merged. Immutable.
type DestinationRule struct {
	Host      string
	Namespace string
	// From are the resources it was merged from, the oldest first.
	From []*config.Resource
	// Subsets in the order of their documents; of one name the oldest wins.
	Subsets []*networking.Subset

	policy   *networking.TrafficPolicy
	exportTo []string
	key      ruleKey
}

// Traffic is the policy for one port of a host or subset. Nil fields have the defaults.
type Traffic struct {
	LoadBalancer     *networking.LoadBalancerSettings
	ConnectionPool   *networking.ConnectionPoolSettings
	OutlierDetection *networking.OutlierDetection
	TLS              *networking.ClientTLSSettings
	// These are said for all ports alike.
	ProxyProtocol *networking.TrafficPolicy_ProxyProtocol
	Tunnel        *networking.TrafficPolicy_TunnelSettings
	RetryBudget   *networking.TrafficPolicy_RetryBudget
}

// Subset finds a subset by name; nil when there is none. It may be called on a nil rule.
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

// Traffic is the policy for a port of a subset ("" for the host as a whole). It may be called on a nil rule.
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

// override follows Istio: a field of the more special policy replaces the whole field, and settings of a port inherit
// nothing from the level they stand on.
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

// destinationRules is all DestinationRules.
type destinationRules struct {
	root        string
	byNamespace map[string]*namespaceRules
	all         []*DestinationRule
	// hashing: some rule has consistent hashing; connecting: some says what listeners have to know.
	// credentialed: some names a Secret.
	hashing, connecting, credentialed bool
	// subsets are the names of subsets that any rule has for a host, as the document writes it and by its full name.
	subsets hostTable[[]string]
}

// namespaceRules are those of one namespace: those that count for callers of their own namespace, and those that count for
// others. Immutable: an edit elsewhere leaves them as they are.
type namespaceRules struct {
	from     []*config.Resource
	all      []*DestinationRule
	local    hostTable[*DestinationRule]
	exported hostTable[[]*DestinationRule] // one for each set of namespaces it is exported to
	// selective are those that count for some callers of their own namespace only.
	selective []*DestinationRule

	hashing, connecting, credentialed bool
	subsets                           map[string][]string
}

var noRules namespaceRules

// of gives the rules of a namespace; never nil.
func (r *destinationRules) of(namespace string) *namespaceRules {
	if r != nil {
		if n := r.byNamespace[namespace]; n != nil {
			return n
		}
	}
	return &noRules
}

// ruleKey is what the documents that are merged into one rule have in common. A rule for some callers only has their labels.
type ruleKey struct{ namespace, host, exportTo, selector string }

// newDestinationRules indexes DestinationRules, which come by namespace. sameNames says that what a name in them means is as it was
// for prev, which may be nil.
func newDestinationRules(prev *destinationRules, resources []*config.Resource, resolve resolver, root string, defaultExportTo []string, sameNames bool) *destinationRules {
	index := &destinationRules{root: root, byNamespace: map[string]*namespaceRules{}}
	sameSubsets := true
	for len(resources) > 0 {
		namespace, n := resources[0].Namespace, 1
		for n < len(resources) && resources[n].Namespace == namespace {
			n++
		}
		old := prev.of(namespace)
		rules := old
		if !sameNames || !equalPointers(old.from, resources[:n]) {
			rules = newNamespaceRules(old, resources[:n], resolve, defaultExportTo)
			sameSubsets = sameSubsets && old != &noRules && maps.EqualFunc(rules.subsets, old.subsets, slices.Equal)
		}
		resources = resources[n:]
		index.byNamespace[namespace] = rules
		index.all = append(index.all, rules.all...)
		index.hashing, index.connecting = index.hashing || rules.hashing, index.connecting || rules.connecting
		index.credentialed = index.credentialed || rules.credentialed
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

func newNamespaceRules(prev *namespaceRules, resources []*config.Resource, resolve resolver, defaultExportTo []string) *namespaceRules {
	groups := map[ruleKey]*DestinationRule{}
	for _, r := range oldestFirst(resources) {
		spec := r.Spec.(*networking.DestinationRule)
		host := resolve(spec.GetHost(), r.Namespace)
		selector := labelText(spec.GetWorkloadSelector().GetMatchLabels())
		addRule(groups, ruleKey{r.Namespace, host, localKey, selector}, r, nil)
		if selector != "" {
			continue // such a rule is for callers of its own namespace, wherever it is exported to
		}
		exportTo := spec.GetExportTo()
		if len(exportTo) == 0 {
			exportTo = defaultExportTo
		}
		addRule(groups, ruleKey{r.Namespace, host, canonicalExport(exportTo), ""}, r, exportTo)
	}
	for _, old := range prev.all { // each that was merged from the same documents stays in its place
		if d := groups[old.key]; d != nil && equalPointers(d.From, old.From) {
			groups[old.key] = old
		}
	}
	rules := indexRules(groups)
	rules.from = slices.Clone(resources) // and not a part of what else there is now, which is gone before these rules are
	return rules
}

// localKey sets the rules for callers of the same namespace apart; it is no possible list of namespaces.
const localKey = "\x00"

func canonicalExport(exportTo []string) string {
	sorted := append([]string(nil), exportTo...)
	sort.Strings(sorted)
	return strings.Join(sorted, ",")
}

func addRule(groups map[ruleKey]*DestinationRule, key ruleKey, r *config.Resource, exportTo []string) {
	d := groups[key]
	if d == nil {
		d = &DestinationRule{Host: key.host, Namespace: key.namespace, exportTo: exportTo, key: key}
		groups[key] = d
	}
	spec := r.Spec.(*networking.DestinationRule)
	d.From = append(d.From, r)
	if d.policy == nil {
		d.policy = spec.GetTrafficPolicy()
	}
	for _, s := range spec.GetSubsets() {
		if d.Subset(s.GetName()) == nil {
			d.Subsets = append(d.Subsets, s)
		}
	}
}

// indexRules indexes those of one namespace.
func indexRules(groups map[ruleKey]*DestinationRule) *namespaceRules {
	keys := slices.SortedFunc(maps.Keys(groups), func(a, b ruleKey) int {
		return cmp.Or(cmp.Compare(a.host, b.host), cmp.Compare(a.exportTo, b.exportTo), cmp.Compare(a.selector, b.selector))
	})
	local, exported := map[string]*DestinationRule{}, map[string][]*DestinationRule{}
	index := &namespaceRules{subsets: map[string][]string{}}
	for _, k := range keys {
		d := groups[k]
		index.all = append(index.all, d)
		for _, r := range d.From {
			spec := r.Spec.(*networking.DestinationRule)
			index.hashing = index.hashing || Hashes(spec)
			index.connecting = index.connecting || Connects(spec)
			index.credentialed = index.credentialed || Credentialed(spec)
		}
		addSubsetNames(index.subsets, d)
		switch {
		case k.selector != "":
			index.selective = append(index.selective, d)
		case k.exportTo == localKey:
			local[k.host] = d
		default:
			exported[k.host] = append(exported[k.host], d)
		}
	}
	index.local, index.exported = newHostTable(local), newHostTable(exported)
	return index
}

// HidesRule says whether a DestinationRule of the namespace for a host stands before a broader one, which those do not follow then
// either whom it is not exported to.
func (s *Snapshot) HidesRule(namespace, host string) bool {
	return slices.ContainsFunc(s.world.destinationRules.of(namespace).exported.wild, func(pattern string) bool {
		return pattern != host && MatchHost(pattern, host)
	})
}

func addSubsetNames(byHost map[string][]string, d *DestinationRule) {
	hosts := []string{d.Host}
	for _, r := range d.From {
		hosts = append(hosts, r.Spec.(*networking.DestinationRule).GetHost())
	}
	slices.Sort(hosts)
	for _, host := range slices.Compact(hosts) {
		for _, s := range d.Subsets {
			byHost[host] = append(byHost[host], s.GetName())
		}
	}
}

// SubsetNames are the subsets that any DestinationRule, whoever may see it, speaks of for a service of the present or the
// past. There may be some twice.
func (s *Snapshot) SubsetNames(svc *registry.Service) []string {
	table := s.world.destinationRules.subsets
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

// lookup finds the rule for calls from a namespace to a host of a service in serviceNamespace: the caller's own first,
// then the service's, then the root namespace's. Nil when there is none.
func (r *destinationRules) lookup(namespace, host, serviceNamespace string) *DestinationRule {
	if d, ok := r.of(namespace).local.find(host); ok {
		return d
	}
	for _, ns := range []string{serviceNamespace, r.root} {
		if ns == namespace {
			continue
		}
		rules, _ := r.of(ns).exported.find(host)
		for _, d := range rules {
			if exportedTo(d.exportTo, d.Namespace, namespace) {
				return d
			}
		}
	}
	return nil
}

// forCaller are the rules that count only for some callers of a namespace, one of whom has these labels, and a name for
// this choice, which is empty when there are none. Of two for the same host the one that asks for more labels counts.
func (r *destinationRules) forCaller(namespace string, labels map[string]string) (byHost map[string]*DestinationRule, choice string) {
	for _, d := range r.of(namespace).selective {
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

// AnyHashing says whether any DestinationRule has consistent hashing.
func (s *Snapshot) AnyHashing() bool { return s.world.destinationRules.hashing }

// AnyConnecting says whether any DestinationRule says anything of connections that listeners have to know.
func (s *Snapshot) AnyConnecting() bool { return s.world.destinationRules.connecting }

// AnyCredentialed says whether any DestinationRule names a Secret.
func (s *Snapshot) AnyCredentialed() bool { return s.world.destinationRules.credentialed }

// Selective says whether a rule is for some callers of its namespace only. It may be called on a nil rule.
func (d *DestinationRule) Selective() bool { return d != nil && d.key.selector != "" }

// settings are those of a policy, or of one of its ports.
type settings interface {
	GetLoadBalancer() *networking.LoadBalancerSettings
	GetConnectionPool() *networking.ConnectionPoolSettings
	GetTls() *networking.ClientTLSSettings
}

// Hashes says whether a DestinationRule has consistent hashing anywhere.
func Hashes(spec *networking.DestinationRule) bool {
	return anywhere(spec, func(s settings) bool { return s.GetLoadBalancer().GetConsistentHash() != nil })
}

// Connects says whether a DestinationRule says anything of connections that callers' listeners have to know: TLS to servers
// that are not of the mesh, how long a connection may be idle, by what it is balanced, and through what it goes.
func Connects(spec *networking.DestinationRule) bool {
	return Hashes(spec) || anywhere(spec, func(s settings) bool {
		mode := s.GetTls().GetMode()
		whole, _ := s.(*networking.TrafficPolicy)
		return mode == networking.ClientTLSSettings_SIMPLE || mode == networking.ClientTLSSettings_MUTUAL ||
			s.GetConnectionPool().GetTcp().GetIdleTimeout() != nil || whole.GetTunnel() != nil
	})
}

// Credentialed says whether a DestinationRule names a Secret anywhere.
func Credentialed(spec *networking.DestinationRule) bool {
	return anywhere(spec, func(s settings) bool { return s.GetTls().GetCredentialName() != "" })
}

func anywhere(spec *networking.DestinationRule, is func(settings) bool) bool {
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
