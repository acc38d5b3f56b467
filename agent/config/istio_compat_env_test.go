package config

import (
	"cmp"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/bootstrap"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// variable is a variable of Istio's agent, with the expected setting without it and with a given value, and with a value
// that must be rejected.
type variable struct {
	name      string
	setting   string
	otherwise string // expected setting without the variable; "" if it is not in the list of settings
	given     string
	value     string // expected setting with the given value; "" if they are equal
	bad       string // invalid value; "" if all values are valid
	remedy    string // part of the error or warning for the invalid value
	with      []string
	fallback  string // expected setting with a tolerated invalid value, if it is not otherwise
	refused   bool   // an invalid value of a variable of Istio's agent ends the start, because Istio's agent fails, too
}

// exchangeEnabled enables token exchange.
var exchangeEnabled = []string{"TOKEN_EXCHANGE_URL=https://exchange.example/token"}

// dnsEnabled enables the DNS server.
var dnsEnabled = []string{"ISTIO_META_DNS_CAPTURE=true"}

var variables = []variable{
	{name: "POD_NAME", setting: "name", given: "reviews-1", bad: "a~b", remedy: "~", refused: true},
	{name: "POD_NAMESPACE", setting: "namespace", otherwise: "default", given: "books", bad: "a b", remedy: "space", refused: true},
	{name: "SERVICE_ACCOUNT", setting: "serviceAccount", otherwise: "default", given: "reviews", bad: "a/b", remedy: "slash", refused: true},
	{name: "TRUST_DOMAIN", setting: "trustDomain", otherwise: "cluster.local", given: "example.org", bad: "a b", remedy: "space", refused: true},
	{name: "INSTANCE_IP", setting: "address", otherwise: "10.1.1.1", given: "10.9.9.9"},
	{name: "HOST_IP", setting: "hostAddress", given: "10.0.0.1", bad: "node", remedy: "IP address"},
	{name: "CLOUD_PLATFORM", setting: "cloudPlatform", otherwise: "none", given: "aws", bad: "mars", remedy: "none, gcp, aws, azure"},
	{name: "ISTIO_CPU_LIMIT", setting: "envoy.concurrency", otherwise: "0", given: "1500m", value: "2", bad: "two", remedy: "500m"},

	{name: "CA_PROVIDER", setting: "certificates.provider", otherwise: "Citadel", given: "Citadel", bad: "Vault", remedy: "Citadel", refused: true},
	{name: "CA_ADDR", setting: "certificates.address", otherwise: "istiod.istio-system.svc:15012", given: "ca:443", bad: "ca", remedy: "host:port", refused: true},
	{name: "CA_ROOT_CA", setting: "certificates.rootFile", otherwise: "./var/run/secrets/istio/root-cert.pem", given: "SYSTEM"},
	{name: "XDS_ROOT_CA", setting: "controlPlane.rootFile", otherwise: "./var/run/secrets/istio/root-cert.pem", given: "./roots.pem"},
	{name: "PILOT_CERT_PROVIDER", setting: "controlPlane.rootFile", otherwise: "./var/run/secrets/istio/root-cert.pem", given: "kubernetes",
		value: "./var/run/secrets/kubernetes.io/serviceaccount/ca.crt", bad: "own", remedy: "istiod, kubernetes, custom"},
	{name: "ISTIOD_SAN", setting: "controlPlane.serverName", otherwise: "istiod.istio-system.svc", given: "istiod.example"},
	{name: "COMPLIANCE_POLICY", setting: "tls.policy", otherwise: "none", given: "fips-140-2"},
	{name: "JWT_POLICY", setting: "jwtPolicy", otherwise: "third-party-jwt", given: "none", bad: "second-party-jwt", remedy: "third-party-jwt"},
	{name: "SECRET_TTL", setting: "certificates.ttl", otherwise: "24h0m0s", given: "1h", value: "1h0m0s", bad: "soon", remedy: "24h"},
	{name: "SECRET_GRACE_PERIOD_RATIO", setting: "certificates.graceRatio", otherwise: "0.5", given: "0.2", bad: "2", remedy: "0 to 1"},
	{name: "SECRET_GRACE_PERIOD_RATIO_JITTER", setting: "certificates.graceJitter", otherwise: "0.01", given: "0", bad: "x", remedy: "0 to 1"},
	{name: "WORKLOAD_RSA_KEY_SIZE", setting: "certificates.rsaBits", otherwise: "2048", given: "4096", bad: "512", remedy: "2048", refused: true},
	{name: "ECC_SIGNATURE_ALGORITHM", setting: "certificates.algorithm", otherwise: "RSA", given: "ECDSA", bad: "ED25519", remedy: "ECDSA", refused: true},
	{name: "ECC_CURVE", setting: "certificates.curve", otherwise: "P256", given: "P384", bad: "P5", remedy: "P256", with: []string{"ECC_SIGNATURE_ALGORITHM=ECDSA"}},
	{name: "PILOT_ENABLE_CA_CRL", setting: "certificates.crl", otherwise: "true", given: "false", bad: "x", remedy: "true or false"},
	{name: "PKCS8_KEY", setting: "certificates.pkcs8", otherwise: "false", given: "true", bad: "x", remedy: "true or false"},
	{name: "OUTPUT_CERTS", setting: "certificates.output", given: "/tmp", bad: "/dev/null", remedy: "directory"},
	{name: "FILE_DEBOUNCE_DURATION", setting: "certificates.debounce", otherwise: "100ms", given: "1s", bad: "x", remedy: "duration"},
	{name: "CREDENTIAL_FETCHER_TYPE", setting: "credentialFetcher", otherwise: "JWT", given: "GoogleComputeEngine", bad: "Mock", remedy: "JWT", refused: true},
	{name: "GCE_METADATA_HOST", setting: "metadataServer", otherwise: "169.254.169.254", given: "127.0.0.1:8000", bad: "http://x/", remedy: "host:port"},
	{name: "KEEP_REPLACED_ROOTS", setting: "certificates.keepReplacedRoots", otherwise: "true", given: "false", bad: "x", remedy: "true or false"},
	{name: "SPIFFE_ENDPOINT_SOCKET", setting: "certificates.workloadAPI", given: "unix:///run/agent.sock", value: "unix:/run/agent.sock", bad: "agent.sock", remedy: "unix:///"},
	{name: "WORKLOAD_IDENTITY_SOCKET_FILE", setting: "certificates.socket", otherwise: "./var/run/secrets/workload-spiffe-uds/socket",
		given: "other", value: "./var/run/secrets/workload-spiffe-uds/other", bad: "../x", remedy: "slashes", refused: true},

	{name: "GRPC_KEEPALIVE_INTERVAL", setting: "controlPlane.keepaliveInterval", otherwise: "30s", given: "1m", value: "1m0s", bad: "-1s", remedy: "duration"},
	{name: "GRPC_KEEPALIVE_TIMEOUT", setting: "controlPlane.keepaliveTimeout", otherwise: "10s", given: "5s", bad: "5", remedy: "duration"},
	{name: "ISTIO_DELTA_XDS", setting: "controlPlane.delta", otherwise: "true", given: "false", bad: "maybe", remedy: "true or false"},

	{name: "DISABLE_ENVOY", setting: "envoy.disabled", otherwise: "false", given: "true", bad: "x", remedy: "true or false"},
	{name: "XDS_SOCKET_USERS", setting: "controlPlane.socketUsers", otherwise: "none", given: "1000,1001", bad: "app", remedy: "user IDs"},
	{name: "GUARD_AGENT_SOCKETS", setting: "controlPlane.guardSockets", otherwise: "true", given: "false", bad: "x", remedy: "true or false"},
	{name: "ENVOY_NO_NEW_PRIVS", setting: "envoy.noNewPrivileges", otherwise: "true", given: "false", bad: "x", remedy: "true or false"},
	{name: "ENVOY_ADVISORY_WARNING", setting: "envoy.advisoryWarning", otherwise: "true", given: "false", bad: "x", remedy: "true or false"},
	{name: "AGENT_DUMPABLE", setting: "agent.dumpable", otherwise: "false", given: "true", bad: "x", remedy: "true or false"},
	{name: "MINIMUM_DRAIN_DURATION", setting: "shutdown.minimum", otherwise: "0s", given: "3s", bad: "x", remedy: "duration", fallback: "5s"},
	{name: "DRAIN_QUIET_PERIOD", setting: "shutdown.quiet", otherwise: "1s", given: "0s", bad: "-1s", remedy: "duration"},
	{name: "PRE_DRAIN_DELAY", setting: "shutdown.preDelay", otherwise: "0s", given: "4s", bad: "x", remedy: "duration"},
	{name: "UNREADY_AFTER_CONTROL_PLANE_LOSS", setting: "health.lossLimit", otherwise: "0s", given: "10m0s", bad: "-1s", remedy: "duration"},
	{name: "KEEP_CONFIGURATION", setting: "lastGood.keep", otherwise: "true", given: "false", bad: "x", remedy: "true or false"},
	{name: "KEEP_CONFIGURATION_DIR", setting: "lastGood.directory", otherwise: "etc/istio/proxy/last-good", given: "/var/lib/agent"},
	{name: "KEEP_CONFIGURATION_MAX_BYTES", setting: "lastGood.maxBytes", otherwise: "268435456", given: "1000", bad: "0", remedy: "number of bytes"},
	{name: "ENVOY_SILENCE_LIMIT", setting: "health.envoySilence", otherwise: "1m0s", given: "5m0s", bad: "long", remedy: "duration"},
	{name: "TERMINATION_MESSAGE_PATH", setting: "shutdown.terminationMessage", otherwise: "/dev/termination-log", given: "/log", with: []string{"KUBERNETES_SERVICE_HOST=10.0.0.1"}},
	{name: "TERMINATION_GRACE_PERIOD", setting: "shutdown.gracePeriod", otherwise: "30s", given: "60", value: "1m0s", bad: "long", remedy: "30s"},
	{name: "EXIT_ON_ZERO_ACTIVE_CONNECTIONS", setting: "shutdown.whenIdle", otherwise: "false", given: "true", bad: "x", remedy: "true or false"},

	{name: "ENVOY_STATUS_PORT", setting: "envoy.readinessPort", otherwise: "15021", given: "16021", bad: "70000", remedy: "65535", refused: true},
	{name: "ENVOY_PROMETHEUS_PORT", setting: "envoy.prometheusPort", otherwise: "15090", given: "16090", bad: "0", remedy: "65535", refused: true},
	{name: "ENVOY_STATUS_PORT_ENABLE_PROXY_PROTOCOL", setting: "envoy.readinessProxyProtocol", otherwise: "false", given: "true", bad: "x", remedy: "true or false"},
	{name: "ENVOY_SKIP_DEPRECATED_LOGS", setting: "envoy.skipDeprecatedLogs", otherwise: "true", given: "false", bad: "x", remedy: "true or false"},
	{name: "ENVOY_ADMIN_SOCKET", setting: "envoy.adminSocket", given: "admin/envoy.sock", value: "./admin/envoy.sock", bad: "@envoy", remedy: "file"},
	{name: "PILOT_AGENT_MERGE_ENVOY_STATS", setting: "metrics.envoy", otherwise: "true", given: "false", bad: "x", remedy: "true or false"},

	{name: "METRICS_LOCALHOST_ACCESS_ONLY", setting: "metrics.onlyLoopback", otherwise: "false", given: "true", bad: "x", remedy: "true or false"},
	{name: "ENVOY_SECURE_METRICS_PORT", setting: "metrics.securePort", otherwise: "0", given: "16091", bad: "x", remedy: "65535"},
	{name: "ENVOY_SECURE_MERGED_METRICS_PORT", setting: "metrics.secureMergedPort", otherwise: "0", given: "16092", bad: "15021", remedy: "choose a different one", refused: true},
	{name: "METRICS_ALLOW_RESERVED_NAMES", setting: "metrics.allowReservedNames", otherwise: "false", given: "true", bad: "x", remedy: "true or false"},
	{name: "METRICS_MAX_APPLICATION_BYTES", setting: "metrics.maxApplicationBytes", otherwise: "67108864", given: "1000", bad: "0", remedy: "number of bytes"},

	{name: "ISTIO_ENABLE_HTTP2_PROBING", setting: "appProbes.http2", otherwise: "true", given: "false", bad: "x", remedy: "true or false"},
	{name: "ENABLE_PROBE_KEEPALIVE_CONNECTIONS", setting: "appProbes.keepAlive", otherwise: "false", given: "true", bad: "x", remedy: "true or false"},
	{name: "REWRITE_PROBE_LEGACY_LOCALHOST_DESTINATION", setting: "appProbes.localhost", otherwise: "false", given: "true", bad: "x", remedy: "true or false"},

	{name: "ISTIO_BOOTSTRAP", setting: "bootstrap.custom", given: "whole.yaml", bad: "missing.yaml", remedy: "no such file", refused: true},
	{name: "ISTIO_BOOTSTRAP_OVERRIDE", setting: "bootstrap.override", given: "merge.json", bad: "missing.json", remedy: "no such file"},
	{name: "GRPC_XDS_BOOTSTRAP", setting: "bootstrap.grpcFile", otherwise: "./etc/istio/proxy/grpc-bootstrap.json", given: "/run/grpc.json"},
	{name: "ISTIO_DUAL_STACK", setting: "envoy.dualStack", otherwise: "false", given: "true", bad: "x", remedy: "true or false"},
	{name: "ISTIO_ENVOY_ENABLE_CORE_DUMP", setting: "envoy.coreDump", otherwise: "false", given: "true", bad: "x", remedy: "true or false"},

	{name: "TOKEN_EXCHANGE_URL", setting: "tokenExchange.url", given: "https://exchange.example/token", bad: "http://exchange.example/token", remedy: "must be https"},
	{name: "TOKEN_EXCHANGE_ROOT_CA", setting: "tokenExchange.rootFile", otherwise: "SYSTEM", given: "/roots.pem", with: exchangeEnabled},
	{name: "TOKEN_EXCHANGE_CLIENT_ID", setting: "tokenExchange.clientID", given: "agent", with: exchangeEnabled},
	{name: "TOKEN_EXCHANGE_CLIENT_SECRET_FILE", setting: "tokenExchange.clientSecretFile", given: "/run/client", with: exchangeEnabled},
	{name: "TOKEN_EXCHANGE_ISSUERS", setting: "tokenExchange.issuers", given: "https://a, https://b", with: exchangeEnabled},
	{name: "TOKEN_EXCHANGE_AUDIENCES", setting: "tokenExchange.audiences", given: "a,b", with: exchangeEnabled},
	{name: "TOKEN_EXCHANGE_GOOGLE_AUDIENCE", setting: "tokenExchange.googleAudience", given: "identitynamespace:a:b", with: exchangeEnabled},
	{name: "TOKEN_EXCHANGE_GOOGLE_SERVICE_ACCOUNT", setting: "tokenExchange.googleServiceAccount", given: "a@b", with: exchangeEnabled},

	{name: "ISTIO_META_DNS_CAPTURE", setting: "dns.capture", otherwise: "false", given: "true", bad: "x", remedy: "true or false"},
	{name: "ISTIO_META_ENABLE_DNS_SERVER", setting: "dns.enabled", otherwise: "false", given: "true", bad: "x", remedy: "true or false"},
	{name: "DNS_PROXY_ADDR", setting: "dns.address", otherwise: "localhost:15053", given: ":53", bad: "127.0.0.1", remedy: "host:port", with: dnsEnabled, refused: true},
	{name: "DNS_FORWARD_PARALLEL", setting: "dns.forwardParallel", otherwise: "false", given: "true", bad: "x", remedy: "true or false", with: dnsEnabled},
	{name: "DNS_FORWARD_TIMEOUT", setting: "dns.forwardTimeout", otherwise: "5s", given: "2s", bad: "x", remedy: "duration", with: dnsEnabled},
	{name: "DNS_TTL", setting: "dns.ttl", otherwise: "30s", given: "5s", bad: "0s", remedy: "seconds", with: dnsEnabled},
	{name: "DNS_ALLOW_FROM", setting: "dns.allowFrom", given: "10.0.0.0/8, fd00::1", bad: "everybody", remedy: "networks", with: dnsEnabled},
	{name: "DNS_RESOLV_CONF", setting: "dns.resolvConf", otherwise: "/etc/resolv.conf", given: "/run/resolv.conf", with: dnsEnabled},
	{name: "DNS_KEEP_NAMES", setting: "dns.keepNames", otherwise: "true", given: "false", bad: "x", remedy: "true or false", with: dnsEnabled},

	{name: "ISTIO_AGENT_ENABLE_WASM_REMOTE_LOAD_CONVERSION", setting: "wasm.fetch", otherwise: "true", given: "false", bad: "x", remedy: "true or false"},
	{name: "WASM_MODULE_DIR", setting: "wasm.directory", otherwise: "etc/istio/proxy/wasm", given: "/tmp"},
	{name: "WASM_MODULE_EXPIRY", setting: "wasm.expiry", otherwise: "24h0m0s", given: "1h", value: "1h0m0s", bad: "0s", remedy: "24h"},
	{name: "WASM_PURGE_INTERVAL", setting: "wasm.purgeInterval", otherwise: "1h0m0s", given: "1m", value: "1m0s", bad: "0s", remedy: "duration"},
	{name: "WASM_HTTP_REQUEST_TIMEOUT", setting: "wasm.timeout", otherwise: "15s", given: "5s", bad: "0s", remedy: "15s"},
	{name: "WASM_RETRY_INTERVAL", setting: "wasm.retryInterval", otherwise: "30s", given: "1m0s", bad: "0s", remedy: "longer than 0"},
	{name: "WASM_HTTP_REQUEST_MAX_RETRIES", setting: "wasm.retries", otherwise: "5", given: "0", bad: "-1", remedy: "0 to 100"},
	{name: "WASM_INSECURE_REGISTRIES", setting: "wasm.insecureRegistries", given: "a.example, b.example:5000"},
	{name: "ISTIO_WASM_MAX_BINARY_SIZE_BYTES", setting: "wasm.maxSize", otherwise: "268435456", given: "1000", bad: "256MiB", remedy: "bytes"},
	{name: "BLOCKED_CIDRS_IN_WASM_FETCH", setting: "wasm.blocked", given: "10.0.0.0/8", bad: "all", remedy: "networks"},

	{name: "PROXY_BIND_ADDRESS", setting: "bindAddress", given: "127.0.0.9", bad: "here", remedy: "IP address"},
	{name: "STATUS_PORT_USERS", setting: "statusPortUsers", otherwise: "any", given: "own", bad: "root", remedy: "own"},
	{name: "PROXY_MEMORY_LIMIT", setting: "bootstrap.memoryLimit", otherwise: "none", given: "256Mi", value: "268435456", bad: "256", remedy: "256Mi"},
	{name: "ENVOY_PATH", setting: "envoy.path", given: "/opt/envoy"},
}

// istioFiles are the files to which values of variables refer.
var istioFiles = map[string]string{"whole.yaml": "admin: {}\n", "merge.json": "{}"}

func TestIstioVariablesHaveDefaultEffectAndError(t *testing.T) {
	testenv.InDir(t, istioFiles)
	for _, v := range variables {
		t.Run(v.name, func(t *testing.T) {
			without := resolve(t, env(v.with...)).setting(v.setting)
			if without.Value != v.otherwise || strings.Contains(without.Source, v.name) && v.name != "INSTANCE_IP" {
				t.Errorf("without the variable, %s is %q from %q, want %q", v.setting, without.Value, without.Source, v.otherwise)
			}
			with := resolve(t, env(append(v.with, v.name+"="+v.given)...)).setting(v.setting)
			want := v.value
			if want == "" {
				want = v.given
			}
			if with.Value != want || !strings.Contains(with.Source, v.name) {
				t.Errorf("with %q %s is %q from %q, want %q from the variable", v.given, v.setting, with.Value, with.Source, want)
			}
			if v.bad == "" {
				return
			}
			report := reportInvalid(t, v)
			for _, part := range []string{v.name, v.bad, v.remedy} {
				if !strings.Contains(report, part) {
					t.Errorf("the report of %q is %q, want one that contains %q", v.bad, report, part)
				}
			}
		})
	}
}

// reportInvalid returns the report of the variable's invalid value: the error that ends the start or, for a value that
// Istio's agent tolerates, the only warning.
func reportInvalid(t *testing.T, v variable) string {
	t.Helper()
	c, err := Resolve(env(append(v.with, v.name+"="+v.bad)...))
	if tolerated := v.name == "SPIFFE_ENDPOINT_SOCKET" || strings.HasPrefix(v.name, "ISTIO_META_") || isIstioVariable(v.name) && !v.refused; !tolerated {
		if err == nil {
			t.Fatalf("%q is accepted", v.bad)
		}
		return err.Error()
	}
	if err != nil {
		t.Fatalf("%q ends the start, which Istio's agent tolerates: %v", v.bad, err)
	}
	if got := c.setting(v.setting); got.Value != cmp.Or(v.fallback, v.otherwise) {
		t.Errorf("with %q %s is %q, want the default %q", v.bad, v.setting, got.Value, cmp.Or(v.fallback, v.otherwise))
	}
	if len(c.Warnings) != 1 {
		t.Fatalf("warnings of %q: %q, want one", v.bad, c.Warnings)
	}
	return c.Warnings[0]
}

// Every flag overrides the equivalent setting of other sources.
func TestEveryIstioFlagHasItsEffect(t *testing.T) {
	testenv.InDir(t, map[string]string{"whole.yaml": "admin: {}\n", "other/mesh": "trustDomain: of.the.file\n"})
	for flag, row := range map[string]struct {
		setting, value string
		flags          Flags
	}{
		"domain":                 {"domain", "a.example", Flags{Domain: "a.example"}},
		"meshConfig":             {"trustDomain", "of.the.file", Flags{MeshConfig: "other/mesh"}},
		"serviceCluster":         {"serviceCluster", "shop", Flags{ServiceCluster: "shop"}},
		"proxyLogLevel":          {"envoy.logLevel", "debug", Flags{LogLevel: "debug"}},
		"proxyComponentLogLevel": {"envoy.componentLogLevel", "http:trace", Flags{ComponentLogLevel: "http:trace"}},
		"concurrency":            {"envoy.concurrency", "7", Flags{Concurrency: 7}},
		"outlierLogPath":         {"envoy.outlierLog", "/tmp/ejected", Flags{OutlierLog: "/tmp/ejected"}},
		"templateFile":           {"bootstrap.custom", "whole.yaml", Flags{TemplateFile: "whole.yaml"}},
		"profiling":              {"profiling", "false", Flags{Profiling: false}},
		"envoy-path":             {"envoy.path", "/opt/envoy", Flags{EnvoyPath: "/opt/envoy"}},
		"restart":                {"envoy.restart", "true", Flags{Restart: true}},
		"stsPort":                {"tokenExchange.port", "15999", Flags{TokenPort: 15999}},
	} {
		t.Run(flag, func(t *testing.T) {
			in := env("ISTIO_CPU_LIMIT=2", "PROXY_CONFIG={concurrency: 3, serviceCluster: other}", "ENVOY_PATH=/other/envoy", exchangeEnabled[0])
			in.Flags = row.flags
			in.Flags.Changed = map[string]bool{flag: true}
			got := resolve(t, in).setting(row.setting)
			fromFlag := got.Source == "flag --"+flag || flag == "meshConfig" && got.Source == "mesh file other/mesh"
			if got.Value != row.value || !fromFlag {
				t.Errorf("%s is %q from %q, want %q from the flag", row.setting, got.Value, got.Source, row.value)
			}
		})
	}
}

func TestMissingMeshFileIsReported(t *testing.T) {
	testenv.InDir(t, nil)
	in := env()
	in.Flags = Flags{MeshConfig: "missing", Changed: map[string]bool{"meshConfig": true}}
	if c := resolve(t, in); len(c.Warnings) != 1 || !strings.Contains(c.Warnings[0], "--meshConfig missing") {
		t.Errorf("warnings: %q", c.Warnings)
	}
	if c := resolve(t, env()); len(c.Warnings) != 0 {
		t.Errorf("warnings without a file at the default path: %q", c.Warnings)
	}
}

func TestProfilesAreServedUnlessDisabled(t *testing.T) {
	testenv.InDir(t, nil)
	if !resolve(t, env()).Profiling {
		t.Error("profiling is disabled by default, want enabled")
	}
}

func TestProxyTypes(t *testing.T) {
	testenv.InDir(t, nil)
	for given, want := range map[string]bootstrap.Type{"": bootstrap.Sidecar, "sidecar": bootstrap.Sidecar, "router": bootstrap.Router, "waypoint": bootstrap.Waypoint} {
		in := env("POD_NAME=p", "POD_NAMESPACE=n")
		in.Flags.Type = given
		c := resolve(t, in)
		if id := bootstrap.NodeID(c.BootstrapConfig()); c.Identity.Type != want || id != string(want)+"~10.1.1.1~p.n~n.svc.cluster.local" {
			t.Errorf("type %q results in type %s with the node ID %s", given, c.Identity.Type, id)
		}
	}
	for given, want := range map[string]string{"ztunnel": "does not use Envoy", "agentgateway": "does not use Envoy", "sidecart": "sidecar, router or waypoint"} {
		in := env()
		in.Flags.Type = given
		if _, err := Resolve(in); err == nil || !strings.Contains(err.Error(), given) || !strings.Contains(err.Error(), want) {
			t.Errorf("type %q: %v", given, err)
		}
	}
}

// A number of threads that is much too large must have no effect, because Envoy would fail or hang.
func TestConcurrencySourcesInOrder(t *testing.T) {
	for name, row := range map[string]struct {
		flag   int
		mesh   string
		env    []string
		limits Limits
		want   string
		source string
	}{
		"flag":                 {4, "concurrency: 3", []string{"ISTIO_CPU_LIMIT=2"}, limits{cpus: 1}, "4", "flag --concurrency"},
		"a flag of 0":          {0, "concurrency: 3", []string{"ISTIO_CPU_LIMIT=2"}, limits{cpus: 1}, "3", "mesh file ./etc/istio/config/mesh"},
		"0 in ProxyConfig":     {0, "concurrency: 0", []string{"ISTIO_CPU_LIMIT=2"}, limits{cpus: 1}, "0", "mesh file ./etc/istio/config/mesh"},
		"ISTIO_CPU_LIMIT":      {0, "drainDuration: 9s", []string{"ISTIO_CPU_LIMIT=2"}, limits{cpus: 1}, "2", "environment ISTIO_CPU_LIMIT"},
		"cgroup":               {0, "drainDuration: 9s", nil, limits{cpus: 1.5}, "2", "cgroup limit (1.5 CPUs)"},
		"cgroup, under 1":      {0, "drainDuration: 9s", nil, limits{cpus: 0.1}, "1", "cgroup limit (0.1 CPUs)"},
		"cgroup without limit": {0, "drainDuration: 9s", nil, limits{}, "0", "default"},
		"nothing":              {0, "drainDuration: 9s", nil, nil, "0", "default"},
	} {
		t.Run(name, func(t *testing.T) {
			testenv.InDir(t, map[string]string{"etc/istio/config/mesh": "defaultConfig:\n  " + row.mesh + "\n"})
			in := env(row.env...)
			in.Flags = Flags{Concurrency: row.flag, Changed: map[string]bool{"concurrency": true}}
			in.Limits = row.limits
			if got := resolve(t, in).setting("envoy.concurrency"); got.Value != row.want || got.Source != row.source {
				t.Errorf("%q from %q, want %q from %q", got.Value, got.Source, row.want, row.source)
			}
		})
	}
	testenv.InDir(t, nil)
	in := env()
	in.Flags = Flags{Concurrency: -3, Changed: map[string]bool{"concurrency": true}}
	if c := resolve(t, in); c.Envoy.Concurrency != 0 || len(c.Warnings) != 1 || !strings.Contains(c.Warnings[0], "flag --concurrency): -3") {
		t.Errorf("a negative number of threads: concurrency %d, warnings %q", c.Envoy.Concurrency, c.Warnings)
	}
}

// limits is a fake of the cgroup limits; 0 means no limit.
type limits struct {
	memory uint64
	cpus   float64
}

func (l limits) MemoryLimit() (uint64, bool) { return l.memory, l.memory > 0 }
func (l limits) CPULimit() (float64, bool)   { return l.cpus, l.cpus > 0 }

func TestMemoryLimitFromVariableOrCgroup(t *testing.T) {
	testenv.InDir(t, nil)
	for _, row := range []struct {
		env  string
		has  uint64
		want uint64
	}{{"", 0, 0}, {"", 1 << 30, 1 << 30}, {"512Mi", 1 << 30, 512 << 20}, {"0", 1 << 30, 0}, {"1G", 0, 1e9}, {"1.5Gi", 0, 3 << 29}} {
		in := env("PROXY_MEMORY_LIMIT=" + row.env)
		in.Limits = limits{memory: row.has}
		c := resolve(t, in)
		if got := c.BootstrapConfig().MemoryLimit; got != row.want {
			t.Errorf("%q with a cgroup limit of %d: limit %d, want %d", row.env, row.has, got, row.want)
		}
	}
}

func TestFirstNamedCustomBootstrapIsUsed(t *testing.T) {
	testenv.InDir(t, map[string]string{"a.yaml": "a: {}", "b.yaml": "b: {}", "c.yaml": "c: {}", "d.yaml": "d: {}", "empty": " \n"})
	all := []string{"ISTIO_BOOTSTRAP=a.yaml", "customConfigFile: b.yaml", "--templateFile c.yaml", "proxyBootstrapTemplatePath: d.yaml"}
	for n, want := range []string{"a.yaml", "b.yaml", "c.yaml", "d.yaml"} {
		in := env()
		fields := ""
		for _, place := range all[n:] {
			if value, ok := strings.CutPrefix(place, "ISTIO_BOOTSTRAP="); ok {
				in.Env = append(in.Env, "ISTIO_BOOTSTRAP="+value)
			} else if value, ok := strings.CutPrefix(place, "--templateFile "); ok {
				in.Flags.TemplateFile = value
			} else {
				fields += place + ", "
			}
		}
		in.Env = append(in.Env, "PROXY_CONFIG={"+strings.TrimSuffix(fields, ", ")+"}")
		if b := resolve(t, in).Bootstrap; b.CustomFile != want || string(b.Custom) != want[:1]+": {}" {
			t.Errorf("with the settings %v: file %s with content %q, want %s", all[n:], b.CustomFile, b.Custom, want)
		}
	}
	for text, want := range map[string]string{"ISTIO_BOOTSTRAP=empty": "is empty", "PROXY_CONFIG={customConfigFile: gone}": "customConfigFile (environment PROXY_CONFIG): open gone"} {
		if _, err := Resolve(env(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want one that contains %q", text, err, want)
		}
	}
	for text, want := range map[string]string{"ISTIO_BOOTSTRAP_OVERRIDE=empty": "is empty", "ISTIO_BOOTSTRAP_OVERRIDE=.": "not a regular file"} {
		if c := resolve(t, env(text)); c.Bootstrap.Override != nil || len(c.Warnings) != 1 || !strings.Contains(c.Warnings[0], want) {
			t.Errorf("%s: override %q, warnings %q", text, c.Bootstrap.Override, c.Warnings)
		}
	}
}

func TestTracingProviderIsTheMeshsDefault(t *testing.T) {
	const providers = "extensionProviders:\n- name: zip\n  zipkin: {service: zipkin.obs, port: 9411}\n"
	testenv.InDir(t, map[string]string{"etc/istio/config/mesh": providers + "defaultProviders: {tracing: [zip]}\n"})
	if p := resolve(t, env()).BootstrapConfig().TracingProvider; p.GetZipkin().GetPort() != 9411 {
		t.Errorf("provider %v", p)
	}
	testenv.InDir(t, map[string]string{"etc/istio/config/mesh": providers + "defaultProviders: {tracing: [zap]}\n"})
	if c := resolve(t, env()); c.Bootstrap.Tracing != nil || len(c.Warnings) != 1 || !strings.Contains(c.Warnings[0], `"zap"`) {
		t.Errorf("a provider that does not exist: %v, warnings %q", c.Bootstrap.Tracing, c.Warnings)
	}
}

func TestMisspeltVariablesAreWarnedAbout(t *testing.T) {
	testenv.InDir(t, nil)
	c := resolve(t, env("ISTIO_BOOTSTRAP_OVERIDE=x", "MINIMUM_DRAIN_DURATON=3s", "PROXY_BIND_ADRESS=1", "ISTIO_FANCY=1", "PILOT_ENABLE_X=1",
		// Variables for other programs are not typos.
		"ISTIOD_SERVICE_HOST=10.0.0.1", "ISTIO_INGRESSGATEWAY_SERVICE_PORT_HTTPS=443", "ISTIO_X_PORT=tcp://10.0.0.1:80", "ISTIO_X_PORT_80_TCP_ADDR=10.0.0.1",
		"GOMEMLIMIT=1", "HOME=/", "POD_IP=10.0.0.1", "NODE_NAME=n", "ISTIO_META_ANY=1", "ISTIO_SERVICE_CIDR=*", "SECRET_NAME=x", "DNS_PROXY_ADDR=x"))
	want := []string{"ISTIO_BOOTSTRAP_OVERIDE is not a setting and has no effect; did you mean ISTIO_BOOTSTRAP_OVERRIDE?", "ISTIO_FANCY is not a setting of this agent",
		"did you mean MINIMUM_DRAIN_DURATION?", "PILOT_ENABLE_X is not a setting of this agent", "did you mean PROXY_BIND_ADDRESS?"}
	if len(c.Warnings) != len(want) {
		t.Errorf("%d warnings, want %d: %q", len(c.Warnings), len(want), c.Warnings)
	}
	for _, w := range want {
		if !slices.ContainsFunc(c.Warnings, func(got string) bool { return strings.Contains(got, w) }) {
			t.Errorf("no warning contains %q: %q", w, c.Warnings)
		}
	}
}

func TestUnsupportedVariableWarns(t *testing.T) {
	testenv.InDir(t, nil)
	for value, warned := range map[string]bool{"true": true, "false": false, "": false} {
		c := resolve(t, env("PEER_METADATA_DISCOVERY="+value))
		if got := strings.Join(c.Warnings, "\n"); strings.Contains(got, "PEER_METADATA_DISCOVERY=true has no effect: the upstream release of Envoy") != warned {
			t.Errorf("%q: warnings %q", value, c.Warnings)
		}
	}
}

var variableLiteral = regexp.MustCompile(`"([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+)"`)

// A variable that the code reads must be in the list; otherwise the agent would warn about it.
func TestReadVariablesAreKnownAndDocumented(t *testing.T) {
	// Other strings in the form of a variable name.
	others := []string{"CLUSTER_ID", "PLATFORM_METADATA", "MUTUAL_TLS", "APP_ADDRESS", "KUBERNETES_SERVICE_HOST",
		"TLS_CLIENT_CERT_CHAIN", "TLS_CLIENT_KEY", "TLS_CLIENT_ROOT_CERT", "STATIC_LABELS", "CERT_SIGNER"}
	doc, err := os.ReadFile(filepath.Join(testenv.Root(), "docs", "settings.md"))
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(testenv.Root(), "agent", "config", "resolve*.go"))
	if err != nil {
		t.Fatal(err)
	}
	all := slices.Concat(slices.Collect(maps.Keys(unsupported)), ignoredVariables, istioVariables, ownVariables, others)
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range variableLiteral.FindAllStringSubmatch(string(text), -1) {
			if !isKnown(m[1], all) {
				t.Errorf("%s reads %s: add it to istioVariables or ownVariables", filepath.Base(file), m[1])
			}
		}
	}
	for _, name := range slices.Concat(sortedKeys(unsupported), istioVariables, ownVariables) {
		if !strings.Contains(string(doc), "`"+name+"`") {
			t.Errorf("docs/settings.md does not contain %s", name)
		}
	}
}

