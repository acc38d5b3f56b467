package snapshot

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
)

// sortForNamespace returns the rules that are exported to namespace, in Istio's order of precedence. Rules of the
// namespace that are not public are first. Other rules that are not public follow, then public rules. Rules with the
// same rank retain their order.
func sortForNamespace(rules []*VirtualService, namespace string) []*VirtualService {
	var out []*VirtualService
	private := false
	for _, v := range rules {
		if v.VisibleTo(namespace) {
			out = append(out, v)
			private = private || !v.IsPublic()
		}
	}
	if private {
		slices.SortStableFunc(out, func(a, b *VirtualService) int { return cmp.Compare(a.rank(namespace), b.rank(namespace)) })
	}
	return out
}

// rank returns the rank of the rule in the order of precedence for clients in namespace. The lowest rank is first.
func (v *VirtualService) rank(namespace string) int {
	switch {
	case v.IsPublic():
		return 2
	case v.Namespace != namespace:
		return 1
	}
	return 0
}

// IsPublic reports whether the rule is exported to all namespaces.
func (v *VirtualService) IsPublic() bool { return registry.IsExportedToAll(v.ExportTo) }

// FindShadowing returns the rule that takes precedence over v in all namespaces to which v is exported, or nil if there
// is none. rules contains the rules of one host, including v, oldest first.
func FindShadowing(v *VirtualService, rules []*VirtualService) *VirtualService {
	if v.IsPublic() {
		first := rules[slices.IndexFunc(rules, (*VirtualService).IsPublic)]
		if first == v {
			return nil
		}
		return first
	}
	var shadowing *VirtualService
	for _, namespace := range v.ExportTo {
		if namespace == "." {
			namespace = v.Namespace
		}
		visible := sortForNamespace(rules, namespace)
		if len(visible) == 0 {
			continue // "~" stands for no namespace
		}
		if visible[0] == v {
			return nil
		}
		shadowing = cmp.Or(shadowing, visible[0])
	}
	return shadowing
}

// ExplainRulePrecedence returns the reason why the VirtualService first takes precedence over second. The text is the
// end of a sentence whose subject is first.
func ExplainRulePrecedence(first, second *VirtualService) string {
	switch {
	case first.IsPublic() == second.IsPublic() && (first.IsPublic() || first.Namespace == second.Namespace):
		return config.ExplainPrecedence(first.Resource, second.Resource)
	case second.IsPublic():
		return "is exported to fewer namespaces"
	}
	return fmt.Sprintf("is in the namespace %s", first.Namespace)
}
