package agent

import (
	"cmp"
	"fmt"
	"net/netip"
	"time"

	meshv1 "istio.io/api/mesh/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/bootstrap"
	"github.com/pilotfish-mesh/pilotfish/internal/owner"
	"github.com/pilotfish-mesh/pilotfish/internal/probe"
	"github.com/pilotfish-mesh/pilotfish/internal/tlspolicy"
)

// Config is all that the agent does its work by. Resolve makes it; nothing else reads the environment.
type Config struct {
	// Identity says who the proxy is.
	Identity Identity
	// Proxy is Istio's own configuration of a proxy, all sources merged.
	Proxy *meshv1.ProxyConfig

	Envoy        EnvoyConfig
	Bootstrap    BootstrapConfig
	ControlPlane ControlPlaneConfig
	Certificates CertificateConfig
	// TLSPolicy narrows the TLS of the agent's connections, and of what the bootstrap has.
	TLSPolicy tlspolicy.Policy
	// CredentialFetcher is where the token for the control plane and the authority comes from: a file, or the cloud.
	CredentialFetcher string
	// MetadataServer is the host where the cloud gives that token.
	MetadataServer string
	Shutdown       ShutdownConfig
	AppProbes      AppProbesConfig
	// TokenExchange is nil when no tokens are exchanged.
	TokenExchange *TokenExchangeConfig
	// Names is nil when no DNS questions are answered.
	Names *NamesConfig
	// Wasm is nil when Envoy fetches its Wasm modules itself.
	Wasm *WasmConfig
	// HealthCheck is nil when no application is to be watched.
	HealthCheck *HealthCheckConfig
	// LastGood is where what Envoy accepted is kept.
	LastGood LastGoodConfig
	// Health says when the proxy itself counts as unwell.
	Health HealthConfig

	// Bind, when valid, is the one address that the agent's and Envoy's own ports are bound to.
	Bind netip.Addr
	// Metrics are joined to the agent's own at /metrics.
	Metrics MetricsConfig
	// Profiling offers profiles of the agent on the status port, to loopback.
	Profiling bool

	// Settings tells each value and where it came from, in the order of resolution.
	Settings []Setting
	// Warnings are what was given and will not do what its author may expect.
	Warnings []string
}

// Identity says who a proxy is.
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
	// Locality is region/zone/subzone by the cloud; labels that say it win.
	Locality string
}

// SPIFFEID is the identity that the proxy asks a certificate for.
func (i Identity) SPIFFEID() string {
	return fmt.Sprintf("spiffe://%s/ns/%s/sa/%s", i.TrustDomain, i.Namespace, i.ServiceAccount)
}

// EnvoyConfig says how Envoy is found, started and watched.
type EnvoyConfig struct {
	Disabled bool
	// Path is --envoy-path, EnvPath is ENVOY_PATH, SearchPath is PATH, CacheDir the project's cache.
	Path, EnvPath, SearchPath, CacheDir string
	LogLevel, ComponentLogLevel         string
	// LogAsJSON makes each line of Envoy's log an object.
	LogAsJSON                     bool
	Concurrency                   int
	ReadinessPort, PrometheusPort uint32
	OutlierLog                    string
	DualStack                     bool
	// CoreDump lets Envoy write its memory to a file when it crashes.
	CoreDump bool
	// Restart starts an Envoy that died again, while that does not happen too often.
	Restart bool
	// User is who Envoy runs as; nil is the agent's own user.
	User *owner.Owner
}

// BootstrapConfig is what changes Envoy's bootstrap besides the proxy's identity and ProxyConfig.
type BootstrapConfig struct {
	// Override is merged into the bootstrap, or patches it; Custom takes its place. Both are the contents of the files.
	Override, Custom         []byte
	OverrideFile, CustomFile string
	// HostIP is the node's address, for $(HOST_IP) in the files.
	HostIP string
	// GRPCFile is where the bootstrap of proxyless clients is written; CertDir is where their certificates are.
	GRPCFile, CertDir string
	// WorkingDir is what relative paths are relative to.
	WorkingDir string
	// Env gives variables of the environment to a template that asks for them.
	Env func(name string) string
	// MemoryLimit is how many bytes the container may use; 0 for no limit.
	MemoryLimit uint64
	// Tracing is the mesh's default provider; nil for none.
	Tracing *meshv1.MeshConfig_ExtensionProvider
}

// author names the files by which somebody else than the agent has a say in the bootstrap; empty for none.
func (c BootstrapConfig) author() string {
	switch {
	case c.Override != nil && c.Custom != nil:
		return c.CustomFile + " with " + c.OverrideFile
	case c.Override != nil:
		return c.OverrideFile
	}
	return c.CustomFile
}

// ShutdownConfig says how the agent ends. All of it happens before one deadline.
type ShutdownConfig struct {
	// Deadline is how long the whole end may take, from the order to end to Envoy's last moment.
	Deadline time.Duration
	// PreDelay is how long the proxy serves on as before, although it says that it is not ready any more.
	PreDelay time.Duration
	// Linger is how long connections without a request are given to leave once the drain has begun. With WhenIdle they
	// are waited for until the deadline. Requests always are.
	Linger   time.Duration
	WhenIdle bool
	// Minimum is how long the drain takes at least; after that it ends as soon as nothing is left to wait for.
	Minimum time.Duration
	// TerminationMessage is the file that Kubernetes takes a container's last words from; empty outside a pod.
	TerminationMessage string
	// Stop is how much of the deadline is kept for Envoy to end in, before it is killed.
	Stop time.Duration
}

// AppProbesConfig says how the agent asks the application on a kubelet's behalf.
type AppProbesConfig struct {
	// Paths are the probes, by the path under which the kubelet asks the agent.
	Paths map[string]probe.Spec
	// HTTP2 offers HTTP/2 to applications that are asked with HTTPS; KeepAlive keeps connections from probe to probe.
	HTTP2, KeepAlive bool
}

// Setting is one value of the configuration and where it came from.
type Setting struct {
	Name   string `json:"name" yaml:"name"`
	Value  string `json:"value" yaml:"value"`
	Source string `json:"source" yaml:"source"`
}

// The sources of settings that are not named by a flag, a variable or a file.
const (
	sourceDefault     = "default"
	sourceProxyConfig = "environment PROXY_CONFIG"
	sourceAnnotation  = "annotation proxy.istio.io/config"
	sourceCgroup      = "control group's limit"
)

// Names of ports and paths by the agent's contract.
const (
	defaultDiscovery  = "istiod.istio-system.svc:15012"
	defaultMeshFile   = "./etc/istio/config/mesh"
	defaultConfigPath = "./etc/istio/proxy"
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
	bootstrapFile     = "envoy-rev.json"
	defaultGRPCFile   = "./etc/istio/proxy/grpc-bootstrap.json"
	citadel           = "Citadel"
)

// statusSocket is where the status server answers Envoy when nobody else is to ask it; empty for at its port.
func (c *Config) statusSocket() string {
	if c.Proxy.GetStatusPort() != 0 {
		return ""
	}
	return socketPath(cmp.Or(c.Proxy.GetConfigPath(), defaultConfigPath), "status")
}

// bootstrap is the part of the configuration that Envoy's bootstrap is made of.
func (c *Config) bootstrap(istioVersion string) bootstrap.Config {
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
		XDSSocket:        c.ControlPlane.Socket,
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

		LocalMetrics:            c.Metrics.OnlyLoopback,
		SecureMetricsPort:       c.Metrics.SecurePort,
		SecureMergedMetricsPort: c.Metrics.SecureMergedPort,
	}
}
