package iptables

import (
	"regexp"
	"strings"
	"sync"
)

// reasons maps each kind of rule to its purpose. The kind is a prefix of the rule's ID, and the longest matching prefix
// applies. Names in braces are replaced by values of the rule. Because the ID is sufficient, rules that are read from
// the kernel have reasons too.
var reasons = map[string]string{
	"hook/nat-virtual-":    "traffic that arrives from {in} is outbound traffic of a virtual machine in the pod",
	"hook/nat-inbound":     "inbound TCP connections are checked",
	"hook/nat-outbound":    "all outbound traffic is checked, including UDP for DNS",
	"hook/raw-inbound":     "DNS responses get their zone before connection tracking",
	"hook/raw-outbound":    "DNS queries get their zone before connection tracking",
	"hook/mangle-invalid":  "packets in the conntrack state INVALID are checked",
	"hook/mangle-inbound":  "inbound TCP packets are checked",
	"hook/mangle-outbound": "outbound TCP packets are checked",

	"redirect/outbound": "outbound connections are redirected to Envoy's port {redirect}",
	"redirect/inbound":  "inbound connections are redirected to Envoy's port {redirect}",

	"inbound/exclude-interface-": "traffic of the interface {in} is excluded from capture",
	"inbound/virtual-":           "traffic that arrives from {in} is treated as outbound",
	"inbound/tunnel":             "HBONE connections reach Envoy directly at {ports}",
	"inbound/exclude-port-":      "inbound connections to {ports} are excluded from capture",
	"inbound/port-":              "inbound connections to {ports} are captured",
	"inbound/all":                "all other inbound connections are captured",
	"inbound/local":              "traffic between processes of the pod is not captured",

	"outbound/exclude-interface-": "traffic of the interface {out} is excluded from capture",
	"outbound/exclude-port-":      "outbound connections to {ports} are excluded from capture",
	"outbound/passthrough-":       "Envoy forwards inbound connections to the application from {from}; capturing them again would cause a loop",
	"outbound/self-call-":         selfCallReason,
	"outbound/proxy-":             "the proxy's own traffic is not captured again",
	"outbound/exclude-group-":     "traffic of processes of group {gid} is excluded from capture",
	"outbound/other-groups":       "only traffic of processes of the groups {gid} is captured",
	"outbound/dns":                "DNS queries are redirected to the agent's resolver",
	"outbound/localhost-":         "connections of the application to localhost are not captured",
	"outbound/local-":             "traffic between applications of the pod is not captured",
	"outbound/exclude-cidr-":      "connections to {to} are excluded from capture",
	"outbound/port-":              "outbound connections to {ports} are captured",
	"outbound/all":                "all other outbound connections are captured",
	"outbound/cidr-":              "outbound connections to {to} are captured",

	"virtual/exclude-port-": "outbound connections to {ports} are excluded from capture",
	"virtual/exclude-cidr-": "connections to {to} are excluded from capture",
	"virtual/dns":           "DNS queries are redirected to the agent's resolver",
	"virtual/port-":         "outbound connections to {ports} are captured",
	"virtual/all":           "all other outbound connections are captured",
	"virtual/cidr-":         "outbound connections to {to} are captured",

	"dns/":                      "DNS queries are redirected to port {redirect}, the agent's resolver",
	"zone/question-of-proxy-":   "the agent's queries to resolvers use a different conntrack zone than applications' queries to the agent",
	"zone/answer-of-proxy-":     "the agent's responses use the same conntrack zone as applications' queries",
	"zone/question-of-virtual-": "queries of virtual machines to the agent use the same conntrack zone as applications' queries",
	"zone/question":             "applications' queries to the agent use a different conntrack zone than the agent's queries to resolvers",
	"zone/answer":               "responses from resolvers use the same conntrack zone as the agent's queries",
	"zone/virtual-":             "queries of virtual machines are forwarded to the resolver and use the conntrack zone of its responses",
	"zone/exclude-interface-":   uncapturedReason,
	"zone/exclude-group-":       uncapturedReason,
	"zone/other-groups":         uncapturedReason,
	"invalid/drop":              "for a packet outside its connection's TCP window, the kernel would reset the connection",
	"mark/from-proxy":           "the proxy forwards an inbound connection with the client's address as its source",
	"mark/self-call-":           selfCallReason,
	"mark/answer":               "the application replies to the client's address, but the proxy's socket must receive the reply",
	"tproxy/mark-established":   "packets of a connection to Envoy are delivered locally, whatever their destination address",
	"tproxy/established":        "the connection already has a socket",
	"tproxy/inbound-":           "inbound connections are delivered to Envoy's port {redirect} with unchanged addresses",
	"tproxy/answer":             "replies on a connection that bypassed the proxy are delivered to the client",
	"tproxy/save-mark":          "the saved mark later routes the application's replies to the proxy's socket",
	"tproxy/passthrough-":       "the proxy and the agent connect to the application from {from}",
	"tproxy/local":              "traffic between processes of the pod is not captured, except the proxy's calls to its own pod",
	"refuse/hook-inbound":       "inbound connections are checked",
	"refuse/hook-outbound":      "all outbound traffic is checked",
	"refuse/hook-virtual-":      "traffic that arrives from {in} is treated as outbound",
	"refuse/hook-here-":         "traffic that arrives from {in} is treated as outbound, even if its destination is this pod",
}

