package agent

import (
	"regexp"
	"slices"
	"strings"

	"github.com/pilotfish-mesh/pilotfish/internal/nearest"
)

// unsupported are variables of the contract that change what Istio's agent does, and that this agent cannot honour.
var unsupported = map[string]struct {
	idle string // the value that asks for no more than what happens anyway
	why  string
}{
	"PEER_METADATA_DISCOVERY": {"false", "the upstream release of Envoy has no extension that discovers the metadata of peers"},
}

// inertVariables are of the contract too, but change only parts that this agent does not have, or that are read by something else beside it.
var inertVariables = []string{
	"GCP_METADATA", "GCP_ZONE", "GCP_QUOTA_PROJECT",
	// What redirection, and the scripts that start agents on machines, go by.
	"ISTIO_AGENT_FLAGS", "ISTIO_BIN_BASE", "ISTIO_CFG", "ISTIO_CP_AUTH", "ISTIO_CUSTOM_IP_TABLES", "ISTIO_INBOUND_PORTS",
	"ISTIO_INBOUND_INTERCEPTION_MODE", "ISTIO_INBOUND_TPROXY_MARK", "ISTIO_INBOUND_TPROXY_ROUTE_TABLE",
	"ISTIO_LOCAL_EXCLUDE_PORTS", "ISTIO_LOCAL_OUTBOUND_PORTS_EXCLUDE", "ISTIO_OUTBOUND_PORTS", "ISTIO_NAMESPACE",
	"ISTIO_PILOT_PORT", "ISTIO_SERVICE", "ISTIO_SERVICE_CIDR", "ISTIO_SERVICE_EXCLUDE_CIDR", "ISTIO_SVC_IP", "ISTIO_SYSTEM_NAMESPACE",
	"ISTIO_LOG_DIR", "ISTIO_DELTA_DEBOUNCE",
}

// knownVariables are all that the agent goes by, besides those above.
var knownVariables = []string{
	"POD_NAME", "POD_NAMESPACE", "INSTANCE_IP", "SERVICE_ACCOUNT", "HOST_IP", "TRUST_DOMAIN", "CLOUD_PLATFORM",
	"PROXY_CONFIG", "ISTIO_CPU_LIMIT", "COMPLIANCE_POLICY",
	"CA_ADDR", "CA_PROVIDER", "CA_ROOT_CA", "XDS_ROOT_CA", "ISTIOD_SAN", "JWT_POLICY", "PILOT_CERT_PROVIDER",
	"SECRET_TTL", "SECRET_GRACE_PERIOD_RATIO", "SECRET_GRACE_PERIOD_RATIO_JITTER", "WORKLOAD_RSA_KEY_SIZE",
	"ECC_SIGNATURE_ALGORITHM", "ECC_CURVE", "WORKLOAD_IDENTITY_SOCKET_FILE",
	"OUTPUT_CERTS", "PKCS8_KEY", "FILE_DEBOUNCE_DURATION", "CREDENTIAL_FETCHER_TYPE", "GCE_METADATA_HOST", "SPIFFE_ENDPOINT_SOCKET", "KEEP_REPLACED_ROOTS",
	"PROV_CERT", "FILE_MOUNTED_CERTS", "ISTIO_GPRC_MAXRECVMSGSIZE", "PROXY_CONFIG_XDS_AGENT",
	"GRPC_KEEPALIVE_INTERVAL", "GRPC_KEEPALIVE_TIMEOUT", "ISTIO_DELTA_XDS",
	"DISABLE_ENVOY", "XDS_SOCKET_USERS", "TERMINATION_GRACE_PERIOD", "TERMINATION_MESSAGE_PATH", "PRE_DRAIN_DELAY", "MINIMUM_DRAIN_DURATION", "EXIT_ON_ZERO_ACTIVE_CONNECTIONS",
	"ENVOY_STATUS_PORT", "ENVOY_PROMETHEUS_PORT", "PILOT_AGENT_MERGE_ENVOY_STATS", "ISTIO_DUAL_STACK", "ISTIO_ENVOY_ENABLE_CORE_DUMP",
	"ISTIO_BOOTSTRAP", "ISTIO_BOOTSTRAP_OVERRIDE", "GRPC_XDS_BOOTSTRAP",
	"ISTIO_KUBE_APP_PROBERS", "ISTIO_ENABLE_HTTP2_PROBING", "REWRITE_PROBE_LEGACY_LOCALHOST_DESTINATION", "ENABLE_PROBE_KEEPALIVE_CONNECTIONS",
	"UNREADY_AFTER_CONTROL_PLANE_LOSS", "ENVOY_SILENCE_LIMIT",
	"KEEP_CONFIGURATION", "KEEP_CONFIGURATION_DIR", "KEEP_CONFIGURATION_MAX_BYTES", "KEEP_CONFIGURATION_MEMORY_MAX_BYTES",
	"ENVOY_PATH", "PROXY_BIND_ADDRESS", "PROXY_MEMORY_LIMIT",
	"ISTIO_PROMETHEUS_ANNOTATIONS", "METRICS_LOCALHOST_ACCESS_ONLY", "ENVOY_SECURE_METRICS_PORT", "ENVOY_SECURE_MERGED_METRICS_PORT",
	"METRICS_HTTPS_PORTS", "METRICS_MAX_APPLICATION_BYTES",
	"TOKEN_EXCHANGE_URL", "TOKEN_EXCHANGE_ROOT_CA", "TOKEN_EXCHANGE_CLIENT_ID", "TOKEN_EXCHANGE_CLIENT_SECRET_FILE",
	"ISTIO_AGENT_ENABLE_WASM_REMOTE_LOAD_CONVERSION", "WASM_MODULE_DIR", "WASM_MODULE_EXPIRY", "WASM_PURGE_INTERVAL", "WASM_HTTP_REQUEST_TIMEOUT",
	"WASM_HTTP_REQUEST_MAX_RETRIES", "WASM_RETRY_INTERVAL", "WASM_INSECURE_REGISTRIES", "ISTIO_WASM_MAX_BINARY_SIZE_BYTES", "BLOCKED_CIDRS_IN_WASM_FETCH",
	"DNS_PROXY_ADDR", "DNS_FORWARD_PARALLEL", "DNS_FORWARD_TIMEOUT", "DNS_RESOLV_CONF", "DNS_TTL", "DNS_ALLOW_FROM", "DNS_KEEP_NAMES",
	"TOKEN_EXCHANGE_GOOGLE_AUDIENCE", "TOKEN_EXCHANGE_GOOGLE_SERVICE_ACCOUNT", "TOKEN_EXCHANGE_ISSUERS", "TOKEN_EXCHANGE_AUDIENCES",
}

