package translate

import (
	xdscorev3 "github.com/cncf/xds/go/xds/core/v3"
	xdsmatcherv3 "github.com/cncf/xds/go/xds/type/matcher/v3"
	transformstatv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/matching/actions/transform_stat/v3"
	statsinputv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/matching/common_inputs/stats/v3"
	"google.golang.org/protobuf/proto"

	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
)

// unknown is the value of a label that nothing is known of; of a revision that is latest.
const (
	unknown = "unknown"
	latest  = "latest"
)

// grpcOrHTTP tells the two apart by the content's type.
var grpcOrHTTP = tagRules(setTag("http"), startsWith("application/grpc"), "grpc")

// known is a command, or what a listener says of the unknown where it has no value. (Rules that say so too are three times
// as large, and are asked for every request.)
func known(command, parameter, otherwise string) string {
	operator := `"` + command + `"`
	if parameter != "" {
		operator = `{"command":"` + command + `","param":"` + parameter + `"}`
	}
	return `%COALESCE({"operators":[` + operator + `,{"command":"METADATA","param":"LISTENER:` + peerMetadata + `:` + otherwise + `"}]})%`
}

func startsWith(text string) *xdsmatcherv3.StringMatcher {
	return &xdsmatcherv3.StringMatcher{MatchPattern: &xdsmatcherv3.StringMatcher_Prefix{Prefix: text}}
}

func extension(name string, config proto.Message) *xdscorev3.TypedExtensionConfig {
	return &xdscorev3.TypedExtensionConfig{Name: name, TypedConfig: anyOf(config)}
}

func setTag(value string) *xdsmatcherv3.Matcher_OnMatch {
	return &xdsmatcherv3.Matcher_OnMatch{OnMatch: &xdsmatcherv3.Matcher_OnMatch_Action{
		Action: extension("s", &transformstatv3.TransformStat{UpdateTag: &transformstatv3.TransformStat_UpdateTag{NewTagValue: value}}),
	}}
}

// tagRules replace a label's value that matches, and, if otherwise is given, every other.
func tagRules(otherwise *xdsmatcherv3.Matcher_OnMatch, match *xdsmatcherv3.StringMatcher, value string) *xdsmatcherv3.Matcher {
	predicate := &xdsmatcherv3.Matcher_MatcherList_Predicate{MatchType: &xdsmatcherv3.Matcher_MatcherList_Predicate_SinglePredicate_{
		SinglePredicate: &xdsmatcherv3.Matcher_MatcherList_Predicate_SinglePredicate{
			Input:   extension("v", &statsinputv3.StatTagValueInput{}),
			Matcher: &xdsmatcherv3.Matcher_MatcherList_Predicate_SinglePredicate_ValueMatch{ValueMatch: match},
		},
	}}
	return &xdsmatcherv3.Matcher{
		OnNoMatch: otherwise,
		MatcherType: &xdsmatcherv3.Matcher_MatcherList_{MatcherList: &xdsmatcherv3.Matcher_MatcherList{
			Matchers: []*xdsmatcherv3.Matcher_MatcherList_FieldMatcher{{Predicate: predicate, OnMatch: setTag(value)}},
		}},
	}
}

// tags are the labels of a chain's metrics. opening: they are made when a connection opens, when no more is known of the
// caller than its address.
func (v view) tags(c chain, opening bool) []tag {
	var out []tag
	if c.side == inboundSide {
		out = append(out, tag{name: "reporter", format: "destination", histograms: true})
		out = append(out, v.callerTags(c, opening)...)
		out = append(out, v.ownTags("destination")...)
		out = append(out, v.ownServiceTags(c.port)...)
		security := "none"
		if c.mtls {
			security = "mutual_tls"
		}
		out = append(out, tag{name: "connection_security_policy", format: security, histograms: true})
	} else {
		out = append(out, tag{name: "reporter", format: "source", histograms: true})
		out = append(out, v.ownTags("source")...)
		out = append(out, calledTags()...)
		out = append(out, tag{name: "connection_security_policy", format: unknown, histograms: true})
	}
	if c.side == inboundSide && c.mtls && !opening {
		out = append(out, tag{name: "destination_principal", format: "%DOWNSTREAM_LOCAL_URI_SAN%"})
	} else if c.side == inboundSide {
		out = append(out, tag{name: "destination_principal", format: unknown})
	}
	return append(out, protocolTags(c)...)
}

