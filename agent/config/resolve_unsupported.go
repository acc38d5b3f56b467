package config

import (
	"regexp"
	"slices"
	"strings"

	"github.com/pilotfish-mesh/pilotfish/internal/suggest"
)

// unsupported lists variables of Istio's agent that this agent cannot support. A value that is not in accepted causes a
// warning with the reason.
var unsupported = map[string]struct {
	accepted string
	reason   string
}{
	"PEER_METADATA_DISCOVERY":      {"false", "the upstream release of Envoy has no extension that discovers the metadata of peers"},
	"CREDENTIAL_IDENTITY_PROVIDER": {"GoogleComputeEngine", "the agent supports no other identity provider"},
	"XDS_AUTH_PROVIDER":            {"", "the agent authenticates with its token or certificate"},
	"HTTP_STRIP_FRAGMENT_FROM_PATH_UNSAFE_IF_DISABLED": {"true", "Envoy no longer has this runtime flag; set " +
		"envoy.reloadable_features.http_reject_path_with_fragment in runtimeValues to refuse paths with a fragment"},
}

// ignoredVariables are variables of Istio's agent for functions that this agent does not have, or that other programs
// in the pod read.
var ignoredVariables = []string{
	"GCP_METADATA", "GCP_ZONE", "GCP_QUOTA_PROJECT", "PLATFORM",
	// Read by the redirection command, and by scripts that start Istio's agent on VMs.
	"ISTIO_AGENT_FLAGS", "ISTIO_BIN_BASE", "ISTIO_CFG", "ISTIO_CP_AUTH", "ISTIO_CUSTOM_IP_TABLES", "ISTIO_INBOUND_PORTS",
	"ISTIO_INBOUND_INTERCEPTION_MODE", "ISTIO_INBOUND_TPROXY_MARK", "ISTIO_INBOUND_TPROXY_ROUTE_TABLE",
	"ISTIO_LOCAL_EXCLUDE_PORTS", "ISTIO_LOCAL_OUTBOUND_PORTS_EXCLUDE", "ISTIO_OUTBOUND_PORTS", "ISTIO_NAMESPACE",
	"ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR", "ISTIO_OUTBOUND_OWNER_GROUPS", "ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE",
	"INBOUND_INTERCEPTION_MODE", "INBOUND_TPROXY_MARK", "DRY_RUN_FILE_PATH", "ENVOY_USER", "INVALID_DROP",
	"ISTIO_PILOT_PORT", "ISTIO_SERVICE", "ISTIO_SERVICE_CIDR", "ISTIO_SERVICE_EXCLUDE_CIDR", "ISTIO_SVC_IP", "ISTIO_SYSTEM_NAMESPACE",
	"ISTIO_LOG_DIR", "ISTIO_DELTA_DEBOUNCE",
	// Read by the control plane.
	"XDS_AUTH", "XDS_AUTH_PLAINTEXT",
}

// istioVariables are the variables of Istio's agent that this agent reads. Istio's agent replaces most invalid values by
// the default.
var istioVariables = []string{
	"POD_NAME", "POD_NAMESPACE", "INSTANCE_IP", "SERVICE_ACCOUNT", "HOST_IP", "TRUST_DOMAIN", "CLOUD_PLATFORM",
	"PROXY_CONFIG", "ISTIO_CPU_LIMIT", "COMPLIANCE_POLICY",
	"CA_ADDR", "CA_PROVIDER", "CA_ROOT_CA", "XDS_ROOT_CA", "ISTIOD_SAN", "JWT_POLICY", "PILOT_CERT_PROVIDER", "PILOT_ENABLE_CA_CRL",
	"SECRET_TTL", "SECRET_GRACE_PERIOD_RATIO", "SECRET_GRACE_PERIOD_RATIO_JITTER", "WORKLOAD_RSA_KEY_SIZE",
	"ECC_SIGNATURE_ALGORITHM", "ECC_CURVE", "WORKLOAD_IDENTITY_SOCKET_FILE",
	"OUTPUT_CERTS", "PKCS8_KEY", "FILE_DEBOUNCE_DURATION", "CREDENTIAL_FETCHER_TYPE", "GCE_METADATA_HOST",
	"PROV_CERT", "FILE_MOUNTED_CERTS", "ISTIO_GPRC_MAXRECVMSGSIZE", "PROXY_CONFIG_XDS_AGENT",
	"GRPC_KEEPALIVE_INTERVAL", "GRPC_KEEPALIVE_TIMEOUT", "ISTIO_DELTA_XDS",
	"DISABLE_ENVOY", "MINIMUM_DRAIN_DURATION", "EXIT_ON_ZERO_ACTIVE_CONNECTIONS",
	"ENVOY_STATUS_PORT", "ENVOY_STATUS_PORT_ENABLE_PROXY_PROTOCOL", "ENVOY_PROMETHEUS_PORT", "ENVOY_SKIP_DEPRECATED_LOGS",
	"PILOT_AGENT_MERGE_ENVOY_STATS", "ISTIO_DUAL_STACK", "ISTIO_ENVOY_ENABLE_CORE_DUMP",
	"ISTIO_BOOTSTRAP", "ISTIO_BOOTSTRAP_OVERRIDE", "GRPC_XDS_BOOTSTRAP",
	"ISTIO_KUBE_APP_PROBERS", "ISTIO_ENABLE_HTTP2_PROBING", "REWRITE_PROBE_LEGACY_LOCALHOST_DESTINATION", "ENABLE_PROBE_KEEPALIVE_CONNECTIONS",
	"ISTIO_PROMETHEUS_ANNOTATIONS", "METRICS_LOCALHOST_ACCESS_ONLY", "ENVOY_SECURE_METRICS_PORT", "ENVOY_SECURE_MERGED_METRICS_PORT",
	"ISTIO_AGENT_ENABLE_WASM_REMOTE_LOAD_CONVERSION", "WASM_MODULE_EXPIRY", "WASM_PURGE_INTERVAL", "WASM_HTTP_REQUEST_TIMEOUT",
	"WASM_HTTP_REQUEST_MAX_RETRIES", "WASM_INSECURE_REGISTRIES", "ISTIO_WASM_MAX_BINARY_SIZE_BYTES",
	"DNS_PROXY_ADDR", "DNS_FORWARD_PARALLEL", "DNS_FORWARD_TIMEOUT",
}

