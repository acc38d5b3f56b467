package meshedit

import "github.com/pilotfish-mesh/pilotfish/controlplane/config"

// snippet is a document of which there are several versions.
type snippet struct {
	kind             config.Kind
	group, namespace string
	name             string
	versions         []object
}

const (
	telemetry  = "telemetry.istio.io/v1"
	extensions = "extensions.istio.io/v1alpha1"
)

// snippets are documents of kinds that nothing else here needs to know of.
var snippets = []snippet{
	{config.RequestAuthentication, security, "ns0", "jwt", []object{
		{"jwtRules": []any{object{"issuer": "one", "jwks": `{"keys":[]}`}}},
		{"selector": object{"matchLabels": object{"app": "s0"}}, "jwtRules": []any{object{"issuer": "two", "jwks": `{"keys":[]}`, "fromParams": []any{"t"}}}},
	}},
	{config.RequestAuthentication, security, "istio-system", "jwt", []object{
		{"jwtRules": []any{object{"issuer": "root", "jwks": `{"keys":[]}`, "forwardOriginalToken": true}}},
	}},
	{config.Telemetry, telemetry, "istio-system", "all", []object{
		{"accessLogging": []any{object{"disabled": true}}},
		{"tracing": []any{object{"randomSamplingPercentage": 10}}},
	}},
	{config.Telemetry, telemetry, "ns1", "mine", []object{
		{"accessLogging": []any{object{"providers": []any{object{"name": "envoy"}}}}},
		{"selector": object{"matchLabels": object{"app": "s1"}}, "metrics": []any{object{"overrides": []any{object{"disabled": true}}}}},
	}},
	{config.EnvoyFilter, "networking.istio.io/v1alpha3", "ns0", "patch", []object{
		{"configPatches": []any{object{"applyTo": "CLUSTER", "match": object{"context": "SIDECAR_OUTBOUND"},
			"patch": object{"operation": "MERGE", "value": object{"connect_timeout": "7s"}}}}},
		{"workloadSelector": object{"labels": object{"app": "s0"}}, "configPatches": []any{object{"applyTo": "VIRTUAL_HOST",
			"match": object{"context": "SIDECAR_OUTBOUND"}, "patch": object{"operation": "MERGE", "value": object{"include_request_attempt_count": true}}}}},
	}},
	{config.EnvoyFilter, "networking.istio.io/v1alpha3", "istio-system", "patch", []object{
		{"configPatches": []any{object{"applyTo": "NETWORK_FILTER", "match": object{"context": "SIDECAR_INBOUND",
			"listener": object{"filterChain": object{"filter": object{"name": "envoy.filters.network.http_connection_manager"}}}},
			"patch": object{"operation": "MERGE", "value": object{"typed_config": object{
				"@type":                        "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
				"server_header_transformation": "PASS_THROUGH"}}}}}},
	}},
	{config.WasmPlugin, extensions, "ns1", "plugin", []object{
		{"url": "oci://registry.invalid/plugin:v1", "phase": "AUTHN"},
		{"url": "oci://registry.invalid/plugin:v2", "phase": "STATS", "selector": object{"matchLabels": object{"app": "s1"}}},
	}},
	{config.ProxyConfig, "networking.istio.io/v1beta1", "ns0", "config", []object{{"concurrency": 1}, {"concurrency": 2}}},
	{config.WorkloadGroup, networking, "ns2", "group", []object{
		{"template": object{"serviceAccount": "s2"}}, {"metadata": object{"labels": object{"app": "s2"}}, "template": object{"serviceAccount": "s2"}},
	}},
}

func (m *Mesh) editSnippet() (Edit, bool) {
	s := pick(m, snippets)
	if m.oneIn(3) {
		return m.remove(s.kind, s.namespace, s.name)
	}
	return m.put(s.kind, s.group, s.namespace, s.name, pick(m, s.versions))
}
