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
)

// The names of the filters that enforce AuthorizationPolicies on requests.
const (
	denyFilterName  = "envoy.filters.http.rbac.deny"
	allowFilterName = "envoy.filters.http.rbac.allow"
)

// rbacFilters are always there, and let everything pass: what they enforce comes with the routes, by rbacSettings.
func rbacFilters() []*hcmv3.HttpFilter {
	return []*hcmv3.HttpFilter{httpFilter(denyFilterName, &httprbacv3.RBAC{}), httpFilter(allowFilterName, &httprbacv3.RBAC{})}
}

// rbacSettings enforce the workload's AuthorizationPolicies on the requests of a route configuration: what is denied
// first, then what is allowed, if anything is said about that.
func (v view) rbacSettings() map[string]*anypb.Any {
	out := map[string]*anypb.Any{}
	for _, rules := range v.rbac(false) {
		name := allowFilterName
		if rules.GetAction() == rbacv3.RBAC_DENY {
			name = denyFilterName
		}
		out[name] = anyOf(&httprbacv3.RBACPerRoute{Rbac: &httprbacv3.RBAC{Rules: rules}})
	}
	return out
}

// networkRBAC enforces them on connections.
func (v view) networkRBAC() []*listenerv3.Filter {
	var out []*listenerv3.Filter
	for _, rules := range v.rbac(true) {
		out = append(out, networkFilter("envoy.filters.network.rbac", &networkrbacv3.RBAC{Rules: rules, StatPrefix: "tcp."}))
	}
	return out
}

// rbac gives up to two sets of rules: DENY, then ALLOW.
func (v view) rbac(tcp bool) []*rbacv3.RBAC {
	deny := &rbacv3.RBAC{Action: rbacv3.RBAC_DENY, Policies: map[string]*rbacv3.Policy{}}
	allow := &rbacv3.RBAC{Action: rbacv3.RBAC_ALLOW, Policies: map[string]*rbacv3.Policy{}}
	denies, allows := false, false
	for _, p := range v.s.Policies(v.p.Namespace, v.p.Labels) {
		into, denying := allow, false
		switch p.Spec.GetAction() {
		case security.AuthorizationPolicy_AUDIT:
			continue
		case security.AuthorizationPolicy_ALLOW:
			allows = true
		default:
			// External authorization is not to be had here, and what it is asked about must not pass without it.
			into, denying, denies = deny, true, true
		}
		for i, rule := range p.Spec.GetRules() {
			c := ruleCompiler{
				trustDomain: v.s.Mesh.GetTrustDomain(), aliases: v.s.Mesh.GetTrustDomainAliases(), namespace: p.Namespace,
				tcp: tcp, deny: denying,
			}
			if policy := c.compile(rule); policy != nil {
				into.Policies[fmt.Sprintf("ns[%s]-policy[%s]-rule[%d]", p.Namespace, p.Name, i)] = policy
			}
		}
	}
	var out []*rbacv3.RBAC
	if denies && len(deny.Policies) > 0 {
		out = append(out, deny)
	}
	// Without any rule that can match, an ALLOW policy lets nobody in: that is how "deny all" is written.
	if allows {
		out = append(out, allow)
	}
	return out
}
