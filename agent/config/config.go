package config

import (
	"cmp"
	"fmt"
	"net/netip"
	"time"

	meshv1 "istio.io/api/mesh/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/bootstrap"
	"github.com/pilotfish-mesh/pilotfish/envoy"
	"github.com/pilotfish-mesh/pilotfish/internal/owner"
	"github.com/pilotfish-mesh/pilotfish/internal/probe"
	"github.com/pilotfish-mesh/pilotfish/internal/tlspolicy"
	"github.com/pilotfish-mesh/pilotfish/status"
)

// Config is the complete configuration of the agent. Resolve creates it. No other code of the agent reads the
// environment.
type Config struct {
	// Identity identifies the proxy.
	Identity Identity
	// Proxy is Istio's ProxyConfig, merged from all sources.
	Proxy *meshv1.ProxyConfig

	Envoy        Envoy
	Bootstrap    Bootstrap
	ControlPlane ControlPlane
	Certificates Certificates
	// TLSPolicy restricts the TLS versions and ciphers of the agent's connections, and of the clusters in Envoy's
	// bootstrap.
	TLSPolicy tlspolicy.Policy
	// CredentialFetcher selects where the agent obtains the token that authenticates it to the control plane and the
	// CA: from a file, or from the cloud's metadata server.
	CredentialFetcher string
	// MetadataServer is the host of the metadata server that issues the token.
	MetadataServer string
	Shutdown       Shutdown
	AppProbes      AppProbes
	// TokenExchange is nil if token exchange is disabled.
	TokenExchange *TokenExchange
	// DNS is nil if the DNS server is disabled.
	DNS *DNS
	// Wasm is nil if Envoy fetches its Wasm modules itself.
	Wasm *Wasm
	// HealthCheck is nil if the agent does not probe an application.
	HealthCheck *HealthCheck
	// LastGood configures the storage of the last accepted configuration.
	LastGood LastGood
	// Health contains limits. If one is exceeded, the agent reports the proxy as not ready or not alive.
	Health Health

	// Bind is the IP address on which the agent and Envoy listen. The zero value selects the default addresses.
	Bind netip.Addr
	// StatusUsers selects the local users that may use the status port: AnyUser or OwnUser.
	StatusUsers string
	// Metrics selects the metrics of Envoy and of the application that the path /metrics serves together with the
	// agent's own.
	Metrics Metrics
	// Profiling enables the agent's pprof pages on the status port, for clients on loopback addresses.
	Profiling bool

	// Settings lists each value with its source, in the order of resolution.
	Settings []Setting
	// Dumpable allows other processes of the agent's user to attach a debugger to the agent, and the kernel to write its
	// core files.
	Dumpable bool
	// Warnings describes settings that probably do not have the intended effect.
	Warnings []string
}

// Identity identifies a proxy.
type Identity struct {
	Type           bootstrap.Type
	IPs            []netip.Addr
	Name           string
	Namespace      string
	ServiceAccount string
	TrustDomain    string
	Domain         string
	ClusterID      string
	Labels         map[string]string
	Annotations    map[string]string
	Metadata       map[string]any
	// Locality is region/zone/subzone, as reported by the cloud's metadata server. A locality in Labels has precedence.
	Locality string
}

// SPIFFEID returns the SPIFFE ID for which the agent requests the workload certificate.
func (i Identity) SPIFFEID() string {
	return fmt.Sprintf("spiffe://%s/ns/%s/sa/%s", i.TrustDomain, i.Namespace, i.ServiceAccount)
}

