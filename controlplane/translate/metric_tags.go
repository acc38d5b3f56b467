package translate

import (
	xdscorev3 "github.com/cncf/xds/go/xds/core/v3"
	xdsmatcherv3 "github.com/cncf/xds/go/xds/type/matcher/v3"
	transformstatv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/matching/actions/transform_stat/v3"
	statsinputv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/matching/common_inputs/stats/v3"
	"google.golang.org/protobuf/proto"

	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
)

// unknown is the value of a label for which there is no information. latest is the default of the revision label.
const (
	unknown = "unknown"
	latest  = "latest"
)

// grpcOrHTTP distinguishes gRPC and HTTP by the content type.
var grpcOrHTTP = tagRules(setTag("http"), startsWith("application/grpc"), "grpc")

// withFallback returns a format command that yields the value of command, or a default if the value is missing. The
// default is in the listener's metadata, under the key otherwise. Tag rules would have the same effect, but they would
// be three times as large and would run for each request.
func withFallback(command, parameter, otherwise string) string {
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

// tagRules returns rules for a label: a value that match matches is replaced by value. otherwise, if not nil, is the
// action for all other values.
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

// tags returns the labels of a chain's metrics. opening: the metric is recorded when a connection opens. At that time
// Envoy knows only the client's address.
func (v proxyView) tags(c chain, opening bool) []tag {
	var out []tag
	packs := v.packsLabels(c)
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
		out = append(out, calleeTags(packs)...)
		out = append(out, tag{name: "connection_security_policy", format: unknown, histograms: true})
	}
	if c.side == inboundSide && c.mtls && !opening {
		out = append(out, tag{name: "destination_principal", format: "%DOWNSTREAM_LOCAL_URI_SAN%"})
	} else if c.side == inboundSide {
		out = append(out, tag{name: "destination_principal", format: unknown})
	}
	return append(out, protocolTags(c, packs)...)
}

func protocolTags(c chain, packs bool) []tag {
	out := []tag{{name: "response_flags", format: "%RESPONSE_FLAGS%"}}
	if !c.requests {
		return append(out, tag{name: "request_protocol", format: "tcp"})
	}
	protocol := tag{name: "request_protocol", format: "%REQ(CONTENT-TYPE)%", rules: grpcOrHTTP}
	switch {
	case c.protocol == registry.GRPC:
		protocol.format, protocol.rules = "grpc", nil
	case packs: // the agent derives it from the gRPC status
		protocol.format, protocol.rules = "", nil
	}
	return append(out, protocol,
		tag{name: "response_code", format: "%RESPONSE_CODE%", histograms: true},
		tag{name: "grpc_response_status", format: "%GRPC_STATUS_NUMBER%"})
}

// ownTags returns the labels of the proxy's own workload.
func (v proxyView) ownTags(side string) []tag {
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

// ownServiceTags returns the labels of the service of a workload's port.
func (v proxyView) ownServiceTags(port uint32) []tag {
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

// inboundService returns the service of a workload's port. If several services have the port, it returns the first by
// name.
func (v proxyView) inboundService(number uint32) *registry.Service {
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

// serviceLabels are the labels of the upstream service, with their keys in the metadata of its clusters.
var serviceLabels = []struct{ name, key string }{
	{"destination_service", "host"}, {"destination_service_name", "name"}, {"destination_service_namespace", "namespace"},
}

// calleeTags returns the labels that describe the upstream service. Their values are from the metadata of the endpoint
// and the cluster.
func calleeTags(packs bool) []tag {
	if packs {
		return packedCalleeTags()
	}
	var out []tag
	for _, f := range peerFields {
		out = append(out, tag{name: "destination_" + f.label, format: withFallback("UPSTREAM_METADATA", "istio:"+f.endpoint, f.unknown()), histograms: f.histograms})
	}
	for _, l := range serviceLabels {
		out = append(out, tag{name: l.name, format: withFallback("CLUSTER_METADATA", "istio:"+l.key, unknown), histograms: true})
	}
	return append(out,
		tag{name: "destination_principal", format: withFallback("UPSTREAM_PEER_URI_SAN", "", unknown)},
		tag{name: "source_principal", format: withFallback("UPSTREAM_LOCAL_URI_SAN", "", unknown)})
}

// callerTags returns the labels that describe the client. Their values are from the identity in its certificate, and
// from its peer metadata. Peer metadata is used only with mutual TLS, and only by Envoy versions that can limit the
// number of series.
func (v proxyView) callerTags(c chain, opening bool) []tag {
	var out []tag
	trusted := v.trustsPeerHeader(c.traffic) && c.requests && v.p.isEnvoyAtLeast(1, 40)
	fields := peerFields
	if trusted && v.packsLabels(c) {
		out, fields = append(out, packedCallerTag()), nil
	}
	for _, f := range fields {
		t := tag{name: "source_" + f.label, format: f.unknown(), histograms: f.histograms}
		if trusted {
			t.format = "%DYNAMIC_METADATA(" + peerMetadata + ":" + f.key + "):253%"
		}
		out = append(out, t)
	}
	principal := tag{name: "source_principal", format: unknown, foreign: true}
	if c.mtls && !opening {
		principal.format = "%DOWNSTREAM_PEER_URI_SAN%"
	}
	return append(out, principal)
}
