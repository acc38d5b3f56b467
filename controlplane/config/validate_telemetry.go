package config

import (
	"maps"
	"regexp"
	"slices"
	"strings"

	telemetry "istio.io/api/telemetry/v1alpha1"
)

func validateTelemetry(s validator, t *telemetry.Telemetry) {
	s.field("selector").checkSelector(t.GetSelector())
	s.checkTargets(t.GetSelector(), t.GetTargetRef(), t.GetTargetRefs())
	for i, rule := range t.GetAccessLogging() {
		at := s.item("accessLogging", i)
		at.checkProviders(rule.GetProviders())
		if f := rule.GetFilter(); f != nil {
			at.field("filter").field("expression").checkCEL(f.GetExpression())
		}
	}
	for i, rule := range t.GetTracing() {
		s.item("tracing", i).checkTracing(rule)
	}
	for i, rule := range t.GetMetrics() {
		s.item("metrics", i).checkMetrics(rule)
	}
}

func (s validator) checkProviders(refs []*telemetry.ProviderRef) {
	for i, ref := range refs {
		if ref.GetName() == "" {
			s.item("providers", i).field("name").refuse("", "the name is missing", "set the name of one of MeshConfig's extensionProviders")
		}
	}
}

// checkCEL refuses an invalid CEL expression, and warns of names that are not attributes of Envoy.
func (s validator) checkCEL(expression string) {
	if err := CheckCEL(expression); err != nil {
		s.refuse(expression, "Envoy does not accept this expression: "+err.Error(), "write it in CEL, as in response.code >= 400")
		return
	}
	if name := unknownCELRoot(expression); name != "" {
		s.warn(expression, name+" is not an attribute of Envoy, so it never has a value", "use request, response, connection, source, destination, upstream, metadata or filter_state")
	}
}

func (s validator) checkTracing(rule *telemetry.Tracing) {
	s.checkProviders(rule.GetProviders())
	if len(rule.GetProviders()) > 1 {
		s.field("providers").refuse("", "Envoy can send traces to only one provider", "remove all providers except one")
	}
	if p := rule.GetRandomSamplingPercentage(); p != nil {
		s.field("randomSamplingPercentage").checkPercent(p.GetValue())
	}
	for _, name := range slices.Sorted(maps.Keys(rule.GetCustomTags())) {
		at := s.field("customTags").key(name)
		if name == "" {
			at.refuse("", "the tag has no name", "set the name of the tag")
		}
		at.checkCustomTag(rule.GetCustomTags()[name])
	}
}

func (s validator) checkCustomTag(tag *telemetry.Tracing_CustomTag) {
	switch t := tag.GetType().(type) {
	case *telemetry.Tracing_CustomTag_Literal:
		s.field("literal").field("value").checkRequired(t.Literal.GetValue())
	case *telemetry.Tracing_CustomTag_Environment:
		s.field("environment").field("name").checkRequired(t.Environment.GetName())
	case *telemetry.Tracing_CustomTag_Header:
		s.field("header").field("name").checkHeaderName(t.Header.GetName())
	case *telemetry.Tracing_CustomTag_Formatter:
		at := s.field("formatter").field("value")
		at.checkRequired(t.Formatter.GetValue())
		if err := CheckLogFormat(t.Formatter.GetValue()); err != nil {
			at.refuse(t.Formatter.GetValue(), err.Error(), "use the commands of Envoy's access logs")
		}
	default:
		s.refuse("", "the tag has no value", "set literal, environment, header or formatter")
	}
}

func (s validator) checkRequired(value string) {
	if value == "" {
		s.refuse("", "the value is missing", "set a value")
	}
	if strings.ContainsAny(value, "\r\n\x00") {
		s.refuse(value, "must not have line breaks", "write it on one line")
	}
}

// tagNamePattern matches a valid Prometheus label name.
var tagNamePattern = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*$`)

func (s validator) checkMetrics(rule *telemetry.Metrics) {
	s.checkProviders(rule.GetProviders())
	for i, o := range rule.GetOverrides() {
		at := s.item("overrides", i)
		if custom := o.GetMatch().GetCustomMetric(); custom != "" {
			at.field("match").field("customMetric").warn(custom, "has no effect, because proxies record only the standard metrics of the mesh", "match by metric")
		}
		switch metric := o.GetMatch().GetMetric(); metric {
		case telemetry.MetricSelector_GRPC_REQUEST_MESSAGES, telemetry.MetricSelector_GRPC_RESPONSE_MESSAGES:
			at.field("match").field("metric").warnNoEffect(metric, "has no effect, because proxies do not count gRPC messages", "remove it; proxies count gRPC calls as requests")
		}
		for _, tag := range slices.Sorted(maps.Keys(o.GetTagOverrides())) {
			at.field("tagOverrides").key(tag).checkTagOverride(tag, o.GetTagOverrides()[tag])
		}
	}
}

func (s validator) checkTagOverride(tag string, o *telemetry.MetricsOverrides_TagOverride) {
	if !tagNamePattern.MatchString(tag) {
		s.refuse(tag, "not a valid name of a metric label", "use letters, digits and underscores")
	}
	switch value := o.GetValue(); {
	case o.GetOperation() == telemetry.MetricsOverrides_TagOverride_REMOVE:
		if value != "" {
			s.field("value").refuse(value, "operation REMOVE does not allow a value", "remove the value, or the operation")
		}
	case value == "":
		s.field("value").refuse("", "a tag needs a value", "set a CEL expression, or set operation: REMOVE")
	default:
		s.field("value").checkCEL(TagExpression(value))
	}
}

// TagExpression removes the call string() around a tag's expression. Envoy does not have this function and does not
// need it: tags are always text.
func TagExpression(value string) string {
	value = strings.TrimSpace(value)
	if inner, ok := strings.CutPrefix(value, "string("); ok && strings.HasSuffix(inner, ")") && CheckCEL(inner[:len(inner)-1]) == nil {
		return strings.TrimSpace(inner[:len(inner)-1])
	}
	return value
}
