package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	security "istio.io/api/security/v1beta1"
	typev1beta1 "istio.io/api/type/v1beta1"

	"github.com/pilotfish-mesh/pilotfish/internal/suggest"
)

func validatePeerAuthentication(s validator, pa *security.PeerAuthentication) {
	s.field("selector").checkSelector(pa.GetSelector())
	ports := pa.GetPortLevelMtls()
	if len(ports) > 0 && len(pa.GetSelector().GetMatchLabels()) == 0 {
		s.field("portLevelMtls").refuse("", "port-level settings require a selector", "add a selector, or remove portLevelMtls")
	}
	if _, written := s.d.positions[s.path+".portLevelMtls"]; written && len(ports) == 0 {
		s.field("portLevelMtls").warnNoEffect("", "lists no port, so the mode of the workload applies to all ports", "list a port and its mode, or remove it")
	}
	for _, port := range slices.Sorted(maps.Keys(ports)) {
		s.field("portLevelMtls").key(fmt.Sprint(port)).checkPort(port)
	}
}

func (s validator) checkSelector(selector *typev1beta1.WorkloadSelector) {
	s.field("matchLabels").checkLabels(selector.GetMatchLabels())
	for key, value := range selector.GetMatchLabels() {
		if strings.Contains(value, "*") || strings.Contains(key, "*") {
			s.field("matchLabels").key(key).refuse(value, "a selector does not support wildcards", "set the full value of the label")
		}
	}
}

func validateAuthorizationPolicy(s validator, p *security.AuthorizationPolicy) {
	s.field("selector").checkSelector(p.GetSelector())
	s.checkPolicyAction(p)
	s.checkTargets(p.GetSelector(), p.GetTargetRef(), p.GetTargetRefs())
	for i, rule := range p.GetRules() {
		s.item("rules", i).checkRule(rule)
	}
}

func (s validator) checkPolicyAction(p *security.AuthorizationPolicy) {
	rules := len(p.GetRules())
	switch p.GetAction() {
	case security.AuthorizationPolicy_ALLOW:
		// "spec: {}" is the common form of a policy that denies all requests, so it needs no warning.
		if rules == 0 && proto.Size(p) > 0 {
			s.d.report(Info, s.d.fieldPosition("spec.rules"), "spec.rules", "", "an ALLOW policy without rules denies every request", "add a rule, or an empty one to allow all: \"rules: [{}]\"")
		}
	case security.AuthorizationPolicy_DENY:
		if rules == 0 {
			s.field("rules").refuse("", "a DENY policy without rules denies nothing", "add a rule, or an empty one to deny all: \"rules: [{}]\"")
		}
	case security.AuthorizationPolicy_CUSTOM:
		if p.GetProvider().GetName() == "" {
			s.field("provider").refuse("", "action CUSTOM needs a provider", "set provider.name")
		}
	}
	if p.GetProvider() != nil && p.GetAction() != security.AuthorizationPolicy_CUSTOM {
		s.field("provider").refuse(p.GetProvider().GetName(), "only action CUSTOM uses a provider", "remove it, or set action: CUSTOM")
	}
}

func (s validator) checkRule(rule *security.Rule) {
	if hasField(s, "from") && len(rule.GetFrom()) == 0 {
		s.field("from").refuse("", "an empty list matches no request", "remove it to match all callers")
	}
	if hasField(s, "to") && len(rule.GetTo()) == 0 {
		s.field("to").refuse("", "an empty list matches no request", "remove it to match all operations")
	}
	for i, from := range rule.GetFrom() {
		if from.GetSource() == nil {
			s.item("from", i).refuse("", "the source is missing", "add a source with principals or namespaces")
			continue
		}
		s.item("from", i).field("source").checkSource(from.GetSource())
	}
	for i, to := range rule.GetTo() {
		if to.GetOperation() == nil {
			s.item("to", i).refuse("", "the operation is missing", "add an operation with methods or paths")
			continue
		}
		s.item("to", i).field("operation").checkOperation(to.GetOperation())
	}
	for i, when := range rule.GetWhen() {
		s.item("when", i).checkCondition(when)
	}
}

// hasField reports whether the document contains the field, even if it is empty.
func hasField(s validator, name string) bool { return s.d.positions[s.path+"."+name].Line != 0 }

