package snapshot

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	security "istio.io/api/security/v1beta1"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
)

// defeated tells of what an AuthorizationPolicy asks for and that other documents, or the protocol, make impossible.
func (c *checker) defeated(p Policy) {
	labels := p.Spec.GetSelector().GetMatchLabels()
	disabled := c.s.peerAuth.mode(p.Namespace, labels, 0) == Disable
	tokens := c.verifiesTokens(p.Namespace, labels)
	streams := c.tcpServices(p.Namespace, labels)
	for i, rule := range p.Spec.GetRules() {
		at := fmt.Sprintf("spec.rules[%d]", i)
		asks := asked(rule)
		if asks.peer != "" && disabled {
			c.find(config.PrincipalsUnprovable, p.Resource, at+asks.peer, "", "mutual TLS is disabled for these workloads: no caller can prove who it is",
				"enable mutual TLS by a PeerAuthentication, or match by ipBlocks")
		}
		if asks.token != "" && !tokens {
			c.find(config.RequestUnverified, p.Resource, at+asks.token, "", "no RequestAuthentication verifies tokens for these workloads: no request has what is asked for",
				"add a RequestAuthentication for them")
		}
		if asks.http != "" && len(streams) > 0 && !limitsPorts(rule) {
			c.httpOnTCP(p, at+asks.http, streams)
		}
		if asks.http == "" {
			c.askedByHTTP(p, at, c.tcpServices(p.Namespace, labels, workloadPorts(rule)...))
		}
		for j, to := range rule.GetTo() {
			for k, text := range to.GetOperation().GetPorts() {
				if port, err := strconv.ParseUint(text, 10, 16); err == nil {
					c.workloadPort(p.Resource, labels, fmt.Sprintf("%s.to[%d].operation.ports[%d]", at, j, k), uint32(port))
				}
			}
		}
	}
}

func (c *checker) httpOnTCP(p Policy, field string, streams []string) {
	message := "only HTTP has it, and these ports are not HTTP: " + strings.Join(head(streams, 5), ", ") + ": "
	severity := config.Info
	switch p.Spec.GetAction() {
	case security.AuthorizationPolicy_ALLOW:
		message += "the rule never matches there"
	case security.AuthorizationPolicy_DENY:
		message += "the rule matches there without regard to it, and connections are refused"
		severity = config.Warning
	default:
		return
	}
	c.tell(config.HTTPRuleOnTCP, severity, p.Resource, field, "", message,
		"limit the rule to HTTP ports by to.operation.ports, or name the ports for what they speak")
}

// askedByHTTP tells of connections that nobody can be asked about: providers that are asked by HTTP are shown requests.
func (c *checker) askedByHTTP(p Policy, field string, streams []string) {
	if p.Spec.GetAction() != security.AuthorizationPolicy_CUSTOM || len(streams) == 0 {
		return
	}
	if FindProvider(c.w.mesh, p.Spec.GetProvider().GetName()).GetEnvoyExtAuthzHttp() == nil {
		return
	}
	c.find(config.HTTPRuleOnTCP, p.Resource, field, "",
		"the provider is asked by HTTP, about requests, and these ports are not HTTP: "+strings.Join(head(streams, 5), ", ")+": what the rule matches there is denied",
		"limit the rule to HTTP ports by to.operation.ports, or use a provider with envoyExtAuthzGrpc")
}

// workloadPorts are the ports that a rule is limited to by its operations; none where it is not.
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

// asks is where a rule asks for what not every connection has; "" where it does not.
type asks struct{ peer, token, http string }

func asked(rule *security.Rule) asks {
	var a asks
	for j, from := range rule.GetFrom() {
		s, at := from.GetSource(), fmt.Sprintf(".from[%d].source", j)
		if len(s.GetPrincipals())+len(s.GetNamespaces())+len(s.GetServiceAccounts()) > 0 {
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
		case key == "source.principal", key == "source.namespace", key == "source.serviceAccount":
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

// verifiesTokens says whether a RequestAuthentication may be for these workloads.
func (c *checker) verifiesTokens(namespace string, labels map[string]string) bool {
	for _, r := range c.s.resources[config.RequestAuthentication] {
		if r.Namespace != namespace && r.Namespace != c.s.Mesh.GetRootNamespace() {
			continue
		}
		selector := r.Spec.(*security.RequestAuthentication).GetSelector().GetMatchLabels()
		if len(selector) == 0 || len(labels) == 0 || !contradict(selector, labels) {
			return true
		}
	}
	return false
}

// contradict says whether no workload can have the labels of both.
func contradict(a, b map[string]string) bool {
	for k, v := range a {
		if w, ok := b[k]; ok && v != w {
			return true
		}
	}
	return false
}

// tcpServices are the ports, of services that these workloads serve, in which no requests can be told apart: all, or those
// that lead to some ports of the workloads.
func (c *checker) tcpServices(namespace string, labels map[string]string, only ...uint32) []string {
	var out []string
	for _, svc := range c.servicesOf(namespace, labels) {
		for _, p := range svc.Ports {
			if len(only) > 0 && !slices.Contains(only, cmp.Or(p.TargetPort, p.Number)) {
				continue
			}
			if p.Protocol == registry.TCP || p.Protocol == registry.TLS || p.Protocol == registry.HTTPS {
				out = append(out, fmt.Sprintf("%s:%d", svc.Hostname, p.Number))
			}
		}
	}
	return out
}

// peerPorts tells of ports in a PeerAuthentication that its workloads do not serve.
func (c *checker) peerPorts() {
	for _, r := range c.s.resources[config.PeerAuthentication] {
		spec := r.Spec.(*security.PeerAuthentication)
		for port := range spec.GetPortLevelMtls() {
			c.workloadPort(r, spec.GetSelector().GetMatchLabels(), fmt.Sprintf("spec.portLevelMtls[%d]", port), port)
		}
	}
}
