package config

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// note says more of a field that has no effect here.
type note struct {
	why    string
	remedy string
	// unsafe fields are refused: without their effect a door would stand open that the author believes shut.
	unsafe bool
	// started fields have an effect where the control plane's own mesh starts the proxies.
	started bool
}

const noSubstitute = "remove it, or keep it for a mesh that supports it"

// withoutEffect are the fields of Istio's API that are read and have no effect in this version. A document with one is in
// force, and its author is told at the field. What depends on a field's value or on other documents is told by whoever
// gives the document its effect.
var withoutEffect = map[protoreflect.FullName]note{
	"istio.networking.v1alpha3.HTTPFaultInjection.Delay.exponential_delay": {remedy: "use fixedDelay"},

	"istio.networking.v1alpha3.ServerTLSSettings.insecure_skip_verify": {why: ": clients whose certificate cannot be verified are refused all the same", remedy: "remove it; mode OPTIONAL_MUTUAL lets clients without a certificate in"},

	"istio.networking.v1alpha3.WorkloadEntry.network": {why: ": all networks are taken to reach one another", remedy: noSubstitute},

	"istio.mesh.v1alpha1.MeshConfig.CertificateData.spiffe_bundle_url": {why: ": no bundles are fetched, and nobody trusts what is in this one", remedy: "put its certificates into pem"},
	"istio.mesh.v1alpha1.MeshConfig.CertificateData.trust_domains":     {why: ": the roots are trusted for identities of all trust domains that the mesh takes", remedy: noSubstitute},
	"istio.mesh.v1alpha1.MeshConfig.CertificateData.cert_signers":      {why: ": the roots are told to all agents", remedy: noSubstitute},

	"istio.mesh.v1alpha1.MeshConfig.ExtensionProvider.OpenTelemetryTracingProvider.resource_detectors":           {remedy: noSubstitute},
	"istio.mesh.v1alpha1.MeshConfig.ExtensionProvider.OpenTelemetryTracingProvider.service_attribute_enrichment": {remedy: noSubstitute},
	"istio.mesh.v1alpha1.MeshConfig.ExtensionProvider.OpenTelemetryTracingProvider.dynatrace_sampler":            {remedy: "set randomSamplingPercentage in a Telemetry"},
	"istio.mesh.v1alpha1.MeshConfig.ExtensionProvider.HttpHeader.env_name":                                       {why: ": the environment is that of proxies, whose agents this control plane does not start; the header is empty", remedy: "set value"},

	"istio.telemetry.v1alpha1.Metrics.reporting_interval":        {why: ": connections are counted when they open, and when they end", remedy: noSubstitute},
	"istio.extensions.v1alpha1.WasmPlugin.verification_key":      {why: ": a module without its signature would run", remedy: "pin the module by sha256", unsafe: true},
	"istio.networking.v1beta1.ProxyConfig.environment_variables": {why: ": the environment of a proxy is its agent's, which this control plane does not start", remedy: "set them for the agent", started: true},
	"istio.networking.v1beta1.ProxyConfig.image":                 {why: ": nothing is injected here", remedy: noSubstitute},
	"istio.networking.v1beta1.ProxyConfig.concurrency":           {why: ": agents read it when they start, before they reach a control plane", remedy: "set it in the agent's ProxyConfig (the annotation proxy.istio.io/config, or PROXY_CONFIG)", started: true},
}

// tellOfEffects gives the fields of a message, and of those in it, that are set and have no effect.
func tellOfEffects(m protoreflect.Message, path string) []Problem {
	var out []Problem
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		fd := fields.Get(i)
		if !m.Has(fd) {
			continue
		}
		at := strings.TrimPrefix(path+"."+fd.JSONName(), ".")
		if note, ok := withoutEffect[fd.FullName()]; ok {
			out = append(out, Problem{Severity: Warning, Code: NoEffect, Field: at, Message: "has no effect in this version" + note.why, Remedy: note.remedy})
		}
		switch {
		case fd.Message() == nil || fd.IsMap():
		case fd.IsList():
			for j := range m.Get(fd).List().Len() {
				out = append(out, tellOfEffects(m.Get(fd).List().Get(j).Message(), fmt.Sprintf("%s[%d]", at, j))...)
			}
		default:
			out = append(out, tellOfEffects(m.Get(fd).Message(), at)...)
		}
	}
	return out
}
