package translate

import (
	"slices"
	"strings"

	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	security "istio.io/api/security/v1beta1"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// ruleCompiler turns one rule of an AuthorizationPolicy into a policy of Envoy's.
type ruleCompiler struct {
	trustDomain string
	aliases     []string
	// namespace is the policy's.
	namespace string
	// tcp: there are connections only, and nothing is known of requests. A DENY rule then matches without regard to what
	// it says of requests, and an ALLOW rule that says something of them matches nothing: so neither lets in more than
	// was meant.
	tcp, deny bool
}

// compile gives nil for a rule that can match nothing.
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
	return c.accepted(policy)
}

// accepted is the policy where Envoy takes it. For one that it does not take it would keep all that it was sent with out
// of force: what denies denies everything then, and what allows allows nothing.
func (c ruleCompiler) accepted(policy *rbacv3.Policy) *rbacv3.Policy {
	switch {
	case policy.Validate() == nil:
		return policy
	case !c.deny:
		return nil
	}
	return &rbacv3.Policy{Principals: []*rbacv3.Principal{andIDs(nil)}, Permissions: []*rbacv3.Permission{andRules(nil)}}
}

// fit says whether all values are such as Envoy takes. A condition with another is left out of a rule that denies, and
// makes one that allows impossible.
func fit(values, not []string, fits func(string) bool) bool {
	for _, v := range slices.Concat(values, not) {
		if len(v) > config.MaxPolicyValue || fits != nil && !fits(v) {
			return false
		}
	}
	return true
}

// source compiles the parts of a source, all of which have to hold; false when that cannot be.
func (c ruleCompiler) source(s *security.Source) ([]*rbacv3.Principal, bool) {
	ids := idList{c: c}
	ids.add(s.GetPrincipals(), s.GetNotPrincipals(), c.principal)
	ids.add(s.GetNamespaces(), s.GetNotNamespaces(), namespacePrincipal)
	ids.add(s.GetServiceAccounts(), s.GetNotServiceAccounts(), c.serviceAccountPrincipal)
	ids.add(s.GetTrustDomains(), s.GetNotTrustDomains(), trustDomainPrincipal)
	ids.add(s.GetIpBlocks(), s.GetNotIpBlocks(), connectionPrincipal)
	ids.addRequest(s.GetRemoteIpBlocks(), s.GetNotRemoteIpBlocks(), remotePrincipal)
	ids.addFitting(s.GetRequestPrincipals(), s.GetNotRequestPrincipals(), requestPrincipalFits, requestPrincipal)
	return ids.ids, !ids.impossible
}

// operation compiles the parts of an operation.
func (c ruleCompiler) operation(o *security.Operation) ([]*rbacv3.Permission, bool) {
	rules := ruleList{c: c}
	rules.add(o.GetPorts(), o.GetNotPorts(), portPermission)
	rules.addFitting(o.GetHosts(), o.GetNotHosts(), hostFits, hostPermission)
	rules.addRequest(o.GetMethods(), o.GetNotMethods(), methodPermission)
	rules.addFitting(o.GetPaths(), o.GetNotPaths(), pathFits, pathPermission)
	return rules.rules, !rules.impossible
}

// conditions compiles the "when" of a rule; false when it can never hold.
func (c ruleCompiler) conditions(when []*security.Condition) ([]*rbacv3.Principal, []*rbacv3.Permission, bool) {
	ids, rules := idList{c: c}, ruleList{c: c}
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
		case key == "request.auth.principal":
			ids.addFitting(values, not, requestPrincipalFits, requestPrincipal)
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
	return ids.ids, rules.rules, !ids.impossible && !rules.impossible
}

// idList collects conditions on the caller.
type idList struct {
	c          ruleCompiler
	ids        []*rbacv3.Principal
	impossible bool
}

// add adds: one of the values, and none of the others.
func (l *idList) add(values, not []string, match func(string) *rbacv3.Principal) {
	if !fit(values, not, nil) {
		l.impossible = l.impossible || !l.c.deny
		return
	}
	if len(values) > 0 {
		l.ids = append(l.ids, orIDs(values, match))
	}
	if len(not) > 0 {
		l.ids = append(l.ids, &rbacv3.Principal{Identifier: &rbacv3.Principal_NotId{NotId: orIDs(not, match)}})
	}
}

// addRequest is add for what only requests have.
func (l *idList) addRequest(values, not []string, match func(string) *rbacv3.Principal) {
	switch {
	case len(values)+len(not) == 0:
	case !l.c.tcp:
		l.add(values, not, match)
	case !l.c.deny:
		l.impossible = true
	}
}

// addFitting is addRequest for values of which not all can be matched.
func (l *idList) addFitting(values, not []string, fits func(string) bool, match func(string) *rbacv3.Principal) {
	if !fit(values, not, fits) {
		l.impossible = l.impossible || !l.c.deny
		return
	}
	l.addRequest(values, not, match)
}

// ruleList collects conditions on what is called.
type ruleList struct {
	c          ruleCompiler
	rules      []*rbacv3.Permission
	impossible bool
}

// addFitting is addRequest for values of which Envoy does not take all.
func (l *ruleList) addFitting(values, not []string, fits func(string) bool, match func(string) *rbacv3.Permission) {
	if !fit(values, not, fits) {
		l.impossible = l.impossible || !l.c.deny
		return
	}
	l.addRequest(values, not, match)
}

func (l *ruleList) add(values, not []string, match func(string) *rbacv3.Permission) {
	if !fit(values, not, nil) {
		l.impossible = l.impossible || !l.c.deny
		return
	}
	if len(values) > 0 {
		l.rules = append(l.rules, orRules(values, match))
	}
	if len(not) > 0 {
		l.rules = append(l.rules, &rbacv3.Permission{Rule: &rbacv3.Permission_NotRule{NotRule: orRules(not, match)}})
	}
}

func (l *ruleList) addRequest(values, not []string, match func(string) *rbacv3.Permission) {
	switch {
	case len(values)+len(not) == 0:
	case !l.c.tcp:
		l.add(values, not, match)
	case !l.c.deny:
		l.impossible = true
	}
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