// Envoy configures how Envoy is found, started and supervised.
type Envoy struct {
	Disabled bool
	// Path is --envoy-path, EnvPath is ENVOY_PATH, ConfiguredPath is ProxyConfig's binaryPath, SearchPath is PATH,
	// CacheDir is the project's cache directory.
	Path, EnvPath, ConfiguredPath, SearchPath, CacheDir string
	LogLevel, ComponentLogLevel                         string
	// LogAsJSON makes Envoy log in JSON.
	LogAsJSON                     bool
	Concurrency                   int
	ReadinessPort, PrometheusPort uint32
	// ReadinessProxyProtocol makes the readiness port also accept connections that begin with the PROXY protocol.
	ReadinessProxyProtocol bool
	// LogDeprecations makes Envoy log the use of deprecated fields.
	LogDeprecations bool
	OutlierLog      string
	DualStack       bool
	// CoreDump allows the kernel to write a core file when Envoy crashes.
	CoreDump bool
	// KeepPrivileges lets Envoy run without no_new_privs, so that Envoy may execute files with capabilities or a
	// set-user-ID bit, such as sudo.
	KeepPrivileges bool
	// IgnoreAdvisories disables the warning about an Envoy version with known vulnerabilities.
	IgnoreAdvisories bool
	// Restart restarts Envoy after it exits, within the crash budget.
	Restart bool
	// AdminSocket is the path of a symbolic link to the unix socket of the running Envoy's admin interface. If it is
	// empty, the admin interface listens on a TCP port.
	AdminSocket string
	// User is the user as which Envoy runs; nil selects the agent's own user.
	User *owner.Owner
}

// Bootstrap holds the bootstrap settings other than the proxy's identity and ProxyConfig.
type Bootstrap struct {
	// Override is the content of OverrideFile, which modifies the generated bootstrap by a merge or by patches. Custom
	// is the content of CustomFile, which replaces the generated bootstrap. Both are nil if the user configured no
	// file.
	Override, Custom         []byte
	OverrideFile, CustomFile string
	// HostIP is the node's IP address. It replaces $(HOST_IP) in both files.
	HostIP string
	// GRPCFile is the path to which the agent writes the bootstrap of proxyless gRPC clients. CertDir is the directory of
	// their certificates.
	GRPCFile, CertDir string
	// WorkingDir is the base of relative paths.
	WorkingDir string
	// Env returns the value of an environment variable, for a bootstrap template that uses it.
	Env func(name string) string
	// MemoryLimit is the container's memory limit in bytes; 0 for no limit.
	MemoryLimit uint64
	// Tracing is the mesh's default tracing provider; nil for none.
	Tracing *meshv1.MeshConfig_ExtensionProvider
}

// CustomFiles returns the names of the user's files that modify the bootstrap, as text for messages. It returns "" if
// there are none.
func (c Bootstrap) CustomFiles() string {
	switch {
	case c.Override != nil && c.Custom != nil:
		return c.CustomFile + " with " + c.OverrideFile
	case c.Override != nil:
		return c.OverrideFile
	}
	return c.CustomFile
}

// Shutdown configures the shutdown of the proxy. All its phases together end before Deadline.
type Shutdown struct {
	// Deadline is the maximum duration of the shutdown, from the stop signal to Envoy's exit.
	Deadline time.Duration
	// PreDelay is the time between the stop signal and the drain. Meanwhile the proxy reports that it is not ready, but
	// serves normally.
	PreDelay time.Duration
	// Linger is how long idle connections may stay open after the drain has begun. If WhenIdle is true, they may stay
	// open until the deadline. In both cases, the agent waits for active requests.
	Linger   time.Duration
	WhenIdle bool
	// Minimum is the minimum duration of the drain. After this time, the drain ends as soon as there are no requests
	// and connections for which the agent waits.
	Minimum time.Duration
	// Quiet is the minimum time without a new request or connection before a drain without active traffic ends early; 0
	// disables the wait. Quiet applies only to proxies that have served requests recently.
	Quiet time.Duration
	// TerminationMessage is the file from which Kubernetes reads a container's termination message; empty outside a
	// pod.
	TerminationMessage string
	// Stop is the part of the deadline that the agent reserves for Envoy's exit after SIGTERM.
	Stop time.Duration
}

// QuietLimit returns the time, from the start of the drain, after which the drain no longer waits for a quiet period.
// Istio's proxy ends at the same time.
func (s Shutdown) QuietLimit() time.Duration { return s.Linger - s.PreDelay }

// EndsEarly reports whether a drain can end before QuietLimit if no new requests arrive.
func (s Shutdown) EndsEarly() bool { return s.Quiet > 0 && s.Minimum < s.QuietLimit() }

