package snapshot

import (
	"maps"
	"slices"
	"strings"

	networkingbeta "istio.io/api/networking/v1beta1"
)

// metadataPrefix is the prefix of environment variables whose values agents send in the node's metadata.
const metadataPrefix = "ISTIO_META_"

// tenantVariables contains the agent's environment variables that ProxyConfigs outside the root namespace may set, in
// addition to node metadata. These variables tune a proxy. They select no program, file, address or identity, and
// disable no protection.
var tenantVariables = []string{
	"DNS_FORWARD_PARALLEL", "DNS_FORWARD_TIMEOUT", "DNS_TTL", "DRAIN_QUIET_PERIOD", "ENVOY_SILENCE_LIMIT", "EXIT_ON_ZERO_ACTIVE_CONNECTIONS", "ISTIO_DELTA_XDS",
	"METRICS_HTTPS_PORTS", "METRICS_LOCALHOST_ACCESS_ONLY", "MINIMUM_DRAIN_DURATION", "OTEL_RESOURCE_ATTRIBUTES",
	"PILOT_AGENT_MERGE_ENVOY_STATS", "UNREADY_AFTER_CONTROL_PLANE_LOSS", "WASM_HTTP_REQUEST_MAX_RETRIES", "WASM_HTTP_REQUEST_TIMEOUT",
	"WASM_MODULE_EXPIRY", "WASM_PURGE_INTERVAL", "WASM_RETRY_INTERVAL",
}

// platformMetadata contains the node metadata that only the platform may set: identity, addresses, files, and parts of
// the bootstrap.
var platformMetadata = []string{
	"ANNOTATIONS", "CLUSTER_ID", "INSTANCE_IPS", "LABELS", "MESH_ID", "NAME", "NAMESPACE", "OWNER", "POD_PORTS", "PROXY_CONFIG",
	"SERVICE_ACCOUNT", "STATIC_LABELS", "WORKLOAD_NAME",
	"AUTO_REGISTER_GROUP", "CERTIFICATE_PROVIDER", "GENERATOR", "PILOT_SAN", "XDS_ROOT_CERT", "credential", "file-credential",
	"APP_ADDRESS", "DNS_PROXY_ADDR", "INTERCEPTION_MODE", "PUBLISH", "UPSTREAM_LISTENERS", "LOAD_STATS_CONFIG_JSON",
}

// IsTenantVariable reports whether a ProxyConfig outside the root namespace may set a variable of an agent.
func IsTenantVariable(name string) bool {
	key, isMetadata := strings.CutPrefix(name, metadataPrefix)
	if !isMetadata {
		return slices.Contains(tenantVariables, name)
	}
	return !slices.Contains(platformMetadata, key) && !strings.HasPrefix(key, "TLS_") // TLS_… names certificate files
}

// listVariables returns the environment variables of a ProxyConfig that take effect. A ProxyConfig in the root
// namespace may set all variables, others only those for which IsTenantVariable returns true.
func (s *Snapshot) listVariables(namespace string, spec *networkingbeta.ProxyConfig) map[string]string {
	variables := maps.Clone(spec.GetEnvironmentVariables())
	if namespace != s.Mesh.GetRootNamespace() {
		maps.DeleteFunc(variables, func(name, _ string) bool { return !IsTenantVariable(name) })
	}
	return variables
}
