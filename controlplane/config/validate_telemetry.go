package config

import (
	"maps"
	"regexp"
	"slices"
	"strings"

	telemetry "istio.io/api/telemetry/v1alpha1"
)

func validateTelemetry(s scope, t *telemetry.Telemetry) {
	s.field("selector").selector(t.GetSelector())
	s.targets(t.GetSelector(), t.GetTargetRef(), t.GetTargetRefs())
	for i, rule := range t.GetAccessLogging() {
		at := s.item("accessLogging", i)
		at.providers(rule.GetProviders())
		if f := rule.GetFilter(); f != nil {
			at.field("filter").field("expression").cel(f.GetExpression())
		}
	}
	for i, rule := range t.GetTracing() {
		s.item("tracing", i).tracing(rule)
	}
	for i, rule := range t.GetMetrics() {
		s.item("metrics", i).metrics(rule)
	}
}

func (s scope) providers(refs []*telemetry.ProviderRef) {
	for i, ref := range refs {
		if ref.GetName() == "" {
			s.item("providers", i).field("name").refuse("", "no name", "name one of MeshConfig's extensionProviders")
		}
	}
}

// cel checks an expression.
func (s scope) cel(expression string) {
	if err := CheckCEL(expression); err != nil {
		s.refuse(expression, "not an expression that proxies take: "+err.Error(), "write it in CEL, as in response.code >= 400")
		return
	}
	if name := unknownCELRoot(expression); name != "" {
		s.warn(expression, name+" is no attribute that proxies have: it never has a value", "use request, response, connection, source, destination, upstream, metadata or filter_state")
	}
}

func (s scope) tracing(rule *telemetry.Tracing) {
	s.providers(rule.GetProviders())
	if len(rule.GetProviders()) > 1 {
		s.field("providers").refuse("", "traces go to one provider", "keep one")
	}
	if p := rule.GetRandomSamplingPercentage(); p != nil {
		s.field("randomSamplingPercentage").percent(p.GetValue())
	}
	for _, name := range slices.Sorted(maps.Keys(rule.GetCustomTags())) {
		at := s.field("customTags").key(name)
		if name == "" {
			at.refuse("", "a tag without a name", "name it")
		}
		at.customTag(rule.GetCustomTags()[name])
	}
}

func (s scope) customTag(tag *telemetry.Tracing_CustomTag) {
	switch t := tag.GetType().(type) {
	case *telemetry.Tracing_CustomTag_Literal:
		s.field("literal").field("value").needed(t.Literal.GetValue())
	case *telemetry.Tracing_CustomTag_Environment:
		s.field("environment").field("name").needed(t.Environment.GetName())
	case *telemetry.Tracing_CustomTag_Header:
		s.field("header").field("name").headerName(t.Header.GetName())
	case *telemetry.Tracing_CustomTag_Formatter:
		at := s.field("formatter").field("value")
		at.needed(t.Formatter.GetValue())
		if err := CheckLogFormat(t.Formatter.GetValue()); err != nil {
			at.refuse(t.Formatter.GetValue(), err.Error(), "use the commands of Envoy's access logs")
		}
	default:
		s.refuse("", "a tag without a value", "give it literal, environment, header or formatter")
	}
}

func (s scope) needed(value string) {
	if value == "" {
		s.refuse("", "is needed", "give it")
	}
	if strings.ContainsAny(value, "\r\n\x00") {
		s.refuse(value, "must not have line breaks", "write it on one line")
	}
}

// tagNamePattern is what Prometheus takes for a label's name.
var tagNamePattern = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*$`)

func (s scope) metrics(rule *telemetry.Metrics) {
	s.providers(rule.GetProviders())
	for i, o := range rule.GetOverrides() {
		at := s.item("overrides", i)
		if custom := o.GetMatch().GetCustomMetric(); custom != "" {
			at.field("match").field("customMetric").warn(custom, "has no effect: there are the mesh's standard metrics only", "match by metric")
		}
		switch metric := o.GetMatch().GetMetric(); metric {
		case telemetry.MetricSelector_GRPC_REQUEST_MESSAGES, telemetry.MetricSelector_GRPC_RESPONSE_MESSAGES:
			at.field("match").field("metric").noEffect(metric, "has no effect: messages of gRPC are not counted", "remove it; calls are counted as requests")
		}
		for _, tag := range slices.Sorted(maps.Keys(o.GetTagOverrides())) {
			at.field("tagOverrides").key(tag).tagOverride(tag, o.GetTagOverrides()[tag])
		}
	}
}

func (s scope) tagOverride(tag string, o *telemetry.MetricsOverrides_TagOverride) {
	if !tagNamePattern.MatchString(tag) {
		s.refuse(tag, "not a name that a metric's label can have", "use letters, digits and underscores")
	}
	switch value := o.GetValue(); {
	case o.GetOperation() == telemetry.MetricsOverrides_TagOverride_REMOVE:
		if value != "" {
			s.field("value").refuse(value, "a tag that is removed has no value", "remove the value, or the operation")
		}
	case value == "":
		s.field("value").refuse("", "a tag needs a value", "give a CEL expression, or set operation: REMOVE")
	default:
		s.field("value").cel(TagExpression(value))
	}
}

// TagExpression takes string() off a tag's value: tags are text anyhow, and proxies have no such function.
func TagExpression(value string) string {
	value = strings.TrimSpace(value)
	if inner, ok := strings.CutPrefix(value, "string("); ok && strings.HasSuffix(inner, ")") && CheckCEL(inner[:len(inner)-1]) == nil {
		return strings.TrimSpace(inner[:len(inner)-1])
	}
	return value
}
