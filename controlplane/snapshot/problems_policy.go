package snapshot

import (
	"fmt"

	security "istio.io/api/security/v1beta1"
)

// policy warns of what an AuthorizationPolicy says and is not enforced as written. What cannot be enforced never opens a
// door: it only closes more.
func (c *checker) policy(p Policy) {
	switch p.Spec.GetAction() {
	case security.AuthorizationPolicy_CUSTOM:
		c.warn(p.Resource, "spec.action", "CUSTOM", "external authorization is not supported: what the rules match is denied", "use ALLOW or DENY")
	case security.AuthorizationPolicy_AUDIT:
		c.warn(p.Resource, "spec.action", "AUDIT", "auditing is not supported: the policy has no effect", "use ALLOW or DENY")
	}
	if p.Spec.GetTargetRef() != nil || len(p.Spec.GetTargetRefs()) > 0 {
		c.warn(p.Resource, "spec.targetRefs", "", "policies for a targetRef are not supported: the policy has no effect", "select the workloads by label with spec.selector")
	}
	for i, rule := range p.Spec.GetRules() {
		for j, from := range rule.GetFrom() {
			source := from.GetSource()
			if len(source.GetRequestPrincipals())+len(source.GetNotRequestPrincipals()) > 0 {
				c.warn(p.Resource, fmt.Sprintf("spec.rules[%d].from[%d].source", i, j), "requestPrincipals",
					"tokens of requests are not verified here: no request has a request principal", "use principals")
			}
		}
		for j, when := range rule.GetWhen() {
			if !KnownCondition(when.GetKey()) {
				c.warn(p.Resource, fmt.Sprintf("spec.rules[%d].when[%d].key", i, j), when.GetKey(),
					"the condition is not supported: an ALLOW rule with it never matches, a DENY rule matches without regard to it",
					"use request.headers[…], source.ip, source.namespace, source.principal, remote.ip, destination.ip, destination.port or connection.sni")
			}
		}
	}
}
