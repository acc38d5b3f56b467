package translate

import (
	"slices"
	"strings"

	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	security "istio.io/api/security/v1beta1"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// ruleCompiler converts one rule of an AuthorizationPolicy to an RBAC policy of Envoy.
type ruleCompiler struct {
	trustDomain string
	aliases     []string
	// namespace is the namespace of the policy.
	namespace string
	// tcp: the policy applies to connections, which have no request attributes. A DENY rule then ignores its conditions
	// on requests, and an ALLOW rule with such conditions never matches. In both cases, the policy does not allow more
	// than intended. deny: the policy denies requests.
	tcp, deny bool
}

// compile returns the RBAC policy for a rule, or nil if the rule can never match.
func (c ruleCompiler) compile(rule *security.Rule) *rbacv3.Policy {
	conditionPrincipals, conditionPermissions, ok := c.conditions(rule.GetWhen())
	if !ok {
		return nil
	}
	policy := &rbacv3.Policy{}
	for _, from := range rule.GetFrom() {
		if ids, ok := c.source(from.GetSource()); ok {
			policy.Principals = append(policy.Principals, andIDs(append(ids, conditionPrincipals...)))
		}
	}
	if len(rule.GetFrom()) == 0 {
		policy.Principals = []*rbacv3.Principal{andIDs(conditionPrincipals)}
	}
	for _, to := range rule.GetTo() {
		if rules, ok := c.operation(to.GetOperation()); ok {
			policy.Permissions = append(policy.Permissions, andRules(append(rules, conditionPermissions...)))
		}
	}
	if len(rule.GetTo()) == 0 {
		policy.Permissions = []*rbacv3.Permission{andRules(conditionPermissions)}
	}
	if len(policy.Principals) == 0 || len(policy.Permissions) == 0 {
		return nil
	}
	return c.validOrFallback(policy)
}

// validOrFallback returns the policy if Envoy accepts it. One invalid policy would make Envoy reject the complete
// response. validOrFallback therefore replaces an invalid DENY policy by one that denies everything, and returns nil
// for an invalid ALLOW policy.
func (c ruleCompiler) validOrFallback(policy *rbacv3.Policy) *rbacv3.Policy {
	switch {
	case policy.Validate() == nil:
		return policy
	case !c.deny:
		return nil
	}
	return &rbacv3.Policy{Principals: []*rbacv3.Principal{andIDs(nil)}, Permissions: []*rbacv3.Permission{andRules(nil)}}
}

// areValidValues reports whether Envoy accepts all values, and fits returns true for all of them; fits may be nil. If
// not, the caller omits the condition from a DENY rule, and an ALLOW rule with the condition never matches.
func areValidValues(values, not []string, fits func(string) bool) bool {
	for _, v := range slices.Concat(values, not) {
		if len(v) > config.MaxPolicyValue || fits != nil && !fits(v) {
			return false
		}
	}
	return true
}

// source compiles the parts of a source, all of which must match. It returns false if they can never match.
func (c ruleCompiler) source(s *security.Source) ([]*rbacv3.Principal, bool) {
	ids := c.newPrincipals()
	ids.add(s.GetPrincipals(), s.GetNotPrincipals(), c.principal)
	ids.add(s.GetNamespaces(), s.GetNotNamespaces(), namespacePrincipal)
	ids.add(s.GetServiceAccounts(), s.GetNotServiceAccounts(), c.serviceAccountPrincipal)
	ids.add(s.GetTrustDomains(), s.GetNotTrustDomains(), trustDomainPrincipal)
	ids.add(s.GetIpBlocks(), s.GetNotIpBlocks(), connectionPrincipal)
	ids.addRequest(s.GetRemoteIpBlocks(), s.GetNotRemoteIpBlocks(), remotePrincipal)
	ids.addChecked(s.GetRequestPrincipals(), s.GetNotRequestPrincipals(), isValidRequestPrincipal, requestPrincipal)
	return ids.list, !ids.impossible
}

// operation compiles the parts of an operation, all of which must match. It returns false if they can never match.
func (c ruleCompiler) operation(o *security.Operation) ([]*rbacv3.Permission, bool) {
	rules := c.newPermissions()
	rules.add(o.GetPorts(), o.GetNotPorts(), portPermission)
	rules.addChecked(o.GetHosts(), o.GetNotHosts(), isValidHost, hostPermission)
	rules.addRequest(o.GetMethods(), o.GetNotMethods(), methodPermission)
	rules.addChecked(o.GetPaths(), o.GetNotPaths(), isValidPath, pathPermission)
	return rules.list, !rules.impossible
}

// conditions compiles the conditions in the field when of a rule. It returns false if they can never match.
func (c ruleCompiler) conditions(when []*security.Condition) ([]*rbacv3.Principal, []*rbacv3.Permission, bool) {
	ids, rules := c.newPrincipals(), c.newPermissions()
	for _, w := range when {
		key, values, not := w.GetKey(), w.GetValues(), w.GetNotValues()
		switch {
		case key == "source.ip":
			ids.add(values, not, connectionPrincipal)
		case key == "source.principal":
			ids.add(values, not, c.principal)
		case key == "source.namespace":
			ids.add(values, not, namespacePrincipal)
		case key == "source.serviceAccount":
			ids.add(values, not, c.serviceAccountPrincipal)
		case key == "source.trustDomain":
			ids.add(values, not, trustDomainPrincipal)
		case key == "request.auth.principal":
			ids.addChecked(values, not, isValidRequestPrincipal, requestPrincipal)
		case key == "request.auth.audiences":
			ids.addRequest(values, not, claimPrincipal([]string{"aud"}))
		case key == "request.auth.presenter":
			ids.addRequest(values, not, claimPrincipal([]string{"azp"}))
		case claimPath(key) != nil:
			ids.addRequest(values, not, claimPrincipal(claimPath(key)))
		case strings.HasPrefix(key, filterMetadataKey) && strings.HasSuffix(key, "]"):
			rules.add(values, not, metadataPermission(key))
		case key == "remote.ip":
			ids.addRequest(values, not, remotePrincipal)
		case key == "destination.ip":
			rules.add(values, not, destinationPermission)
		case key == "destination.port":
			rules.add(values, not, portPermission)
		case key == "connection.sni":
			rules.add(values, not, sniPermission)
		case strings.HasPrefix(key, "request.headers[") && strings.HasSuffix(key, "]"):
			name := strings.TrimSuffix(strings.TrimPrefix(key, "request.headers["), "]")
			ids.addRequest(values, not, func(v string) *rbacv3.Principal { return headerPrincipal(name, v) })
		case !c.deny:
			return nil, nil, false
		}
	}
	return ids.list, rules.list, !ids.impossible && !rules.impossible
}

// conditionList collects conditions, all of which must match. T is the type of the conditions: principals are
// conditions on the client, permissions are conditions on the requested operation.
type conditionList[T any] struct {
	c          ruleCompiler
	list       []T
	impossible bool
	// or returns the condition that at least one of the values matches. not returns the negation of a condition.
	or  func(values []string, match func(string) T) T
	not func(T) T
}

func (c ruleCompiler) newPrincipals() conditionList[*rbacv3.Principal] {
	return conditionList[*rbacv3.Principal]{c: c, or: orIDs, not: func(p *rbacv3.Principal) *rbacv3.Principal {
		return &rbacv3.Principal{Identifier: &rbacv3.Principal_NotId{NotId: p}}
	}}
}

func (c ruleCompiler) newPermissions() conditionList[*rbacv3.Permission] {
	return conditionList[*rbacv3.Permission]{c: c, or: orRules, not: func(p *rbacv3.Permission) *rbacv3.Permission {
		return &rbacv3.Permission{Rule: &rbacv3.Permission_NotRule{NotRule: p}}
	}}
}

// add adds the condition that at least one of values matches, and none of the values in not.
func (l *conditionList[T]) add(values, not []string, match func(string) T) {
	if !areValidValues(values, not, nil) {
		l.impossible = l.impossible || !l.c.deny
		return
	}
	if len(values) > 0 {
		l.list = append(l.list, l.or(values, match))
	}
	if len(not) > 0 {
		l.list = append(l.list, l.not(l.or(not, match)))
	}
}

// addRequest is like add, but for attributes of requests. For TCP connections it adds no condition; an ALLOW rule then
// never matches.
func (l *conditionList[T]) addRequest(values, not []string, match func(string) T) {
	switch {
	case len(values)+len(not) == 0:
	case !l.c.tcp:
		l.add(values, not, match)
	case !l.c.deny:
		l.impossible = true
	}
}

// addChecked is like addRequest, but fits must return true for all values.
func (l *conditionList[T]) addChecked(values, not []string, fits func(string) bool, match func(string) T) {
	if !areValidValues(values, not, fits) {
		l.impossible = l.impossible || !l.c.deny
		return
	}
	l.addRequest(values, not, match)
}

func andIDs(ids []*rbacv3.Principal) *rbacv3.Principal {
	switch len(ids) {
	case 0:
		return &rbacv3.Principal{Identifier: &rbacv3.Principal_Any{Any: true}}
	case 1:
		return ids[0]
	}
	return &rbacv3.Principal{Identifier: &rbacv3.Principal_AndIds{AndIds: &rbacv3.Principal_Set{Ids: ids}}}
}

func orIDs(values []string, match func(string) *rbacv3.Principal) *rbacv3.Principal {
	ids := make([]*rbacv3.Principal, len(values))
	for i, v := range values {
		ids[i] = match(v)
	}
	if len(ids) == 1 {
		return ids[0]
	}
	return &rbacv3.Principal{Identifier: &rbacv3.Principal_OrIds{OrIds: &rbacv3.Principal_Set{Ids: ids}}}
}

func andRules(rules []*rbacv3.Permission) *rbacv3.Permission {
	switch len(rules) {
	case 0:
		return &rbacv3.Permission{Rule: &rbacv3.Permission_Any{Any: true}}
	case 1:
		return rules[0]
	}
	return &rbacv3.Permission{Rule: &rbacv3.Permission_AndRules{AndRules: &rbacv3.Permission_Set{Rules: rules}}}
}

func orRules(values []string, match func(string) *rbacv3.Permission) *rbacv3.Permission {
	rules := make([]*rbacv3.Permission, len(values))
	for i, v := range values {
		rules[i] = match(v)
	}
	if len(rules) == 1 {
		return rules[0]
	}
	return &rbacv3.Permission{Rule: &rbacv3.Permission_OrRules{OrRules: &rbacv3.Permission_Set{Rules: rules}}}
}
