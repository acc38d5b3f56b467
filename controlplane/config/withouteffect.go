package config

import "google.golang.org/protobuf/reflect/protoreflect"

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

	"istio.networking.v1alpha3.WorkloadEntry.network": {why: ": all networks are taken to reach one another", remedy: noSubstitute},

	"istio.telemetry.v1alpha1.Metrics.reporting_interval":        {why: ": connections are counted when they open, and when they end", remedy: noSubstitute},
	"istio.extensions.v1alpha1.WasmPlugin.verification_key":      {why: ": a module without its signature would run", remedy: "pin the module by sha256", unsafe: true},
	"istio.networking.v1beta1.ProxyConfig.environment_variables": {why: ": the environment of a proxy is its agent's, which this control plane does not start", remedy: "set them for the agent", started: true},
	"istio.networking.v1beta1.ProxyConfig.image":                 {why: ": nothing is injected here", remedy: noSubstitute},
	"istio.networking.v1beta1.ProxyConfig.concurrency":           {why: ": agents read it when they start, before they reach a control plane", remedy: "set it in the agent's ProxyConfig (the annotation proxy.istio.io/config, or PROXY_CONFIG)", started: true},
}