// AppProbes configures the probes of the application. The kubelet sends them to the agent, and the agent forwards them.
type AppProbes struct {
	// Paths maps the URL path that the kubelet requests from the agent to the probe of the application.
	Paths map[string]probe.Spec
	// HTTP2 allows HTTP/2 for HTTPS probes; KeepAlive reuses connections between probes.
	HTTP2, KeepAlive bool
}

// Setting is one value of the configuration with its source.
type Setting struct {
	Name   string `json:"name" yaml:"name"`
	Value  string `json:"value" yaml:"value"`
	Source string `json:"source" yaml:"source"`
}

// istioVersion is the Istio version that this agent reports to control planes. Control planes use it to decide which
// configuration the proxy supports.
const istioVersion = "1.31.0"

// PeerDialTimeout is the timeout of connections to another agent's sockets.
const PeerDialTimeout = 500 * time.Millisecond

// Values of STATUS_PORT_USERS.
const (
	AnyUser = "any"
	OwnUser = "own" // the agent's user and root may use the status port
)

// controlSocket is the name of the control socket in the directory of configPath.
const controlSocket = "control"

// Sources of settings that are not flags, variables or files.
const (
	sourceDefault     = "default"
	sourceProxyConfig = "environment PROXY_CONFIG"
	sourceAnnotation  = "annotation proxy.istio.io/config"
	sourceCgroup      = "cgroup limit"
)

// Default addresses and paths, the same as in Istio's agent. BootstrapFile is the name of Envoy's bootstrap file in
// configPath.
const (
	defaultDiscovery  = "istiod.istio-system.svc:15012"
	DefaultMeshFile   = "./etc/istio/config/mesh"
	DefaultConfigPath = "./etc/istio/proxy"
	labelsFile        = "./etc/istio/pod/labels"
	annotationsFile   = "./etc/istio/pod/annotations"
	istiodRoot        = "./var/run/secrets/istio/root-cert.pem"
	kubernetesRoot    = "./var/run/secrets/kubernetes.io/serviceaccount/ca.crt"
	customRoot        = "./etc/certs/root-cert.pem"
	thirdPartyToken   = "./var/run/secrets/tokens/istio-token"
	firstPartyToken   = "./var/run/secrets/kubernetes.io/serviceaccount/token"
	identityDir       = "./var/run/secrets/workload-spiffe-uds/"
	identityFiles     = "./var/run/secrets/workload-spiffe-credentials"
	mountedFiles      = "./etc/certs"
	istiodCRL         = "/var/run/secrets/istio/crl/ca-crl.pem"
	BootstrapFile     = "envoy-rev.json"
	defaultGRPCFile   = "./etc/istio/proxy/grpc-bootstrap.json"
	citadel           = "Citadel"
)

// statusSocket returns the path of the unix socket on which Envoy reaches the agent's status server if the status port is
// disabled. It returns "" if the port is enabled.
func (c *Config) statusSocket() string {
	if c.Proxy.GetStatusPort() != 0 {
		return ""
	}
	return socketPath(cmp.Or(c.Proxy.GetConfigPath(), DefaultConfigPath), "status")
}