const (
	selfCallReason    = "a call of the application to its own service returns through the proxy, and the inbound policy must apply to it"
	uncapturedReason  = "the query is not captured and uses the conntrack zone of the resolver's response"
	establishedReason = "the connection was captured when it was opened"
	refusedReason     = "connections that would be captured are rejected, because the proxy does not support this address family"
)

// SetReasons sets the reason of each rule of a known kind. Compile calls it. Callers that read rules from the kernel
// must call it too, because the kernel does not store reasons.
func SetReasons(rules *RuleSet) {
	for _, c := range rules.Chains {
		for i := range c.Rules {
			c.Rules[i].Reason = reasonOf(&c.Rules[i])
		}
	}
}

func reasonOf(r *Rule) string {
	kind := kindOfRule(r.ID)
	id, refusing := strings.CutPrefix(r.ID, "refuse/")
	if kind == "" && refusing {
		kind = kindOfRule(id)
	}
	switch {
	case kind == "":
		return ""
	case r.Verdict.Action == Reject:
		return refusedReason
	case r.Verdict.Chain == chainDivert:
		return establishedReason
	}
	text := fillReason(reasons[kind], r)
	if refusing { // the rule has the same conditions but another verdict
		text = strings.NewReplacer("are captured", "are rejected", "is captured", "is rejected", "are redirected to the agent's resolver", "are rejected").Replace(text)
	}
	return text
}

// kindOfRule returns the longest key of reasons that is a prefix of the rule ID. It returns "" if there is none.
func kindOfRule(id string) (kind string) {
	for k := range reasons {
		if strings.HasPrefix(id, k) && len(k) > len(kind) {
			kind = k
		}
	}
	return kind
}

var brace = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\{[a-z]+\}`) })

func fillReason(text string, r *Rule) string {
	if !strings.Contains(text, "{") {
		return text
	}
	m := &r.Match
	return brace().ReplaceAllStringFunc(text, func(word string) string {
		switch word {
		case "{in}":
			return m.InInterface
		case "{out}":
			return m.OutInterface
		case "{from}":
			return joined(m.Source, plainPrefix)
		case "{to}":
			return joined(m.Destination, plainPrefix)
		case "{gid}":
			return joined(m.GIDs, decimal)
		case "{redirect}":
			return portText(r.Verdict.Port)
		}
		return portsText(m.DestinationPorts)
	})
}

func portsText(list []PortRange) string {
	text := joined(list, PortRange.String)
	if strings.ContainsAny(text, ",-") {
		return "ports " + text
	}
	return "port " + text
}