func (s validator) checkSource(source *security.Source) {
	lists := map[string][]string{
		"principals": source.GetPrincipals(), "notPrincipals": source.GetNotPrincipals(),
		"requestPrincipals": source.GetRequestPrincipals(), "notRequestPrincipals": source.GetNotRequestPrincipals(),
		"namespaces": source.GetNamespaces(), "notNamespaces": source.GetNotNamespaces(),
		"serviceAccounts": source.GetServiceAccounts(), "notServiceAccounts": source.GetNotServiceAccounts(),
		"ipBlocks": source.GetIpBlocks(), "notIpBlocks": source.GetNotIpBlocks(),
		"remoteIpBlocks": source.GetRemoteIpBlocks(), "notRemoteIpBlocks": source.GetNotRemoteIpBlocks(),
		"trustDomains": source.GetTrustDomains(), "notTrustDomains": source.GetNotTrustDomains(),
	}
	s.checkValues(lists)
	for _, name := range []string{"ipBlocks", "notIpBlocks", "remoteIpBlocks", "notRemoteIpBlocks"} {
		s.field(name).checkCIDRs(lists[name])
	}
	for _, name := range []string{"principals", "notPrincipals"} {
		for i, principal := range lists[name] {
			if rest, ok := strings.CutPrefix(principal, "spiffe://"); ok {
				s.item(name, i).refuse(principal, "a principal must not contain the scheme", fmt.Sprintf("write %q", rest))
			}
		}
	}
	for _, name := range []string{"requestPrincipals", "notRequestPrincipals"} {
		s.field(name).checkRequestPrincipals(lists[name])
	}
	if len(lists["serviceAccounts"])+len(lists["notServiceAccounts"]) > 0 &&
		len(lists["principals"])+len(lists["notPrincipals"])+len(lists["namespaces"])+len(lists["notNamespaces"]) > 0 {
		s.field("serviceAccounts").refuse("", "cannot be combined with principals or namespaces", "use only one of them")
	}
}

// checkRequestPrincipals checks request principals, which have the form ISSUER/SUBJECT.
func (s validator) checkRequestPrincipals(list []string) {
	for i, v := range list {
		switch n := strings.Count(v, "/"); {
		case n > MaxRequestPrincipalSlashes:
			s.index(i).refuse(v, fmt.Sprintf("the value has %d slashes; at most %d are allowed", n, MaxRequestPrincipalSlashes), "use a condition on request.auth.claims[iss] and [sub]")
		case n == 0 && !strings.Contains(v, "*"):
			s.index(i).warn(v, "a request principal has the form ISSUER/SUBJECT, so this value matches no request", "use a value such as \"https://issuer.example/*\"")
		}
	}
}

func (s validator) checkOperation(op *security.Operation) {
	lists := map[string][]string{
		"hosts": op.GetHosts(), "notHosts": op.GetNotHosts(), "ports": op.GetPorts(), "notPorts": op.GetNotPorts(),
		"methods": op.GetMethods(), "notMethods": op.GetNotMethods(), "paths": op.GetPaths(), "notPaths": op.GetNotPaths(),
	}
	s.checkValues(lists)
	for _, name := range []string{"ports", "notPorts"} {
		for i, port := range lists[name] {
			if !isPort(port) {
				s.item(name, i).refuse(port, "not a port number", "set one between 1 and 65535, in quotes")
			}
		}
	}
	for _, name := range []string{"methods", "notMethods"} {
		for i, method := range lists[name] {
			if method != strings.ToUpper(method) {
				s.item(name, i).warn(method, "Envoy compares methods case-sensitively, and HTTP methods are in capitals, so this value matches no request", "write "+strings.ToUpper(method))
			}
		}
	}
	for _, name := range []string{"paths", "notPaths"} {
		for i, p := range lists[name] {
			s.item(name, i).checkPolicyPath(p)
		}
	}
}

func isPort(text string) bool {
	for _, r := range text {
		if r < '0' || r > '9' {
			return false
		}
	}
	return len(text) > 0 && len(text) <= 5 && text[0] != '0' && (len(text) < 5 || text <= "65535")
}

// checkPolicyPath checks a path that may contain {*} and {**} as whole segments. checkValues checks the wildcards of
// other paths.
func (s validator) checkPolicyPath(p string) {
	if strings.ContainsAny(p, "{}") {
		if _, err := EnvoyPathTemplate(p); err != nil {
			s.refuse(p, "not a valid path template: "+err.Error(), "use a value such as /api/{*}/items/{**}: parts are {*}, at most one {**} after them, or plain text")
		}
		return
	}
	if strings.ContainsAny(p, "?#") {
		s.warn(p, "Envoy compares paths without query and fragment, so this value matches no request", "remove the part that follows ? or #")
	}
}