// BootstrapConfig returns the input of package bootstrap, which builds Envoy's bootstrap.
func (c *Config) BootstrapConfig() bootstrap.Config {
	return bootstrap.Config{
		Type:             c.Identity.Type,
		IPs:              c.Identity.IPs,
		Name:             c.Identity.Name,
		Namespace:        c.Identity.Namespace,
		Domain:           c.Identity.Domain,
		ServiceAccount:   c.Identity.ServiceAccount,
		Labels:           c.Identity.Labels,
		Annotations:      c.Identity.Annotations,
		Metadata:         c.Identity.Metadata,
		ProxyConfig:      c.Proxy,
		ControlPlaneSANs: c.ControlPlane.SANs,
		ControlPlaneRoot: c.ControlPlane.RootFile,
		TLSPolicy:        c.TLSPolicy,
		IstioVersion:     istioVersion,
		SotW:             c.ControlPlane.SotW,
		Bind:             c.Bind,
		ReadinessPort:    c.Envoy.ReadinessPort,
		PrometheusPort:   c.Envoy.PrometheusPort,
		ReadinessProxied: c.Envoy.ReadinessProxyProtocol,
		XDSSocket:        c.ControlPlane.Socket,
		AdminSocket:      c.Envoy.AdminSocket,
		SDSSocket:        c.Certificates.envoySocket(),
		StatusSocket:     c.statusSocket(),
		FilesSocket:      c.Certificates.filesSocket(),
		DualStack:        c.Envoy.DualStack,
		ExitOnZero:       c.Shutdown.WhenIdle,
		OutlierLog:       c.Envoy.OutlierLog,
		Locality:         c.Identity.Locality,
		MemoryLimit:      c.Bootstrap.MemoryLimit,
		TracingProvider:  c.Bootstrap.Tracing,
		Override:         c.Bootstrap.Override,
		OverrideFile:     c.Bootstrap.OverrideFile,
		Custom:           c.Bootstrap.Custom,
		CustomFile:       c.Bootstrap.CustomFile,
		HostIP:           c.Bootstrap.HostIP,
		Env:              c.Bootstrap.Env,
		LogAsJSON:        c.Envoy.LogAsJSON,
		WorkingDir:       c.Bootstrap.WorkingDir,
		CertDir:          c.Bootstrap.CertDir,
		AgentSecret:      c.secretPlaceholder(),

		LocalMetrics:            c.Metrics.OnlyLoopback,
		SecureMetricsPort:       c.Metrics.SecurePort,
		SecureMergedMetricsPort: c.Metrics.SecureMergedPort,
	}
}

// HealthCheck configures how the agent checks the health of an application that no kubelet probes, as on a VM. Its
// source is ProxyConfig's readinessProbe.
type HealthCheck struct {
	Probe        probe.Spec
	InitialDelay time.Duration
	Period       time.Duration
	// SuccessThreshold and FailureThreshold are the numbers of consecutive successes or failures that change the reported
	// health.
	SuccessThreshold, FailureThreshold int
}

// Metrics configures the path /metrics. The path serves the agent's own metrics, merged with the metrics of Envoy and
// the application.
type Metrics struct {
	// Envoy adds Envoy's statistics.
	Envoy bool
	// Applications are the addresses from which the application's metrics are scraped.
	Applications []status.Application
	// OnlyLoopback rejects scrapes from other pods and machines.
	OnlyLoopback bool
	// SecurePort serves Envoy's statistics, and SecureMergedPort the merged metrics, over mutual TLS to clients with a
	// certificate of the mesh. 0 disables the port.
	SecurePort, SecureMergedPort uint32
	// MaxApplicationBytes limits the response of one scrape target.
	MaxApplicationBytes int64
	// AllowReservedNames allows metrics of the application whose names begin with envoy_, istio_ or pilotfish_.
	AllowReservedNames bool
}

// secretPlaceholder returns the text that replaces a secret in a printed bootstrap. Envoy authenticates to the agent's
// sockets with this secret. It returns "" if Envoy sends no secret.
func (c *Config) secretPlaceholder() string {
	if c.ControlPlane.NoSecret || c.Envoy.Disabled {
		return ""
	}
	return "generated when the agent starts"
}

// ControlPath returns the path of the control socket for a configPath.
func ControlPath(configPath string) string {
	return socketPath(cmp.Or(configPath, DefaultConfigPath), controlSocket)
}

// StateOwner returns a text that identifies the workload to which state on disk belongs. It contains no IP address,
// because a restarted workload may have a different one.
func (i Identity) StateOwner() string {
	return fmt.Sprintf("%s~%s.%s~%s~%s", i.Type, i.Name, i.Namespace, i.Domain, i.ClusterID)
}

// FindOptions returns the options with which package envoy finds the Envoy binary to run.
func (c Envoy) FindOptions() envoy.FindOptions {
	return envoy.FindOptions{Path: c.Path, EnvPath: c.EnvPath, ConfiguredPath: c.ConfiguredPath, CacheDir: c.CacheDir, PathEnv: c.SearchPath}
}
