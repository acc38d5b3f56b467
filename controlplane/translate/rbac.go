package translate

import (
	"fmt"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	httprbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	networkrbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/rbac/v3"
	"google.golang.org/protobuf/types/known/anypb"
	security "istio.io/api/security/v1beta1"

	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
)

// Names of the filters that enforce AuthorizationPolicies on requests.
const (
	denyFilterName  = "envoy.filters.http.rbac.deny"
	allowFilterName = "envoy.filters.http.rbac.allow"
	auditFilterName = "envoy.filters.http.rbac.audit"
)

// Prefixes of statistics and of dynamic metadata for policies that only audit requests or run in dry-run mode.
const (
	dryDenyPrefix  = "istio_dry_run_deny_"
	dryAllowPrefix = "istio_dry_run_allow_"
	auditPrefix    = "audit_"
)

// policies contains the AuthorizationPolicies of a workload by action. nil means that there are none.
type policies struct {
	deny, allow, dryDeny, dryAllow, audit *rbacv3.RBAC
	// custom contains the rules for external authorizers, by provider.
	custom map[string]*rbacv3.RBAC
}

// policies compiles the workload's AuthorizationPolicies for requests, or for TCP connections.
func (v proxyView) policies(tcp bool) policies {
	out := policies{custom: map[string]*rbacv3.RBAC{}}
	for _, p := range v.s.Policies(v.p.Namespace, v.p.Labels) {
		dry := snapshot.IsDryRun(p.Resource)
		switch p.Spec.GetAction() {
		case security.AuthorizationPolicy_AUDIT:
			v.addRules(&out.audit, rbacv3.RBAC_DENY, p, tcp)
		case security.AuthorizationPolicy_CUSTOM:
			v.addCustom(&out, p, tcp)
		case security.AuthorizationPolicy_ALLOW:
			into := &out.allow
			if dry {
				into = &out.dryAllow
			}
			v.addRules(into, rbacv3.RBAC_ALLOW, p, tcp)
		default:
			into := &out.deny
			if dry {
				into = &out.dryDeny
			}
			v.addRules(into, rbacv3.RBAC_DENY, p, tcp)
		}
	}
	return out
}

// addCustom adds the rules of a CUSTOM policy for its external authorizer. If the proxy cannot reach the authorizer,
// Envoy denies the requests that match the rules.
func (v proxyView) addCustom(out *policies, p snapshot.Policy, tcp bool) {
	name := p.Spec.GetProvider().GetName()
	provider, ok := v.authorizer(name)
	if !ok || tcp && provider.grpc == nil {
		v.addRules(&out.deny, rbacv3.RBAC_DENY, p, tcp)
		return
	}
	rules := out.custom[name]
	v.addRules(&rules, rbacv3.RBAC_DENY, p, tcp)
	out.custom[name] = rules
}

// addRules adds a policy's rules to a rule set. It creates the set if necessary, even if no rule can match, because an
// ALLOW policy whose rules never match denies all requests.
func (v proxyView) addRules(into **rbacv3.RBAC, action rbacv3.RBAC_Action, p snapshot.Policy, tcp bool) {
	if *into == nil {
		*into = &rbacv3.RBAC{Action: action, Policies: map[string]*rbacv3.Policy{}}
	}
	c := ruleCompiler{
		trustDomain: v.s.Mesh.GetTrustDomain(), aliases: v.s.Mesh.GetTrustDomainAliases(), namespace: p.Namespace,
		tcp: tcp, deny: action == rbacv3.RBAC_DENY,
	}
	for i, rule := range p.Spec.GetRules() {
		if policy := c.compile(rule); policy != nil {
			(*into).Policies[fmt.Sprintf("ns[%s]-policy[%s]-rule[%d]", p.Namespace, p.Name, i)] = policy
		}
	}
}

