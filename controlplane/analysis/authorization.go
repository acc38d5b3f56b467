package analysis

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	security "istio.io/api/security/v1beta1"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/internal/phrase"
)

// checkPolicies reports AuthorizationPolicies that are not enforced as written.
func (c *snapshotCheck) checkPolicies() {
	for _, r := range c.s.Resources(config.AuthorizationPolicy) {
		p := snapshot.Policy{Resource: r, Spec: r.Spec.(*security.AuthorizationPolicy)}
		c.checkPolicy(p)
		c.checkUnreachablePolicy(p)
		c.checkIdentities(p)
	}
}

// checkUnreachablePolicy reports conditions of an AuthorizationPolicy that cannot be met because of other documents or
// the protocol.
func (c *snapshotCheck) checkUnreachablePolicy(p snapshot.Policy) {
	labels := p.Spec.GetSelector().GetMatchLabels()
	disabled := c.s.MTLSMode(p.Namespace, labels, 0) == snapshot.Disable
	tokens := c.mayVerifyTokens(p.Namespace, labels)
	streams := c.tcpServices(p.Namespace, labels)
	for i, rule := range p.Spec.GetRules() {
		at := fmt.Sprintf("spec.rules[%d]", i)
		required := parseRequirements(rule)
		if required.peer != "" && disabled {
			c.reportWarning(config.PrincipalsUnprovable, p.Resource, at+required.peer, "", "mutual TLS is disabled for these workloads, so callers cannot prove their identities",
				"enable mutual TLS with a PeerAuthentication, or match callers by ipBlocks")
		}
		if required.token != "" && !tokens {
			missing := config.MissingObject{Kind: config.RequestAuthentication, Namespace: p.Namespace, Effect: "no request can meet the condition"}
			c.reportMissing(config.RequestUnverified, p.Resource, at+required.token, "", "no RequestAuthentication verifies tokens for these workloads", missing,
				"add a RequestAuthentication for these workloads")
		}
		if required.http != "" && len(streams) > 0 && !limitsPorts(rule) {
			c.checkHTTPOnTCP(p, at+required.http, streams)
		}
		if required.http == "" {
			c.checkHTTPRequirements(p, at, c.tcpServices(p.Namespace, labels, workloadPorts(rule)...))
		}
		for j, to := range rule.GetTo() {
			for k, text := range to.GetOperation().GetPorts() {
				if port, err := strconv.ParseUint(text, 10, 16); err == nil {
					c.checkWorkloadPort(p.Resource, labels, fmt.Sprintf("%s.to[%d].operation.ports[%d]", at, j, k), uint32(port))
				}
			}
		}
	}
}

func (c *snapshotCheck) checkHTTPOnTCP(p snapshot.Policy, field string, streams []string) {
	message := "the condition applies only to HTTP requests, but these ports do not use HTTP: " + phrase.ListFirst(streams, 5) + ": "
	severity := config.Info
	switch p.Spec.GetAction() {
	case security.AuthorizationPolicy_ALLOW:
		message += "the rule never matches at these ports"
	case security.AuthorizationPolicy_DENY:
		message += "the rule ignores the condition at these ports and refuses connections"
		severity = config.Warning
	default:
		return
	}
	c.report(config.HTTPRuleOnTCP, severity, p.Resource, field, "", message,
		"limit the rule to HTTP ports by to.operation.ports, or name the ports after their protocol")
}

// checkHTTPRequirements reports a policy with an external authorizer over HTTP that applies to TCP ports. Such an
// authorizer can check only HTTP requests. streams contains these ports.
func (c *snapshotCheck) checkHTTPRequirements(p snapshot.Policy, field string, streams []string) {
	if p.Spec.GetAction() != security.AuthorizationPolicy_CUSTOM || len(streams) == 0 {
		return
	}
	if snapshot.FindProvider(c.s.Mesh, p.Spec.GetProvider().GetName()).GetEnvoyExtAuthzHttp() == nil {
		return
	}
	c.reportWarning(config.HTTPRuleOnTCP, p.Resource, field, "",
		"the provider checks only HTTP requests, but these ports do not use HTTP: "+phrase.ListFirst(streams, 5)+": connections that match the rule are denied",
		"limit the rule to HTTP ports by to.operation.ports, or use a provider with envoyExtAuthzGrpc")
}

