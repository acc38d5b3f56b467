package config

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// ignoredField describes a field that has no effect.
type ignoredField struct {
	reason string
	remedy string
	// unsafe: the field restricts access, so a document that sets it is refused.
	unsafe bool
	// started: the field has an effect if the control plane starts the proxies itself.
	started bool
}

const noSubstitute = "remove the field, unless another mesh uses the document"

// ignoredFields are the fields of Istio's API that are read and have no effect in this version. A document that sets
// one is in force, with a warning for the field, unless the field is unsafe. Fields whose effect depends on their value
// or on other documents are reported by the code that applies them.
var ignoredFields = map[protoreflect.FullName]ignoredField{
	"istio.networking.v1alpha3.HTTPFaultInjection.Delay.exponential_delay": {remedy: "use fixedDelay"},

	"istio.networking.v1alpha3.ServerTLSSettings.insecure_skip_verify": {reason: ": clients with an invalid certificate are refused anyway", remedy: "remove it; mode OPTIONAL_MUTUAL accepts clients without a certificate"},

	"istio.networking.v1alpha3.WorkloadEntry.network": {reason: ": all networks are assumed to reach each other", remedy: noSubstitute},

	"istio.mesh.v1alpha1.MeshConfig.CertificateData.spiffe_bundle_url": {reason: ": the control plane fetches no trust bundles, so the certificates of this bundle are not trusted", remedy: "put its certificates into pem"},
	"istio.mesh.v1alpha1.MeshConfig.CertificateData.trust_domains":     {reason: ": the roots are trusted for identities of all trust domains of the mesh", remedy: noSubstitute},
	"istio.mesh.v1alpha1.MeshConfig.CertificateData.cert_signers":      {reason: ": all agents receive the roots", remedy: noSubstitute},

	"istio.mesh.v1alpha1.MeshConfig.ExtensionProvider.OpenTelemetryTracingProvider.resource_detectors":           {remedy: noSubstitute},
	"istio.mesh.v1alpha1.MeshConfig.ExtensionProvider.OpenTelemetryTracingProvider.service_attribute_enrichment": {remedy: noSubstitute},
	"istio.mesh.v1alpha1.MeshConfig.ExtensionProvider.OpenTelemetryTracingProvider.dynatrace_sampler":            {remedy: "set randomSamplingPercentage in a Telemetry"},
	"istio.mesh.v1alpha1.MeshConfig.ExtensionProvider.HttpHeader.env_name":                                       {reason: ": the control plane does not know the environment variables of proxies, so the header is empty", remedy: "set value"},

	"istio.telemetry.v1alpha1.Metrics.reporting_interval":        {reason: ": connections are counted when they open and close", remedy: noSubstitute},
	"istio.extensions.v1alpha1.WasmPlugin.verification_key":      {reason: ": a module without its signature would run", remedy: "pin the module by sha256", unsafe: true},
	"istio.networking.v1beta1.ProxyConfig.environment_variables": {reason: ": a proxy has the environment of its agent, and this control plane does not start agents", remedy: "set them for the agent", started: true},
	"istio.networking.v1beta1.ProxyConfig.image":                 {reason: ": this control plane does not inject sidecars", remedy: noSubstitute},
	"istio.networking.v1beta1.ProxyConfig.concurrency":           {reason: ": agents read it when they start, before they reach a control plane", remedy: "set it in the agent's ProxyConfig (the annotation proxy.istio.io/config, or PROXY_CONFIG)", started: true},
}

// findIgnoredFields returns a warning for each field without effect that m or one of its submessages sets.
func findIgnoredFields(m protoreflect.Message, path string) []Problem {
	var out []Problem
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		fd := fields.Get(i)
		if !m.Has(fd) {
			continue
		}
		at := strings.TrimPrefix(path+"."+fd.JSONName(), ".")
		if note, ok := ignoredFields[fd.FullName()]; ok {
			out = append(out, Problem{Severity: Warning, Code: NoEffect, Field: at, Message: "has no effect in this version" + note.reason, Remedy: note.remedy})
		}
		switch {
		case fd.Message() == nil || fd.IsMap():
		case fd.IsList():
			for j := range m.Get(fd).List().Len() {
				out = append(out, findIgnoredFields(m.Get(fd).List().Get(j).Message(), fmt.Sprintf("%s[%d]", at, j))...)
			}
		default:
			out = append(out, findIgnoredFields(m.Get(fd).Message(), at)...)
		}
	}
	return out
}