// The documentation must contain the actual default of each variable.
func TestDocumentedDefaultsAreTrue(t *testing.T) {
	doc, err := os.ReadFile(filepath.Join(testenv.Root(), "docs", "settings.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range variables {
		if v.name == "INSTANCE_IP" || v.otherwise == "" || v.with != nil {
			continue
		}
		row := regexp.MustCompile("(?m)^\\| `" + v.name + "` \\|([^|]*)\\|").FindStringSubmatch(string(doc))
		if row == nil {
			t.Errorf("docs/settings.md has no row for %s", v.name)
			continue
		}
		// A default that is described in words refers to another setting, and is not compared.
		documented := strings.TrimSpace(row[1])
		if value := strings.Trim(documented, "`"); "`"+value+"`" == documented && value != v.otherwise && value+"0m0s" != v.otherwise {
			t.Errorf("%s: the documented default is %s, the actual one %s", v.name, documented, v.otherwise)
		}
	}
}

func TestSecretsAreNotShown(t *testing.T) {
	testenv.InDir(t, map[string]string{"etc/istio/config/mesh": "defaultConfig:\n  tracing: {lightstep: {address: \"l:80\", accessToken: hunter2}}\n" +
		"  proxyMetadata: {ISTIO_META_DB_PASSWORD: hunter2, OTHER_API_KEY: hunter2}\n"})
	c := resolve(t, env("XDS_HEADER_x-key=hunter2", "CA_HEADER_x-key=hunter2", "ISTIO_META_APP_TOKEN=hunter2", `ISTIO_METAJSON_A={"clientSecret": "hunter2"}`,
		`ISTIO_METAJSON_B={"nested": {"db": {"password": "hunter2"}, "urls": ["https://me:sesame@host/"]}, "site": "https://me:sesame@host/"}`))
	if text, err := bootstrap.Render(c.BootstrapConfig()); err != nil || strings.Contains(string(text), "hunter2") {
		t.Errorf("the bootstrap contains a secret (%v):\n%s", err, text)
	}
	for _, s := range c.Settings {
		if strings.Contains(s.Value, "hunter2") || strings.Contains(s.Value, "sesame") {
			t.Errorf("%s is shown as %q", s.Name, s.Value)
		}
	}
	for _, bad := range []string{"ISTIO_METAJSON_SECRET=hunter2", "CA_HEADER_grpc-timeout=hunter2"} {
		name, _, _ := strings.Cut(bad, "=")
		if c := resolve(t, env(bad)); len(c.Warnings) != 1 || !strings.Contains(c.Warnings[0], name) || strings.Contains(c.Warnings[0], "hunter2") {
			t.Errorf("%s: unexpected warnings %q", name, c.Warnings)
		}
	}
	for _, bad := range []string{"XDS_HEADER_x y=hunter2", "XDS_HEADER_x=hunter2\n"} {
		name, _, _ := strings.Cut(bad, "=")
		if _, err := Resolve(env(bad)); err == nil || !strings.Contains(err.Error(), name) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: unexpected error %v", name, err)
		}
	}
}

