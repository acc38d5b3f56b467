package describe

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	extensions "istio.io/api/extensions/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
	networkingbeta "istio.io/api/networking/v1beta1"
	security "istio.io/api/security/v1beta1"
	telemetryv1 "istio.io/api/telemetry/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
)

// applies reports whether a document applies to a workload with these labels. own is set if the document is in the
// workload's namespace.
func applies(r *config.Resource, own bool, labels map[string]string) bool {
	switch spec := r.Spec.(type) {
	case *security.RequestAuthentication:
		return snapshot.PolicyApplies(spec, own, labels)
	case *telemetryv1.Telemetry:
		return snapshot.PolicyApplies(spec, own, labels)
	case *extensions.WasmPlugin:
		return snapshot.PolicyApplies(spec, own, labels)
	case *networking.EnvoyFilter:
		return snapshot.FilterApplies(spec, own, labels)
	case *networkingbeta.ProxyConfig:
		selector := spec.GetSelector().GetMatchLabels()
		return (own || len(selector) == 0) && snapshot.Selects(selector, labels)
	}
	return false
}

// otherText describes the effect of a document that is not a traffic rule.
func otherText(r *config.Resource) []string {
	switch spec := r.Spec.(type) {
	case *security.RequestAuthentication:
		return append(targetText(spec), requestAuthenticationText(spec)...)
	case *telemetryv1.Telemetry:
		return append(targetText(spec), telemetryText(spec)...)
	case *extensions.WasmPlugin:
		return append(targetText(spec), pluginText(spec)...)
	case *networking.EnvoyFilter:
		return append(selectorText(spec.GetWorkloadSelector().GetLabels()), patchText(spec)...)
	case *networkingbeta.ProxyConfig:
		return append(selectorText(spec.GetSelector().GetMatchLabels()), proxyConfigText(spec)...)
	}
	return nil
}

func requestAuthenticationText(spec *security.RequestAuthentication) []string {
	var out []string
	for _, rule := range spec.GetJwtRules() {
		words := "tokens of " + cmp.Or(rule.GetIssuer(), "any issuer") + " are verified"
		if list := rule.GetAudiences(); len(list) > 0 {
			words += ", for " + strings.Join(list, " or ")
		}
		switch {
		case rule.GetJwks() != "":
			words += ", with the keys in the document"
		case rule.GetJwksUri() != "":
			words += ", with keys from " + rule.GetJwksUri()
		default:
			words += ", with keys from the URL in the issuer's discovery document"
		}
		out = append(out, words)
	}
	return append(out, "requests with an invalid token are refused; requests without a token are refused only if an AuthorizationPolicy requires one")
}

func telemetryText(spec *telemetryv1.Telemetry) []string {
	var out []string
	for _, log := range spec.GetAccessLogging() {
		words := "access log" + modeText(log.GetMatch().GetMode())
		if log.GetDisabled().GetValue() {
			out = append(out, words+": none")
			continue
		}
		var names []string
		for _, p := range log.GetProviders() {
			names = append(names, p.GetName())
		}
		if len(names) > 0 {
			words += ", provider " + strings.Join(names, ", ")
		}
		if filter := log.GetFilter().GetExpression(); filter != "" {
			words += ", requests with " + filter
		}
		out = append(out, words)
	}
	for _, tracing := range spec.GetTracing() {
		words := "traces" + modeText(tracing.GetMatch().GetMode())
		for _, p := range tracing.GetProviders() {
			words += ", provider " + p.GetName()
		}
		if tracing.GetDisableSpanReporting().GetValue() {
			words += ": spans are not reported"
		} else if sampled := tracing.GetRandomSamplingPercentage(); sampled != nil {
			words += fmt.Sprintf(", %g%% of the requests", sampled.GetValue())
		}
		out = append(out, words)
	}
	for _, m := range spec.GetMetrics() {
		for _, o := range m.GetOverrides() {
			out = append(out, overrideText(o))
		}
	}
	return out
}

func modeText[M ~int32](mode M) string {
	switch telemetryv1.WorkloadMode(mode) {
	case telemetryv1.WorkloadMode_CLIENT:
		return " for outbound traffic"
	case telemetryv1.WorkloadMode_SERVER:
		return " for inbound traffic"
	}
	return ""
}

