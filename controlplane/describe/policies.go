package describe

import (
	"fmt"
	"strings"

	security "istio.io/api/security/v1beta1"
	typev1beta1 "istio.io/api/type/v1beta1"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// policyText describes which requests an AuthorizationPolicy matches. Each rule results in one text. A rule matches if
// one of its sources, one of its operations, and all its conditions match. A source or operation matches if all its
// fields match.
func policyText(spec *security.AuthorizationPolicy) []string {
	action := spec.GetAction().String()
	if provider := spec.GetProvider().GetName(); provider != "" {
		action += " by " + provider
	}
	if len(spec.GetRules()) == 0 {
		return append(targetText(spec), action+": no request, because the policy has no rules")
	}
	out := targetText(spec)
	for _, rule := range spec.GetRules() {
		words := action + ": from " + joinAny(sourceText(rule), "any client")
		if to := joinAny(operationText(rule), ""); to != "" {
			words += " to " + to
		}
		var when []string
		for _, c := range rule.GetWhen() {
			when = append(when, strings.Join(conditionText(c.GetKey()+" is ", c.GetValues(), c.GetNotValues()), " and "))
		}
		if len(when) > 0 {
			words += " when " + strings.Join(when, " and ")
		}
		out = append(out, words)
	}
	return out
}

func sourceText(rule *security.Rule) []string {
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
			parts = append(parts, conditionText(c.what, c.are, c.none)...)
		}
		out = append(out, joinAll(parts, "any client"))
	}
	return out
}

func operationText(rule *security.Rule) []string {
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
			parts = append(parts, conditionText(c.what, c.are, c.none)...)
		}
		out = append(out, joinAll(parts, "anything"))
	}
	return out
}

// conditionText describes the condition that an attribute has one of the values in are, and none of the values in none.
func conditionText(what string, are, none []string) []string {
	var out []string
	if len(are) > 0 {
		out = append(out, what+strings.Join(are, " or "))
	}
	if len(none) > 0 {
		out = append(out, "not "+what+strings.Join(none, " nor "))
	}
	return out
}

// joinAny joins alternatives with "or". If there are no alternatives, it returns none.
func joinAny(list []string, none string) string {
	switch len(list) {
	case 0:
		return none
	case 1:
		return list[0]
	}
	return "(" + strings.Join(list, ") or (") + ")"
}

// targeted is the common interface of documents that select workloads by labels or by target references.
type targeted interface {
	GetSelector() *typev1beta1.WorkloadSelector
	GetTargetRef() *typev1beta1.PolicyTargetReference
	GetTargetRefs() []*typev1beta1.PolicyTargetReference
}

// targetText describes which workloads in its namespace a document selects. It returns nil if the document selects all.
func targetText(t targeted) []string {
	refs := t.GetTargetRefs()
	if ref := t.GetTargetRef(); ref != nil {
		refs = append(refs[:len(refs):len(refs)], ref)
	}
	var names []string
	for _, ref := range refs {
		names = append(names, fmt.Sprintf("%s %s", ref.GetKind(), ref.GetName()))
	}
	if len(names) > 0 {
		return []string{"for workloads of " + strings.Join(names, " or ")}
	}
	return selectorText(t.GetSelector().GetMatchLabels())
}

func selectorText(labels map[string]string) []string {
	if len(labels) == 0 {
		return nil
	}
	return []string{"for workloads with the labels " + config.FormatLabels(labels)}
}