// Variables that Istio's injector and its VM setup set must not cause warnings.
func TestInjectedEnvironmentsCauseNoWarnings(t *testing.T) {
	testenv.InDir(t, map[string]string{
		"etc/istio/pod/labels": "app=\"reviews\"\npod-template-hash=\"abc\"\n",
		"etc/istio/pod/annotations": "istio.io/rev=\"default\"\nkubectl.kubernetes.io/default-container=\"app\"\nprometheus.io/scrape=\"true\"\n" +
			"sidecar.istio.io/status=\"{\\\"initContainers\\\":[\\\"istio-init\\\"],\\\"containers\\\":[\\\"istio-proxy\\\"],\\\"revision\\\":\\\"default\\\"}\"\n",
	})
	identity := []string{"POD_NAMESPACE=books", "SERVICE_ACCOUNT=reviews", "TRUST_DOMAIN=cluster.local", "INSTANCE_IP=10.1.1.1", "ISTIO_META_CLUSTER_ID=Kubernetes",
		"ISTIO_META_MESH_ID=cluster.local", "ISTIO_META_NETWORK=", "ISTIO_META_WORKLOAD_NAME=reviews", "PATH=/usr/bin", "HOME=/"}
	for name, more := range map[string][]string{
		"a pod": {"PILOT_CERT_PROVIDER=istiod", "CA_ADDR=istiod.istio-system.svc:15012", "POD_NAME=reviews-1", "HOST_IP=10.0.0.1", "ISTIO_CPU_LIMIT=2", "PROXY_CONFIG={}\n",
			`ISTIO_META_POD_PORTS=[{"name":"http","containerPort":9080,"protocol":"TCP"}]`, "ISTIO_META_APP_CONTAINERS=app", "GOMEMLIMIT=1073741824", "GOMAXPROCS=2",
			"ISTIO_META_NODE_NAME=n", "ISTIO_META_INTERCEPTION_MODE=REDIRECT", "ISTIO_META_OWNER=kubernetes://apis/apps/v1/namespaces/books/deployments/reviews",
			`ISTIO_KUBE_APP_PROBERS={"/app-health/app/readyz":{"httpGet":{"path":"/health","port":9080,"scheme":"HTTP"},"timeoutSeconds":1}}`,
			`ISTIO_PROMETHEUS_ANNOTATIONS={"scrape":"true","path":"","port":"9080"}`, "KUBERNETES_SERVICE_HOST=10.96.0.1", "KUBERNETES_PORT_443_TCP=tcp://10.96.0.1:443",
			"ISTIOD_SERVICE_PORT_GRPC_XDS=15010", "ISTIOD_PORT=tcp://10.96.1.1:15010", "ISTIO_INGRESSGATEWAY_PORT_443_TCP_PROTO=tcp"},
		"a machine": {"CANONICAL_SERVICE=reviews", "CANONICAL_REVISION=latest", "ISTIO_INBOUND_PORTS=*", "ISTIO_LOCAL_EXCLUDE_PORTS=22,15090,15021,15020",
			`ISTIO_METAJSON_LABELS={"app":"reviews"}`, "ISTIO_NAMESPACE=books", "ISTIO_SERVICE=reviews.books", "ISTIO_SERVICE_CIDR=*", "ISTIO_META_AUTO_REGISTER_GROUP=reviews"},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := Resolve(Inputs{Env: slices.Concat(identity, more), Flags: Flags{Domain: "books.svc.cluster.local", LogLevel: "warning", ComponentLogLevel: "misc:error",
				Changed: map[string]bool{"domain": true, "proxyLogLevel": true, "proxyComponentLogLevel": true}}})
			if err != nil || len(c.Warnings) > 0 {
				t.Errorf("%v; warnings: %q", err, c.Warnings)
			}
		})
	}
}

func TestMetadataOfATracingProviderComesFromTheEnvironment(t *testing.T) {
	testenv.InDir(t, map[string]string{"etc/istio/config/mesh": `extensionProviders:
- name: otel
  opentelemetry: {service: otel.obs, port: 4317, grpc: {initialMetadata: [{name: api-key, envName: OTEL_KEY}]}}
defaultProviders: {tracing: [otel]}
`})
	c := resolve(t, env("OTEL_KEY=sesame"))
	metadata := c.BootstrapConfig().TracingProvider.GetOpentelemetry().GetGrpc().GetInitialMetadata()
	if metadata[0].GetValue() != "sesame" {
		t.Errorf("the header is %v", metadata[0])
	}
	if text, err := bootstrap.Render(c.BootstrapConfig()); err != nil || strings.Contains(string(text), "sesame") {
		t.Errorf("a secret is shown: %v", err)
	}
	if w := resolve(t, env()).Warnings; len(w) != 1 || !strings.Contains(w[0], "OTEL_KEY") {
		t.Errorf("no warning about a missing variable: %v", w)
	}
}
