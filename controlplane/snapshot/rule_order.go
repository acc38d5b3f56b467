package snapshot

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
)

// sortForNamespace returns the rules that are exported to a namespace, in Istio's order of precedence: rules that only
// some namespaces see precede public ones, and of these the rules of the namespace itself are first. The order of rules
// of the same rank does not change.
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

// rank orders the rules that a namespace sees.
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

// FindShadowing returns the rule that takes precedence over v in all namespaces that see v, or nil. rules are the rules
// of one host, oldest first. They include v.
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

// ExplainRulePrecedence returns the reason why the first of two VirtualServices takes precedence over the second, as the
// end of a sentence about the first.
func ExplainRulePrecedence(first, second *VirtualService) string {
	switch {
	case first.IsPublic() == second.IsPublic() && (first.IsPublic() || first.Namespace == second.Namespace):
		return config.ExplainPrecedence(first.Resource, second.Resource)
	case second.IsPublic():
		return "is exported to fewer namespaces"
	}
	return fmt.Sprintf("is in the namespace %s", first.Namespace)
}
