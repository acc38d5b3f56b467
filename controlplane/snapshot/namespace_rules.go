package snapshot

import (
	"cmp"
	"maps"
	"slices"
	"sort"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// namespaceRules contains the rules of one namespace, for clients in this namespace and in other namespaces. It is
// immutable. A change in another namespace does not replace it.
type namespaceRules struct {
	from     []*config.Resource
	all      []*DestinationRule // sorted by key
	byKey    map[ruleKey]*DestinationRule
	local    hostTable[*DestinationRule]
	exported hostTable[[]*DestinationRule] // one rule for each exportTo list
	// selective contains the rules with a workload selector, which apply to some clients in their namespace.
	selective []*DestinationRule
	// subsets maps hosts to subset names. A host is a key both as it is written in documents and as the full name.
	subsets map[string][]string
	traits  ruleTraits
}

var noRules namespaceRules

// ruleTraits contains the properties of DestinationRules that make other resources depend on them.
type ruleTraits struct {
	// hashing: at least one rule uses consistent hashing. connecting: at least one rule has settings that affect
	// listeners. credentialed: at least one rule refers to a Secret.
	hashing, connecting, credentialed bool
}

func (t *ruleTraits) add(o ruleTraits) {
	t.hashing, t.connecting, t.credentialed = t.hashing || o.hashing, t.connecting || o.connecting, t.credentialed || o.credentialed
}

// ruleKey identifies the documents that are merged into one rule. selector is set for rules with a workload selector.
type ruleKey struct{ namespace, host, exportTo, selector string }

func compareRuleKeys(a, b ruleKey) int {
	return cmp.Or(cmp.Compare(a.host, b.host), cmp.Compare(a.exportTo, b.exportTo), cmp.Compare(a.selector, b.selector))
}

// localKey is the exportTo key of the rules for clients in the same namespace. It differs from the key of every list of
// namespaces.
const localKey = "\x00"

func exportKey(exportTo []string) string {
	sorted := append([]string(nil), exportTo...)
	sort.Strings(sorted)
	return strings.Join(sorted, ",")
}

// namespaceRulesBuild builds the rules of a namespace from the former rules. Its cost depends mainly on the number of
// changed documents, because a namespace may have 10,000 rules.
type namespaceRulesBuild struct {
	former          *namespaceRules // its rules are reused if they were merged from the same documents
	base            *namespaceRules // the rules to which changes are applied: former, or none if names resolve differently
	resolve         resolver
	defaultExportTo []string
	next            *namespaceRules
	changedHosts    map[string]bool // full names
}

// newNamespaceRules merges the documents of a namespace, which are sorted by name. sameNames means that host names in
// documents resolve to the same services as for former.
func newNamespaceRules(former *namespaceRules, resources []*config.Resource, resolve resolver, defaultExportTo []string, sameNames bool) *namespaceRules {
	b := &namespaceRulesBuild{former: former, base: former, resolve: resolve, defaultExportTo: defaultExportTo, changedHosts: map[string]bool{}}
	if !sameNames {
		b.base = &noRules
	}
	// The list is a copy, because the rules can exist longer than the rest of the slice.
	b.next = &namespaceRules{from: slices.Clone(resources), byKey: cloneMap(b.base.byKey), subsets: cloneMap(b.base.subsets)}
	removed, added := compareDocuments(b.base.from, resources)
	b.mergeChanged(removed, added)
	b.index(removed)
	return b.next
}

// cloneMap returns a copy of m. The copy is never nil.
func cloneMap[K comparable, V any](m map[K]V) map[K]V {
	if m == nil {
		return map[K]V{}
	}
	return maps.Clone(m)
}

// compareDocuments returns the documents that are only in one of two lists. A changed document is in both results.
func compareDocuments(before, after []*config.Resource) (removed, added []*config.Resource) {
	for len(before) > 0 || len(after) > 0 {
		switch {
		case len(after) == 0 || len(before) > 0 && before[0].Name < after[0].Name:
			removed, before = append(removed, before[0]), before[1:]
		case len(before) == 0 || after[0].Name < before[0].Name:
			added, after = append(added, after[0]), after[1:]
		default:
			if before[0] != after[0] {
				removed, added = append(removed, before[0]), append(added, after[0])
			}
			before, after = before[1:], after[1:]
		}
	}
	return removed, added
}

// keysOf returns the keys of the rules into which a document is merged, with their exportTo lists.
func (b *namespaceRulesBuild) keysOf(r *config.Resource) map[ruleKey][]string {
	spec := r.Spec.(*networking.DestinationRule)
	host := b.resolve(spec.GetHost(), r.Namespace)
	selector := config.FormatLabels(spec.GetWorkloadSelector().GetMatchLabels())
	keys := map[ruleKey][]string{{r.Namespace, host, localKey, selector}: nil}
	if selector == "" { // a rule with a selector applies only in its own namespace, regardless of exportTo
		exportTo := spec.GetExportTo()
		if len(exportTo) == 0 {
			exportTo = b.defaultExportTo
		}
		keys[ruleKey{r.Namespace, host, exportKey(exportTo), ""}] = exportTo
	}
	return keys
}

// mergeChanged merges again each rule that is built from at least one changed document.
func (b *namespaceRulesBuild) mergeChanged(removed, added []*config.Resource) {
	documents, exportTo := map[ruleKey][]*config.Resource{}, map[ruleKey][]string{}
	gone := make(map[*config.Resource]bool, len(removed))
	for _, r := range removed {
		gone[r] = true
	}
	load := func(r *config.Resource) {
		for key, list := range b.keysOf(r) {
			if _, loaded := documents[key]; !loaded {
				documents[key] = nil
				if old := b.base.byKey[key]; old != nil {
					documents[key] = slices.DeleteFunc(slices.Clone(old.From), func(r *config.Resource) bool { return gone[r] })
				}
			}
			exportTo[key] = list
			b.changedHosts[key.host] = true
		}
	}
	for _, r := range removed {
		load(r)
	}
	for _, r := range added {
		load(r)
		for key := range b.keysOf(r) {
			documents[key] = append(documents[key], r)
		}
	}
	for key, list := range documents {
		if len(list) == 0 {
			delete(b.next.byKey, key)
			continue
		}
		list = config.SortByAge(list)
		if old := b.former.byKey[key]; old != nil && slices.Equal(old.From, list) {
			b.next.byKey[key] = old
			continue
		}
		b.next.byKey[key] = mergeRule(key, exportTo[key], list)
	}
	b.mergeOrder(slices.SortedFunc(maps.Keys(documents), compareRuleKeys))
}

// mergeRule merges documents into one rule. The documents are sorted by precedence.
func mergeRule(key ruleKey, exportTo []string, documents []*config.Resource) *DestinationRule {
	d := &DestinationRule{Host: key.host, Namespace: key.namespace, From: documents, exportTo: exportTo, key: key}
	for _, r := range documents {
		spec := r.Spec.(*networking.DestinationRule)
		if d.policy == nil {
			d.policy = spec.GetTrafficPolicy()
		}
		for _, s := range spec.GetSubsets() {
			if d.Subset(s.GetName()) == nil {
				d.Subsets = append(d.Subsets, s)
			}
		}
		d.traits.add(ruleTraits{UsesConsistentHash(spec), UsesConnectionSettings(spec), UsesCredential(spec)})
	}
	return d
}

// mergeOrder builds the sorted list of all rules. changed contains the sorted keys of the rules that were merged again
// or removed.
func (b *namespaceRulesBuild) mergeOrder(changed []ruleKey) {
	b.next.all = make([]*DestinationRule, 0, len(b.next.byKey))
	appendChanged := func(key ruleKey) {
		if d := b.next.byKey[key]; d != nil {
			b.next.all = append(b.next.all, d)
		}
	}
	for _, d := range b.base.all {
		for len(changed) > 0 && compareRuleKeys(changed[0], d.key) < 0 {
			appendChanged(changed[0])
			changed = changed[1:]
		}
		if len(changed) > 0 && changed[0] == d.key {
			appendChanged(changed[0])
			changed = changed[1:]
			continue
		}
		b.next.all = append(b.next.all, d)
	}
	for _, key := range changed {
		appendChanged(key)
	}
}

// index updates the lookup tables for the changed hosts.
func (b *namespaceRulesBuild) index(removed []*config.Resource) {
	for _, r := range removed {
		delete(b.next.subsets, r.Spec.(*networking.DestinationRule).GetHost())
	}
	local, exported := cloneMap(b.base.local.exact), cloneMap(b.base.exported.exact)
	for host := range b.changedHosts {
		delete(b.next.subsets, host)
		delete(local, host)
		delete(exported, host)
		for _, d := range b.next.rulesFor(host) {
			switch {
			case d.key.selector != "":
			case d.key.exportTo == localKey:
				local[host] = d
			default:
				exported[host] = append(exported[host], d)
			}
		}
	}
	b.indexSubsets()
	b.next.local, b.next.exported = newHostTable(local), newHostTable(exported)
	for _, d := range b.next.all {
		b.next.traits.add(d.traits)
		if d.key.selector != "" {
			b.next.selective = append(b.next.selective, d)
		}
	}
}

// indexSubsets replaces the subset names of the changed hosts.
func (b *namespaceRulesBuild) indexSubsets() {
	for host := range b.changedHosts {
		for _, d := range b.next.rulesFor(host) { // some are unchanged, and were merged from documents that are still there
			for _, name := range d.documentHosts() {
				delete(b.next.subsets, name)
			}
		}
		for _, d := range b.next.rulesFor(host) {
			for _, name := range d.documentHosts() {
				for _, s := range d.Subsets {
					b.next.subsets[name] = append(b.next.subsets[name], s.GetName())
				}
			}
		}
	}
}

// documentHosts returns the full name of the rule's host and the names in its documents.
func (d *DestinationRule) documentHosts() []string {
	hosts := []string{d.Host}
	for _, r := range d.From {
		hosts = append(hosts, r.Spec.(*networking.DestinationRule).GetHost())
	}
	slices.Sort(hosts)
	return slices.Compact(hosts)
}

// rulesFor returns the rules for a host, in the order of their keys.
func (r *namespaceRules) rulesFor(host string) []*DestinationRule {
	from, _ := slices.BinarySearchFunc(r.all, host, func(d *DestinationRule, host string) int { return cmp.Compare(d.Host, host) })
	to := from
	for to < len(r.all) && r.all[to].Host == host {
		to++
	}
	return r.all[from:to]
}
