package config

import (
	"cmp"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"time"

	meshv1 "istio.io/api/mesh/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/bootstrap"
	"github.com/pilotfish-mesh/pilotfish/internal/fstimeout"
	"github.com/pilotfish-mesh/pilotfish/sds"
)

// Inputs contains everything that a configuration is resolved from, except files at fixed paths in the working
// directory.
type Inputs struct {
	Flags Flags
	// Env is the environment, as "name=value".
	Env []string
	// Interfaces returns the IP addresses of the machine's network interfaces; may be nil.
	Interfaces func() ([]netip.Addr, error)
	// InterfaceAddresses returns the IP addresses of one network interface; may be nil.
	InterfaceAddresses func(name string) ([]netip.Addr, error)
	// LookupHost returns the IP addresses of a host name; nil disables the lookup.
	LookupHost func(host string) ([]netip.Addr, error)
	// AwaitAddress waits until the machine has an IP address other than loopback, and returns its addresses. If it is
	// nil, Resolve does not wait.
	AwaitAddress func() []netip.Addr
	// CacheDir is the project's cache directory, which may contain an Envoy.
	CacheDir string
	// WorkingDir is the base of the relative paths.
	WorkingDir string
	// Limits returns the cgroup limits of the process; nil means no limits.
	Limits Limits
	// DetectExternalServer detects which service another process serves on the certificate socket. nil disables the
	// detection. The function ignores a running agent, which also listens on the control socket. If wait is set, it
	// waits until it finds a server or a timeout has passed.
	DetectExternalServer func(socket, control string, wait bool) sds.ExternalServer
	// Cloud reads the machine's location from the metadata server of a cloud platform; nil disables the query.
	Cloud func(platform string) (CloudLocation, error)
}

// Flags are the flags of the command `proxy`. Changed contains the names of the flags that the user set.
type Flags struct {
	Type              string
	Domain            string
	MeshConfig        string
	ServiceCluster    string
	LogLevel          string
	ComponentLogLevel string
	LogAsJSON         bool
	OutlierLog        string
	TemplateFile      string
	Concurrency       int
	EnvoyPath         string
	Restart           bool
	Profiling         bool
	TokenPort         int
	Changed           map[string]bool
}

// statTimeout limits each check whether a file exists. The check hangs on an unreachable network file system.
const statTimeout = 3 * time.Second

// Resolve returns the configuration. Its sources in ascending precedence are: defaults, the mesh file, PROXY_CONFIG, the
// pod's annotations, other environment variables, flags. It reports all invalid settings in one error, each with its
// name, value and remedy.
func Resolve(in Inputs) (*Config, error) {
	r := &resolver{in: in, env: newEnvironment(in.Env), merger: newProxyConfigMerger(), config: &Config{}, fs: fstimeout.TimeoutFS{Timeout: statTimeout}}
	if err := r.resolveProxyType(); err != nil {
		return nil, err
	}
	if err := r.mergeProxyConfig(); err != nil {
		return nil, err
	}
	r.resolveIdentity()
	r.resolveCloud()
	r.resolveControlPlane()
	r.resolveCertificates()
	r.resolveEnvoy()
	r.resolveSocketUsers()
	r.resolveBootstrap()
	r.resolveShutdown()
	r.resolveAppProbes()
	r.resolveHealthCheck()
	r.resolveMetrics()
	r.resolveHealth()
	r.resolveLastGood()
	r.resolveMisc()
	r.resolveTokenExchange()
	r.resolveDNS()
	r.resolveWasm()
	r.warnIneffective()
	if err := r.env.err(); err != nil {
		return nil, err
	}
	r.config.Settings = append(r.env.settings, r.merger.settings()...)
	r.config.Warnings = append(r.env.warnings, bootstrap.Warnings(r.config.BootstrapConfig())...)
	return r.config, nil
}

type resolver struct {
	in     Inputs
	env    *environment
	merger *proxyConfigMerger
	mesh   *meshv1.MeshConfig
	file   string // path of the mesh file
	config *Config
	fs     fstimeout.TimeoutFS // its operations fail after a timeout if the file system hangs
}