func protocolTags(c chain) []tag {
	out := []tag{{name: "response_flags", format: "%RESPONSE_FLAGS%"}}
	if !c.requests {
		return append(out, tag{name: "request_protocol", format: "tcp"})
	}
	protocol := tag{name: "request_protocol", format: "%REQ(CONTENT-TYPE)%", rules: grpcOrHTTP}
	if c.protocol == registry.GRPC {
		protocol.format, protocol.rules = "grpc", nil
	}
	return append(out, protocol,
		tag{name: "response_code", format: "%RESPONSE_CODE%", histograms: true},
		tag{name: "grpc_response_status", format: "%GRPC_STATUS_NUMBER%"})
}

// ownTags are those of the proxy's own workload.
func (v view) ownTags(side string) []tag {
	self := v.p.peer()
	var out []tag
	for _, t := range []tag{
		{name: "workload", format: self.workload, histograms: true},
		{name: "workload_namespace", format: self.namespace, histograms: true},
		{name: "app", format: self.app},
		{name: "version", format: self.version},
		{name: "canonical_service", format: self.service},
		{name: "canonical_revision", format: self.revision},
		{name: "cluster", format: self.cluster},
	} {
		t.name, t.format = side+"_"+t.name, orElse(t.format, unknown)
		out = append(out, t)
	}
	return out
}

// ownServiceTags name the service that a port of the workload belongs to.
func (v view) ownServiceTags(port uint32) []tag {
	host, name, namespace := unknown, unknown, orElse(v.p.Namespace, unknown)
	if svc := v.inboundService(port); svc != nil {
		host, name, namespace = svc.Hostname, svc.Name, svc.Namespace
	}
	return []tag{
		{name: "destination_service", format: host, histograms: true},
		{name: "destination_service_name", format: name, histograms: true},
		{name: "destination_service_namespace", format: namespace, histograms: true},
	}
}

// inboundService is the first service, by name, that a port of the workload belongs to.
func (v view) inboundService(number uint32) *registry.Service {
	if number == 0 {
		return nil
	}
	for _, svc := range v.s.LocalServices(v.p.Namespace, v.p.Labels) {
		for _, port := range svc.Ports {
			if v.targetPort(svc, port) == number {
				return svc
			}
		}
	}
	return nil
}

// calledTags tell what was called, as the endpoints and the clusters say.
func calledTags() []tag {
	var out []tag
	for _, f := range peerFields {
		out = append(out, tag{name: "destination_" + f.label, format: known("UPSTREAM_METADATA", "istio:"+f.endpoint, f.unknown()), histograms: f.histograms})
	}
	for _, t := range []struct{ name, key string }{{"destination_service", "host"}, {"destination_service_name", "name"}, {"destination_service_namespace", "namespace"}} {
		out = append(out, tag{name: t.name, format: known("CLUSTER_METADATA", "istio:"+t.key, unknown), histograms: true})
	}
	return append(out,
		tag{name: "destination_principal", format: known("UPSTREAM_PEER_URI_SAN", "", unknown)},
		tag{name: "source_principal", format: known("UPSTREAM_LOCAL_URI_SAN", "", unknown)})
}

// callerTags tell who called: what its certificate proves, and what it says of itself beside that. Nobody's word is taken
// outside of mutual TLS, nor by Envoys that cannot bound how many names it makes.
func (v view) callerTags(c chain, opening bool) []tag {
	var out []tag
	told := v.takesPeer(c.traffic) && c.requests && v.p.atLeast(1, 40)
	for _, f := range peerFields {
		t := tag{name: "source_" + f.label, format: f.unknown(), histograms: f.histograms}
		if told {
			t.format = "%DYNAMIC_METADATA(" + peerMetadata + ":" + f.key + "):253%"
		}
		out = append(out, t)
	}
	principal := tag{name: "source_principal", format: unknown}
	if c.mtls && !opening {
		principal.format = "%DOWNSTREAM_PEER_URI_SAN%"
	}
	return append(out, principal)
}