// workloadPorts returns the ports in a rule's operations. It returns nil if the rule applies to all ports.
func workloadPorts(rule *security.Rule) []uint32 {
	var out []uint32
	for _, to := range rule.GetTo() {
		for _, text := range to.GetOperation().GetPorts() {
			if port, err := strconv.ParseUint(text, 10, 16); err == nil {
				out = append(out, uint32(port))
			}
		}
	}
	return out
}

// ruleRequirements contains field paths of a rule: of the first field that requires a peer identity, a token, or HTTP.
// A path is "" if the rule has no such field.
type ruleRequirements struct{ peer, token, http string }

func parseRequirements(rule *security.Rule) ruleRequirements {
	var a ruleRequirements
	for j, from := range rule.GetFrom() {
		s, at := from.GetSource(), fmt.Sprintf(".from[%d].source", j)
		if len(s.GetPrincipals())+len(s.GetNamespaces())+len(s.GetServiceAccounts())+len(s.GetTrustDomains()) > 0 {
			a.peer = at
		}
		if len(s.GetRequestPrincipals()) > 0 {
			a.token, a.http = at+".requestPrincipals", at+".requestPrincipals"
		}
		if len(s.GetNotRequestPrincipals()) > 0 {
			a.http = at + ".notRequestPrincipals"
		}
	}
	for j, to := range rule.GetTo() {
		o := to.GetOperation()
		if len(o.GetHosts())+len(o.GetMethods())+len(o.GetPaths())+len(o.GetNotHosts())+len(o.GetNotMethods())+len(o.GetNotPaths()) > 0 {
			a.http = fmt.Sprintf(".to[%d].operation", j)
		}
	}
	for j, when := range rule.GetWhen() {
		at := fmt.Sprintf(".when[%d].key", j)
		switch key := when.GetKey(); {
		case key == "source.principal", key == "source.namespace", key == "source.serviceAccount", key == "source.trustDomain":
			a.peer = at
		case strings.HasPrefix(key, "request.auth."):
			a.http = at
			if len(when.GetValues()) > 0 {
				a.token = at
			}
		case strings.HasPrefix(key, "request."):
			a.http = at
		}
	}
	return a
}

func limitsPorts(rule *security.Rule) bool {
	for _, to := range rule.GetTo() {
		if len(to.GetOperation().GetPorts()) > 0 {
			return true
		}
	}
	for _, when := range rule.GetWhen() {
		if when.GetKey() == "destination.port" {
			return true
		}
	}
	return false
}

// mayVerifyTokens reports whether a RequestAuthentication may apply to the workloads of namespace with the labels.
func (c *snapshotCheck) mayVerifyTokens(namespace string, labels map[string]string) bool {
	for _, r := range c.s.Resources(config.RequestAuthentication) {
		if r.Namespace != namespace && r.Namespace != c.s.Mesh.GetRootNamespace() {
			continue
		}
		selector := r.Spec.(*security.RequestAuthentication).GetSelector().GetMatchLabels()
		if len(selector) == 0 || len(labels) == 0 || !areDisjoint(selector, labels) {
			return true
		}
	}
	return false
}

// areDisjoint reports whether no workload can match both label sets.
func areDisjoint(a, b map[string]string) bool {
	for k, v := range a {
		if w, ok := b[k]; ok && v != w {
			return true
		}
	}
	return false
}

// tcpServices returns the service ports of workloads whose protocol hides requests from proxies, such as TCP. If
// targetPorts is not empty, the result contains only service ports with these target ports.
func (c *snapshotCheck) tcpServices(namespace string, labels map[string]string, targetPorts ...uint32) []string {
	var out []string
	for _, svc := range c.servicesOf(namespace, labels) {
		for _, p := range svc.Ports {
			if len(targetPorts) > 0 && !slices.Contains(targetPorts, cmp.Or(p.TargetPort, p.Number)) {
				continue
			}
			if p.Protocol == registry.TCP || p.Protocol == registry.TLS || p.Protocol == registry.HTTPS {
				out = append(out, fmt.Sprintf("%s:%d", svc.Hostname, p.Number))
			}
		}
	}
	return out
}

// checkPeerPorts reports ports in a PeerAuthentication that its workloads do not serve.
func (c *snapshotCheck) checkPeerPorts() {
	for _, r := range c.s.Resources(config.PeerAuthentication) {
		spec := r.Spec.(*security.PeerAuthentication)
		for port := range spec.GetPortLevelMtls() {
			c.checkWorkloadPort(r, spec.GetSelector().GetMatchLabels(), fmt.Sprintf("spec.portLevelMtls[%d]", port), port)
		}
	}
}