func (r *resolver) resolveProxyType() error {
	switch t := bootstrap.Type(cmp.Or(r.in.Flags.Type, string(bootstrap.Sidecar))); t {
	case bootstrap.Sidecar, bootstrap.Router, bootstrap.Waypoint:
		r.config.Identity.Type = t
		source := "argument"
		if r.in.Flags.Type == "" {
			source = sourceDefault
		}
		r.env.addSetting("type", t, source)
		return nil
	case "ztunnel", "agentgateway":
		return fmt.Errorf("proxy type %q is not supported, because it does not use Envoy; use sidecar, router or waypoint", t)
	default:
		return fmt.Errorf("proxy type %q is not known; use sidecar, router or waypoint", t)
	}
}

// mergeProxyConfig merges the sources of Istio's ProxyConfig.
func (r *resolver) mergeProxyConfig() error {
	r.file = cmp.Or(r.in.Flags.MeshConfig, DefaultMeshFile)
	mesh, doc, err := r.readMeshFile(r.file)
	if err != nil {
		return err
	}
	r.mesh = mesh
	if doc == nil && r.in.Flags.Changed["meshConfig"] {
		r.env.warn("--meshConfig %s: the file does not exist or is empty; the defaults are used", r.file)
	}
	if section := doc.Section("defaultConfig"); section != nil {
		r.merger.merge(mesh.GetDefaultConfig(), section, "mesh file "+r.file)
	}
	if err := r.mergeProxyConfigYAML(r.env.vars["PROXY_CONFIG"], sourceProxyConfig); err != nil {
		return err
	}
	r.config.Identity.Labels = r.readPodInfo(labelsFile)
	r.config.Identity.Annotations = r.readPodInfo(annotationsFile)
	if err := r.applyAnnotations(); err != nil {
		return err
	}
	if r.in.Flags.Changed["serviceCluster"] {
		r.merger.merged.ClusterName = &meshv1.ProxyConfig_ServiceCluster{ServiceCluster: r.in.Flags.ServiceCluster}
		r.merger.sources["service_cluster"] = "flag --serviceCluster"
	}
	r.config.Proxy = r.merger.merged
	return nil
}

// readPodInfo reads the pod's labels or annotations from a file of the downward API. As in Istio, an unreadable file is
// the same as a missing one.
func (r *resolver) readPodInfo(file string) map[string]string {
	values, err := readPodInfo(file)
	if err != nil {
		r.env.warn("%v; the file has no effect", err)
	}
	return values
}

// isPlaintext reports whether the agent connects to addresses, a comma-separated list, without TLS. As in Istio's agent,
// it does so if all ports are 15010, or if controlPlaneAuthPolicy is NONE.
func (r *resolver) isPlaintext(addresses string) bool {
	for address := range strings.SplitSeq(addresses, ",") {
		if !strings.HasSuffix(strings.TrimSpace(address), ":15010") {
			return r.config.Proxy.GetControlPlaneAuthPolicy() == meshv1.AuthenticationPolicy_NONE
		}
	}
	return true
}

func (r *resolver) defaultRootFile() string {
	switch provider := cmp.Or(r.env.vars["PILOT_CERT_PROVIDER"], "istiod"); {
	case provider == "kubernetes":
		return kubernetesRoot
	case provider == "custom":
		return customRoot
	case provider == "istiod" || provider == "none" || strings.HasPrefix(provider, "k8s.io/"):
		return istiodRoot
	default:
		r.env.rejectValue("PILOT_CERT_PROVIDER", provider, "use one of istiod, kubernetes, custom, none, k8s.io/<signer>", "istiod", nil)
		return istiodRoot
	}
}

// socketPath joins directory and name. A relative path starts with "./".
func socketPath(dir, name string) string {
	path := filepath.Join(dir, name)
	if !filepath.IsAbs(path) {
		path = "./" + path
	}
	return path
}
