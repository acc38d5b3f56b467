package describe

import (
	"fmt"
	"strings"

	security "istio.io/api/security/v1beta1"
	typev1beta1 "istio.io/api/type/v1beta1"
)

// policyWords say what an AuthorizationPolicy matches, rule by rule. Of a rule's sources, and of its operations, one has to
// hold; of what one of these says, all.
func policyWords(spec *security.AuthorizationPolicy) []string {
	action := spec.GetAction().String()
	if provider := spec.GetProvider().GetName(); provider != "" {
		action += " by " + provider
	}
	if len(spec.GetRules()) == 0 {
		return append(targetWords(spec), action+": nothing, for it has no rules")
	}
	out := targetWords(spec)
	for _, rule := range spec.GetRules() {
		words := action + ": from " + anyOf(sources(rule), "anyone")
		if to := anyOf(operations(rule), ""); to != "" {
			words += " to " + to
		}
		var when []string
		for _, c := range rule.GetWhen() {
			when = append(when, strings.Join(conditionWords(c.GetKey()+" is ", c.GetValues(), c.GetNotValues()), " and "))
		}
		if len(when) > 0 {
			words += " when " + strings.Join(when, " and ")
		}
		out = append(out, words)
	}
	return out
}

func sources(rule *security.Rule) []string {
	var out []string
	for _, f := range rule.GetFrom() {
		src := f.GetSource()
		var parts []string
		for _, c := range []struct {
			what      string
			are, none []string
		}{
			{"", src.GetPrincipals(), src.GetNotPrincipals()},
			{"namespace ", src.GetNamespaces(), src.GetNotNamespaces()},
			{"service account ", src.GetServiceAccounts(), src.GetNotServiceAccounts()},
			{"address ", src.GetIpBlocks(), src.GetNotIpBlocks()},
			{"remote address ", src.GetRemoteIpBlocks(), src.GetNotRemoteIpBlocks()},
			{"end user ", src.GetRequestPrincipals(), src.GetNotRequestPrincipals()},
		} {
			parts = append(parts, conditionWords(c.what, c.are, c.none)...)
		}
		out = append(out, allOf(parts, "anyone"))
	}
	return out
}

func operations(rule *security.Rule) []string {
	var out []string
	for _, t := range rule.GetTo() {
		op := t.GetOperation()
		var parts []string
		for _, c := range []struct {
			what      string
			are, none []string
		}{
			{"", op.GetMethods(), op.GetNotMethods()},
			{"host ", op.GetHosts(), op.GetNotHosts()},
			{"port ", op.GetPorts(), op.GetNotPorts()},
			{"", op.GetPaths(), op.GetNotPaths()},
		} {
			parts = append(parts, conditionWords(c.what, c.are, c.none)...)
		}
		out = append(out, allOf(parts, "anything"))
	}
	return out
}

// conditionWords say that something is one of some values, and none of others.
func conditionWords(what string, are, none []string) []string {
	var out []string
	if len(are) > 0 {
		out = append(out, what+strings.Join(are, " or "))
	}
	if len(none) > 0 {
		out = append(out, "not "+what+strings.Join(none, " nor "))
	}
	return out
}

// anyOf joins what of which one has to hold.
func anyOf(list []string, none string) string {
	switch len(list) {
	case 0:
		return none
	case 1:
		return list[0]
	}
	return "(" + strings.Join(list, ") or (") + ")"
}

// targeted is what documents for some workloads have in common.
type targeted interface {
	GetSelector() *typev1beta1.WorkloadSelector
	GetTargetRef() *typev1beta1.PolicyTargetReference
	GetTargetRefs() []*typev1beta1.PolicyTargetReference
}

// targetWords say for which workloads of its namespace a document is, if not for all.
func targetWords(t targeted) []string {
	refs := t.GetTargetRefs()
	if ref := t.GetTargetRef(); ref != nil {
		refs = append(refs[:len(refs):len(refs)], ref)
	}
	var names []string
	for _, ref := range refs {
		names = append(names, fmt.Sprintf("%s %s", ref.GetKind(), ref.GetName()))
	}
	if len(names) > 0 {
		return []string{"for what serves " + strings.Join(names, " or ")}
	}
	return selectorWords(t.GetSelector().GetMatchLabels())
}

func selectorWords(labels map[string]string) []string {
	if len(labels) == 0 {
		return nil
	}
	return []string{"for workloads labelled " + labelWords(labels)}
}