// checkValues checks all values for their length and their wildcards, and refuses empty ones. It refuses an empty list,
// because its meaning is ambiguous: it could match no request or every request.
func (s validator) checkValues(lists map[string][]string) {
	reported := false
	for _, name := range slices.Sorted(maps.Keys(lists)) {
		if hasField(s, name) && len(lists[name]) == 0 {
			s.field(name).refuse("", "an empty list", "remove it, or add values")
		}
		for i, value := range lists[name] {
			reported = true
			if limit := valueLimit(name); len(value) > limit {
				s.item(name, i).refuse(value, fmt.Sprintf("the value has %d bytes; at most %d are allowed", len(value), limit), "shorten it, or end it with a wildcard")
				continue
			}
			if value == "" {
				s.item(name, i).refuse("", "an empty value", "remove it")
			} else if strings.Contains(strings.Trim(value, "*"), "*") && !strings.Contains(value, "{") || strings.HasPrefix(value, "*") && strings.HasSuffix(value, "*") && len(value) > 1 {
				s.item(name, i).refuse(value, "a wildcard is only supported at the beginning or the end, or alone", "use a value such as \"/api/*\", \"*/health\" or \"*\"")
			}
		}
	}
	if !reported {
		s.refuse("", "an empty value would match every request", "remove it, or set a value")
	}
}

// Limits of the values in an AuthorizationPolicy. They exist because values become regular expressions, whose size
// Envoy limits.
const (
	// MaxPolicyHost is the DNS limit for a name.
	MaxPolicyHost = 255
	// MaxPolicyValue is the SPIFFE limit for an ID.
	MaxPolicyValue = 2048
	// MaxRequestPrincipalSlashes limits the slashes of a request principal. Any slash may separate issuer and subject,
	// so the generated policy contains one alternative for each slash.
	MaxRequestPrincipalSlashes = 32
)

func valueLimit(list string) int {
	if list == "hosts" || list == "notHosts" {
		return MaxPolicyHost
	}
	return MaxPolicyValue
}

// conditionKeys lists the attributes of conditions. If an attribute ends with an opening bracket, a key continues with
// a name and a closing bracket. If it ends with a dot, a key continues with any text.
var conditionKeys = []string{
	"request.headers[", "source.ip", "remote.ip", "source.namespace", "source.principal", "source.serviceAccount", "source.trustDomain", "request.auth.principal",
	"request.auth.audiences", "request.auth.presenter", "request.auth.claims[", "destination.ip", "destination.port",
	"connection.sni", "experimental.envoy.filters.",
}

func (s validator) checkCondition(c *security.Condition) {
	known := slices.ContainsFunc(conditionKeys, func(key string) bool {
		if strings.HasSuffix(key, "[") {
			return strings.HasPrefix(c.GetKey(), key) && strings.HasSuffix(c.GetKey(), "]") && len(c.GetKey()) > len(key)+1
		}
		return c.GetKey() == key || strings.HasSuffix(key, ".") && strings.HasPrefix(c.GetKey(), key)
	})
	if !known {
		s.field("key").refuse(c.GetKey(), "unknown attribute", conditionRemedy(c.GetKey()))
		return
	}
	if len(c.GetValues())+len(c.GetNotValues()) == 0 {
		s.refuse("", "the condition has no values", "set values or notValues")
	}
	if name, ok := strings.CutPrefix(c.GetKey(), "request.headers["); ok {
		s.field("key").checkHeaderName(strings.TrimSuffix(name, "]"))
	}
	for name, values := range map[string][]string{"values": c.GetValues(), "notValues": c.GetNotValues()} {
		for i, value := range values {
			if limit := valueLimit(name); len(value) > limit {
				s.item(name, i).refuse(value, fmt.Sprintf("the value has %d bytes; at most %d are allowed", len(value), limit), "shorten it, or end it with a wildcard")
			}
		}
	}
	switch c.GetKey() {
	case "request.auth.principal":
		s.field("values").checkRequestPrincipals(c.GetValues())
		s.field("notValues").checkRequestPrincipals(c.GetNotValues())
	case "source.ip", "remote.ip", "destination.ip":
		s.field("values").checkCIDRs(c.GetValues())
		s.field("notValues").checkCIDRs(c.GetNotValues())
	case "destination.port":
		for name, ports := range map[string][]string{"values": c.GetValues(), "notValues": c.GetNotValues()} {
			for i, port := range ports {
				if !isPort(port) {
					s.item(name, i).refuse(port, "not a port number", "set one between 1 and 65535, in quotes")
				}
			}
		}
	}
}

func conditionRemedy(key string) string {
	before, rest, ok := strings.Cut(key, "[")
	var names []string
	for _, k := range conditionKeys {
		names = append(names, strings.TrimRight(k, "[."))
	}
	match := suggest.Name(before, names)
	if match == "" {
		return "one of: " + joinNames(names)
	}
	if ok {
		match += "[" + rest
	} else if contains(conditionKeys, match+"[") {
		match += "[name]"
	}
	return fmt.Sprintf("did you mean %s?", match)
}