// ownVariables are the variables that only this agent reads. An invalid value ends the start.
var ownVariables = []string{
	"SPIFFE_ENDPOINT_SOCKET", "KEEP_REPLACED_ROOTS",
	"XDS_SOCKET_USERS", "GUARD_AGENT_SOCKETS", "ENVOY_NO_NEW_PRIVS", "ENVOY_ADVISORY_WARNING", "AGENT_DUMPABLE", "ENVOY_ADMIN_SOCKET",
	"TERMINATION_GRACE_PERIOD", "TERMINATION_MESSAGE_PATH", "PRE_DRAIN_DELAY", "DRAIN_QUIET_PERIOD",
	"UNREADY_AFTER_CONTROL_PLANE_LOSS", "ENVOY_SILENCE_LIMIT",
	"KEEP_CONFIGURATION", "KEEP_CONFIGURATION_DIR", "KEEP_CONFIGURATION_MAX_BYTES",
	"ENVOY_PATH", "PROXY_BIND_ADDRESS", "STATUS_PORT_USERS", "PROXY_MEMORY_LIMIT",
	"METRICS_HTTPS_PORTS", "METRICS_MAX_APPLICATION_BYTES", "METRICS_ALLOW_RESERVED_NAMES",
	"TOKEN_EXCHANGE_URL", "TOKEN_EXCHANGE_ROOT_CA", "TOKEN_EXCHANGE_CLIENT_ID", "TOKEN_EXCHANGE_CLIENT_SECRET_FILE",
	"TOKEN_EXCHANGE_GOOGLE_AUDIENCE", "TOKEN_EXCHANGE_GOOGLE_SERVICE_ACCOUNT", "TOKEN_EXCHANGE_ISSUERS", "TOKEN_EXCHANGE_AUDIENCES",
	"WASM_MODULE_DIR", "WASM_RETRY_INTERVAL", "BLOCKED_CIDRS_IN_WASM_FETCH",
	"DNS_RESOLV_CONF", "DNS_TTL", "DNS_ALLOW_FROM", "DNS_KEEP_NAMES",
}

func isIstioVariable(name string) bool { return slices.Contains(istioVariables, name) }

// knownPrefixes are the prefixes of variables with arbitrary names.
var knownPrefixes = []string{"ISTIO_META_", "ISTIO_METAJSON_", "XDS_HEADER_", "CA_HEADER_"}

// agentPrefixes are the prefixes of the names of Istio's agent's variables. An unknown variable with such a prefix
// causes a warning.
var agentPrefixes = []string{"ISTIO_", "PILOT_"}

// serviceLink matches the variables that Kubernetes sets in each pod for the Services of the pod's namespace.
var serviceLink = regexp.MustCompile(`_SERVICE_HOST$|_SERVICE_PORT(_|$)|_PORT(_\d+_(TCP|UDP|SCTP)(_(ADDR|PORT|PROTO))?)?$`)

// warnIneffective adds a warning for each variable without an effect: an unsupported variable, or a name that looks
// like a typo.
func (r *resolver) warnIneffective() {
	for _, name := range sortedKeys(unsupported) {
		if value := r.env.vars[name]; value != "" && value != unsupported[name].accepted {
			r.env.warn("%s=%s has no effect: %s", name, maskValue(name, value), unsupported[name].reason)
		}
	}
	known := slices.Concat(sortedKeys(unsupported), ignoredVariables, istioVariables, ownVariables)
	for _, name := range sortedKeys(r.env.vars) {
		if isKnown(name, known) || serviceLink.MatchString(name) {
			continue
		}
		switch meant := suggest.ClosestWithin(name, similarNames(name, known), MaxTypos(name)); {
		case meant != "":
			r.env.warn("environment %s is not a setting and has no effect; did you mean %s?", name, meant)
		case hasAnyPrefix(name, agentPrefixes):
			r.env.warn("environment %s is not a setting of this agent and has no effect", name)
		}
	}
}

// similarNames returns the known names of which name may be a misspelling. It filters quickly before a slower
// comparison: pods may have a thousand variables, and the slower comparison of all of them would delay each start.
func similarNames(name string, known []string) []string {
	maxTypos := MaxTypos(name)
	var found []string
	for _, other := range known {
		if longer := len(other) - len(name); other[0] == name[0] && longer <= maxTypos && -longer <= maxTypos {
			found = append(found, other)
		}
	}
	return found
}

func isKnown(name string, known []string) bool {
	return slices.Contains(known, name) || hasAnyPrefix(name, knownPrefixes)
}

func hasAnyPrefix(name string, prefixes []string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(name, p) })
}

// MaxTypos returns the maximum number of letters in which a misspelt name differs from the intended one. For short
// names it is 0, because short names of other programs' variables can be similar by chance.
func MaxTypos(name string) int {
	switch {
	case len(name) < 8:
		return 0
	case len(name) < 16:
		return 1
	}
	return 2
}
