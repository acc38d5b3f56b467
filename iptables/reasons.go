package iptables

import (
	"regexp"
	"strings"
	"sync"
)

// reasons maps each kind of rule to its purpose. A rule's ID starts with its kind; the longest matching prefix is used.
// Text in braces is replaced by the rule's values, so rules that were read back have reasons too.
var reasons = map[string]string{
	"hook/nat-virtual-":    "what comes in from {in} is outbound traffic of a machine within the pod",
	"hook/nat-inbound":     "TCP connections that come in are looked at",
	"hook/nat-outbound":    "all that goes out is looked at, UDP too for DNS",
	"hook/raw-inbound":     "answers to DNS questions get their zone before connections are tracked",
	"hook/raw-outbound":    "DNS questions get their zone before connections are tracked",
	"hook/mangle-invalid":  "packets that belong to no connection are looked at",
	"hook/mangle-inbound":  "TCP that comes in is looked at",
	"hook/mangle-outbound": "TCP that goes out is looked at",

	"redirect/outbound": "outbound connections go to Envoy's port {redirect}",
	"redirect/inbound":  "inbound connections go to Envoy's port {redirect}",

	"inbound/exclude-interface-": "traffic of the interface {in} is excluded",
	"inbound/virtual-":           "what comes in from {in} is not inbound traffic",
	"inbound/tunnel":             "HBONE goes to Envoy directly, at {ports}",
	"inbound/exclude-port-":      "inbound connections to {ports} are excluded",
	"inbound/port-":              "inbound connections to {ports} are captured",
	"inbound/all":                "all other inbound connections are captured",
	"inbound/local":              "traffic within the pod is left alone",

	"outbound/exclude-interface-": "traffic of the interface {out} is excluded",
	"outbound/exclude-port-":      "outbound connections to {ports} are excluded",
	"outbound/passthrough-":       "Envoy passes an inbound connection on from {from}; captured again, it would come back for ever",
	"outbound/self-call-":         selfCallReason,
	"outbound/proxy-":             "the proxy's own traffic is not captured again",
	"outbound/exclude-group-":     "traffic of processes of group {gid} is excluded",
	"outbound/other-groups":       "only processes of the groups {gid} are captured",
	"outbound/dns":                "DNS is captured for the agent's resolver",
	"outbound/localhost-":         "the application means its own localhost",
	"outbound/local-":             "traffic from one application of the pod to another stays within it",
	"outbound/exclude-cidr-":      "connections to {to} are excluded",
	"outbound/port-":              "outbound connections to {ports} are captured",
	"outbound/all":                "all other outbound connections are captured",
	"outbound/cidr-":              "outbound connections to {to} are captured",

	"virtual/exclude-port-": "outbound connections to {ports} are excluded",
	"virtual/exclude-cidr-": "connections to {to} are excluded",
	"virtual/dns":           "DNS is captured for the agent's resolver",
	"virtual/port-":         "outbound connections to {ports} are captured",
	"virtual/all":           "all other outbound connections are captured",
	"virtual/cidr-":         "outbound connections to {to} are captured",

	"dns/":                      "DNS goes to the agent's resolver, on port {redirect}",
	"zone/question-of-proxy-":   "the agent's questions to resolvers are not applications'",
	"zone/answer-of-proxy-":     "the agent's answers belong to applications' questions",
	"zone/question-of-virtual-": "a virtual machine's questions go to the agent",
	"zone/question":             "applications' questions go to the agent",
	"zone/answer":               "answers of resolvers belong to the agent's questions",
	"zone/virtual-":             "a virtual machine's questions are passed on to the resolver, and their answers have to find back",
	"zone/exclude-interface-":   uncapturedReason,
	"zone/exclude-group-":       uncapturedReason,
	"zone/other-groups":         uncapturedReason,
	"invalid/drop":              "a packet outside of its connection's window would make the kernel reset the connection",
	"mark/from-proxy":           "the proxy passes an inbound connection on with the client's address",
	"mark/self-call-":           selfCallReason,
	"mark/answer":               "the application answers the client's address, and the proxy has the socket",
	"tproxy/mark-established":   "packets of a connection that Envoy holds are delivered here, whatever their destination",
	"tproxy/established":        "the connection has its socket already",
	"tproxy/inbound-":           "inbound connections go to Envoy's port {redirect}, addresses as they are",
	"tproxy/answer":             "it answers what went out past the proxy, and goes to who asked",
	"tproxy/save-mark":          "the application's answers have to find the socket with the client's address",
	"tproxy/passthrough-":       "the proxy and the agent speak to the application from {from}",
	"tproxy/local":              "what the proxy passes on, and what is said within the pod, stays there; its calls to its own pod aside",
	"refuse/hook-inbound":       "connections that come in are looked at",
	"refuse/hook-outbound":      "all that goes out is looked at",
	"refuse/hook-virtual-":      "what comes in from {in} is outbound traffic",
	"refuse/hook-here-":         "what comes in from {in} is outbound traffic, to this pod too",
}

const (
	selfCallReason    = "a call of the application to its own service's address comes back here through the proxy, and has to meet the inbound policy"
	uncapturedReason  = "the question is not captured, and its answer comes in the resolvers' zone"
	establishedReason = "the connection was captured when it began"
	refusedReason     = "what would be captured is refused, as the proxy does not take this address family"
)

// SetReasons sets the reason of each rule of a known kind. Compile sets reasons itself; rules that a back end read
// have none.
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
	if refusing { // the same conditions with a different verdict
		text = strings.NewReplacer("are captured", "are refused", "is captured", "is refused").Replace(text)
	}
	return text
}

// kindOfRule returns the longest kind that is a prefix of the ID.
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
		return "the ports " + text
	}
	return "port " + text
}
