package config

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// registeredByIstio are the variables that Istio's agent and its redirection command register, except those with a prefix
// of knownPrefixes. TestListOfIstioVariablesIsComplete compares the list with Istio's source.
var registeredByIstio = strings.Fields(`
CA_ADDR CA_PROVIDER CA_ROOT_CA CLOUD_PLATFORM COMPLIANCE_POLICY CREDENTIAL_FETCHER_TYPE CREDENTIAL_IDENTITY_PROVIDER DISABLE_ENVOY
DNS_FORWARD_PARALLEL DNS_FORWARD_TIMEOUT DNS_PROXY_ADDR DRY_RUN_FILE_PATH ECC_CURVE ECC_SIGNATURE_ALGORITHM
ENABLE_PROBE_KEEPALIVE_CONNECTIONS ENVOY_PROMETHEUS_PORT ENVOY_SECURE_MERGED_METRICS_PORT ENVOY_SECURE_METRICS_PORT
ENVOY_SKIP_DEPRECATED_LOGS ENVOY_STATUS_PORT ENVOY_STATUS_PORT_ENABLE_PROXY_PROTOCOL EXIT_ON_ZERO_ACTIVE_CONNECTIONS
FILE_DEBOUNCE_DURATION FILE_MOUNTED_CERTS GCP_METADATA GCP_QUOTA_PROJECT GCP_ZONE GRPC_KEEPALIVE_INTERVAL GRPC_KEEPALIVE_TIMEOUT
GRPC_XDS_BOOTSTRAP HTTP_STRIP_FRAGMENT_FROM_PATH_UNSAFE_IF_DISABLED INBOUND_INTERCEPTION_MODE INBOUND_TPROXY_MARK INSTANCE_IP
ISTIOD_SAN ISTIO_AGENT_ENABLE_WASM_REMOTE_LOAD_CONVERSION ISTIO_BOOTSTRAP ISTIO_BOOTSTRAP_OVERRIDE ISTIO_CPU_LIMIT ISTIO_DELTA_XDS
ISTIO_DUAL_STACK ISTIO_ENABLE_HTTP2_PROBING ISTIO_ENVOY_ENABLE_CORE_DUMP ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR ISTIO_OUTBOUND_OWNER_GROUPS
ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE ISTIO_PROMETHEUS_ANNOTATIONS ISTIO_WASM_MAX_BINARY_SIZE_BYTES JWT_POLICY KUBERNETES_SERVICE_HOST
METRICS_LOCALHOST_ACCESS_ONLY MINIMUM_DRAIN_DURATION OUTPUT_CERTS PEER_METADATA_DISCOVERY PILOT_AGENT_MERGE_ENVOY_STATS
PILOT_CERT_PROVIDER PILOT_ENABLE_CA_CRL PKCS8_KEY PLATFORM POD_NAME POD_NAMESPACE PROV_CERT PROXY_CONFIG PROXY_CONFIG_XDS_AGENT
REWRITE_PROBE_LEGACY_LOCALHOST_DESTINATION SECRET_GRACE_PERIOD_RATIO SECRET_GRACE_PERIOD_RATIO_JITTER SECRET_TTL SERVICE_ACCOUNT
TRUST_DOMAIN WASM_HTTP_REQUEST_MAX_RETRIES WASM_HTTP_REQUEST_TIMEOUT WASM_INSECURE_REGISTRIES WASM_MODULE_EXPIRY WASM_PURGE_INTERVAL
WORKLOAD_IDENTITY_SOCKET_FILE WORKLOAD_RSA_KEY_SIZE XDS_AUTH XDS_AUTH_PLAINTEXT XDS_AUTH_PROVIDER XDS_ROOT_CA`)

// Each variable of Istio's agent is either implemented, or reported as unsupported, or belongs to another program.
func TestEveryVariableOfIstioIsKnown(t *testing.T) {
	known := slices.Concat(istioVariables, sortedKeys(unsupported), ignoredVariables, []string{"KUBERNETES_SERVICE_HOST"})
	for _, name := range registeredByIstio {
		if !slices.Contains(known, name) {
			t.Errorf("%s: implement it, or add it to unsupported or ignoredVariables", name)
		}
	}
}

// istioDirs are the folders of Istio's source that its agent consists of, other than the feature flags it shares with the
// control plane.
var istioDirs = []string{"pilot/cmd/pilot-agent", "pkg/istio-agent", "pkg/bootstrap", "pkg/envoy", "pkg/wasm", "pkg/dns", "pkg/keepalive", "pkg/security",
	"security/pkg/nodeagent", "security/pkg/credentialfetcher", "pkg/features", "pkg/platform", "pkg/model", "tools/istio-iptables"}

var (
	registration = regexp.MustCompile(`(\w+)\s*(?:,\s*\w+\s*)?=\s*env\.Register\w*(?:\[\w+\])?\(\s*"([A-Z0-9_]+)"`)
	featureUse   = regexp.MustCompile(`\bfeatures\.(\w+)`)
)

func TestListOfIstioVariablesIsComplete(t *testing.T) {
	source := testenv.IstioSource(t)
	found, used := map[string]bool{}, map[string]bool{}
	for _, dir := range istioDirs {
		for _, text := range readGoFiles(t, filepath.Join(source, dir)) {
			for _, m := range registration.FindAllStringSubmatch(text, -1) {
				found[m[2]] = true
			}
			for _, m := range featureUse.FindAllStringSubmatch(text, -1) {
				used[m[1]] = true
			}
		}
	}
	for _, text := range readGoFiles(t, filepath.Join(source, "pilot", "pkg", "features")) {
		for _, m := range registration.FindAllStringSubmatch(text, -1) {
			if used[m[1]] {
				found[m[2]] = true
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(found)) {
		if !slices.Contains(registeredByIstio, name) && !hasAnyPrefix(name, knownPrefixes) {
			t.Errorf("Istio's agent registers %s, which the list lacks", name)
		}
	}
	if len(found) < 80 {
		t.Errorf("only %d variables were found in Istio's source", len(found))
	}
}

func readGoFiles(t *testing.T, dir string) []string {
	t.Helper()
	var texts []string
	err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		texts = append(texts, string(text))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return texts
}