func overrideText(o *telemetryv1.MetricsOverrides) string {
	name := "all metrics"
	if custom := o.GetMatch().GetCustomMetric(); custom != "" {
		name = "metric " + custom
	} else if metric := o.GetMatch().GetMetric(); metric != telemetryv1.MetricSelector_ALL_METRICS {
		name = "metric " + metric.String()
	}
	name += modeText(o.GetMatch().GetMode())
	if o.GetDisabled().GetValue() {
		return name + ": disabled"
	}
	var tags []string
	for _, tag := range slices.Sorted(maps.Keys(o.GetTagOverrides())) {
		change := o.GetTagOverrides()[tag]
		if change.GetOperation() == telemetryv1.MetricsOverrides_TagOverride_REMOVE {
			tags = append(tags, "without "+tag)
		} else {
			tags = append(tags, tag+" is "+change.GetValue())
		}
	}
	return name + ": " + joinAll(tags, "as usual")
}

func pluginText(spec *extensions.WasmPlugin) []string {
	words := "requests pass through the Wasm module " + spec.GetUrl()
	if spec.GetType() == extensions.PluginType_NETWORK {
		words = "connections pass through the Wasm module " + spec.GetUrl()
	}
	if phase := spec.GetPhase(); phase != extensions.PluginPhase_UNSPECIFIED_PHASE {
		words += ", in phase " + phase.String()
	}
	switch spec.GetFailStrategy() {
	case extensions.FailStrategy_FAIL_OPEN:
		words += "; they are forwarded even if the module cannot be loaded"
	default:
		words += "; they are refused if the module cannot be loaded"
	}
	out := []string{words}
	for _, m := range spec.GetMatch() {
		var parts []string
		for _, p := range m.GetPorts() {
			parts = append(parts, fmt.Sprintf("on port %d", p.GetNumber()))
		}
		out = append(out, "only"+modeText(m.GetMode())+" "+joinAny(parts, "on all ports"))
	}
	return out
}

func patchText(spec *networking.EnvoyFilter) []string {
	var out []string
	for _, p := range spec.GetConfigPatches() {
		words := fmt.Sprintf("%s of %s", p.GetPatch().GetOperation(), p.GetApplyTo())
		if context := p.GetMatch().GetContext(); context != networking.EnvoyFilter_ANY {
			words += ", " + context.String()
		}
		switch m := p.GetMatch().GetObjectTypes().(type) {
		case *networking.EnvoyFilter_EnvoyConfigObjectMatch_Listener:
			if n := m.Listener.GetPortNumber(); n != 0 {
				words += fmt.Sprintf(", port %d", n)
			}
			words += nameText("filter", m.Listener.GetFilterChain().GetFilter().GetName()) + nameText("before or after", m.Listener.GetFilterChain().GetFilter().GetSubFilter().GetName())
		case *networking.EnvoyFilter_EnvoyConfigObjectMatch_Cluster:
			words += nameText("service", m.Cluster.GetService()) + nameText("cluster", m.Cluster.GetName())
		case *networking.EnvoyFilter_EnvoyConfigObjectMatch_RouteConfiguration:
			words += nameText("routes", m.RouteConfiguration.GetName()) + nameText("host", m.RouteConfiguration.GetVhost().GetName())
		}
		if name := p.GetPatch().GetValue().GetFields()["name"].GetStringValue(); name != "" {
			words += ": " + name
		}
		out = append(out, words)
	}
	return out
}

func nameText(what, name string) string {
	if name == "" {
		return ""
	}
	return ", " + what + " " + name
}

func proxyConfigText(spec *networkingbeta.ProxyConfig) []string {
	var out []string
	if n := spec.GetConcurrency(); n != nil {
		out = append(out, fmt.Sprintf("%d worker threads when the proxy starts (0: one per CPU)", n.GetValue()))
	}
	for _, name := range slices.Sorted(maps.Keys(spec.GetEnvironmentVariables())) {
		// The value is omitted, because it may be confidential.
		out = append(out, "the environment variable "+name+" when the proxy starts")
	}
	return out
}