// rbacFilters returns the RBAC filters. They are always present and allow everything by default. The rules are in the
// routes (see rbacSettings), so that a change of a policy does not change the listener.
func (v proxyView) rbacFilters() []*hcmv3.HttpFilter {
	out := []*hcmv3.HttpFilter{
		httpFilter(denyFilterName, &httprbacv3.RBAC{ShadowRulesStatPrefix: dryDenyPrefix}),
		httpFilter(allowFilterName, &httprbacv3.RBAC{ShadowRulesStatPrefix: dryAllowPrefix}),
	}
	if v.hasAuditPolicy() {
		audit := httpFilter(auditFilterName, &httprbacv3.RBAC{ShadowRulesStatPrefix: auditPrefix})
		out = append([]*hcmv3.HttpFilter{audit}, out...)
	}
	return out
}

// hasAuditPolicy reports whether the workload has an AUDIT policy.
func (v proxyView) hasAuditPolicy() bool {
	for _, p := range v.s.Policies(v.p.Namespace, v.p.Labels) {
		if p.Spec.GetAction() == security.AuthorizationPolicy_AUDIT {
			return true
		}
	}
	return false
}

// rbacSettings returns the per-route configuration that enforces the workload's AuthorizationPolicies on requests:
// external authorization is applied first, then DENY, then ALLOW.
func (v proxyView) rbacSettings() map[string]*anypb.Any {
	out := map[string]*anypb.Any{}
	p := v.policies(false)
	for name, rules := range p.custom {
		out[customFilterName(name)] = rbacSetting(nil, rules, customPrefix(name))
		p.deny = denyUnchecked(p.deny, rules, name)
	}
	if p.audit != nil {
		out[auditFilterName] = rbacSetting(nil, p.audit, auditPrefix)
	}
	if p.deny != nil && len(p.deny.Policies) > 0 || p.dryDeny != nil {
		out[denyFilterName] = rbacSetting(p.deny, p.dryDeny, dryDenyPrefix)
	}
	if p.allow != nil || p.dryAllow != nil {
		out[allowFilterName] = rbacSetting(p.allow, p.dryAllow, dryAllowPrefix)
	}
	return out
}

func rbacSetting(rules, shadow *rbacv3.RBAC, prefix string) *anypb.Any {
	return anyOf(&httprbacv3.RBACPerRoute{Rbac: &httprbacv3.RBAC{Rules: rules, ShadowRules: shadow, ShadowRulesStatPrefix: prefix}})
}

// networkRBAC returns the filters that enforce the policies on TCP connections.
func (v proxyView) networkRBAC() []*listenerv3.Filter {
	var out []*listenerv3.Filter
	add := func(rules, shadow *rbacv3.RBAC, prefix string) {
		out = append(out, networkFilter("envoy.filters.network.rbac", &networkrbacv3.RBAC{
			Rules: rules, ShadowRules: shadow, ShadowRulesStatPrefix: prefix, StatPrefix: "tcp.",
		}))
	}
	p := v.policies(true)
	for _, a := range v.authorizers() {
		if rules := p.custom[a.name]; rules != nil && len(rules.Policies) > 0 {
			add(nil, rules, customPrefix(a.name))
			out = append(out, a.networkFilter())
		}
	}
	if p.audit != nil {
		add(nil, p.audit, auditPrefix)
	}
	if p.deny != nil && len(p.deny.Policies) > 0 || p.dryDeny != nil {
		add(p.deny, p.dryDeny, dryDenyPrefix)
	}
	if p.allow != nil || p.dryAllow != nil {
		add(p.allow, p.dryAllow, dryAllowPrefix)
	}
	return out
}

// rbacRules returns the DENY and ALLOW rules for proxyless gRPC servers. Such servers do not support external
// authorization, so the DENY rules include the rules of CUSTOM policies.
func (v proxyView) rbacRules(tcp bool) []*rbacv3.RBAC {
	p := v.policies(tcp)
	for name, rules := range p.custom {
		if p.deny == nil {
			p.deny = &rbacv3.RBAC{Action: rbacv3.RBAC_DENY, Policies: map[string]*rbacv3.Policy{}}
		}
		for id, policy := range rules.Policies {
			p.deny.Policies["unasked-"+name+"-"+id] = policy
		}
	}
	var out []*rbacv3.RBAC
	if p.deny != nil && len(p.deny.Policies) > 0 {
		out = append(out, p.deny)
	}
	if p.allow != nil {
		out = append(out, p.allow)
	}
	return out
}