// knownPrefixes begin variables whose rest is anything.
var knownPrefixes = []string{"ISTIO_META_", "ISTIO_METAJSON_", "XDS_HEADER_", "CA_HEADER_"}

// ownPrefixes begin variables that are meant for an agent, and do nothing when it does not know them.
var ownPrefixes = []string{"ISTIO_", "PILOT_"}

// serviceLink matches what Kubernetes sets in each pod for the services of its namespace.
var serviceLink = regexp.MustCompile(`_SERVICE_HOST$|_SERVICE_PORT(_|$)|_PORT(_\d+_(TCP|UDP|SCTP)(_(ADDR|PORT|PROTO))?)?$`)

// unheard warns of what was set and has no effect: what is not supported, and what looks like a name misspelt.
func (r *resolver) unheard() {
	for _, name := range sortedKeys(unsupported) {
		if value := r.env.vars[name]; value != "" && value != unsupported[name].idle {
			r.env.warn("%s=%s has no effect: %s", name, shown(name, value), unsupported[name].why)
		}
	}
	known := slices.Concat(sortedKeys(unsupported), inertVariables, knownVariables)
	for _, name := range sortedKeys(r.env.vars) {
		if isKnown(name, known) || serviceLink.MatchString(name) {
			continue
		}
		switch meant := nearest.Within(name, alike(name, known), mistakes(name)); {
		case meant != "":
			r.env.warn("environment %s is not a setting and has no effect; did you mean %s?", name, meant)
		case hasPrefix(name, ownPrefixes):
			r.env.warn("environment %s is not a setting of this agent and has no effect", name)
		}
	}
}

// alike are the names that another could be meant for. Pods may have a thousand variables, and each start would pay for
// comparing them all letter by letter.
func alike(name string, among []string) []string {
	most := mistakes(name)
	var found []string
	for _, other := range among {
		if longer := len(other) - len(name); other[0] == name[0] && longer <= most && -longer <= most {
			found = append(found, other)
		}
	}
	return found
}

func isKnown(name string, known []string) bool {
	return slices.Contains(known, name) || hasPrefix(name, knownPrefixes)
}

func hasPrefix(name string, prefixes []string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(name, p) })
}

// mistakes is how many letters of a name may be wrong for it to be taken for another. Short names of other programs'
// variables are close to ours by chance.
func mistakes(name string) int {
	switch {
	case len(name) < 8:
		return 0
	case len(name) < 16:
		return 1
	}
	return 2
}
