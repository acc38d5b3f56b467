package agent

import (
	"cmp"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"time"

	meshv1 "istio.io/api/mesh/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/bootstrap"
	"github.com/pilotfish-mesh/pilotfish/internal/disks"
	"github.com/pilotfish-mesh/pilotfish/sds"
)

// Inputs are what a configuration is made of, besides the files that the working directory holds by contract.
type Inputs struct {
	Flags Flags
	// Env is the environment, as "name=value".
	Env []string
	// Interfaces gives the machine's addresses; nil gives none.
	Interfaces func() ([]netip.Addr, error)
	// AwaitAddress gives the addresses of a machine that has none yet, once it has; nil does not wait.
	AwaitAddress func() []netip.Addr
	// CacheDir is the project's cache, where an Envoy may lie.
	CacheDir string
	// WorkingDir is what the relative paths of the contract are relative to.
	WorkingDir string
	// Limits are those of the control group that the agent and Envoy are in; nil for none.
	Limits Limits
	// Outside says what somebody else than the agent of the control socket serves on the socket of certificates; nil looks
	// nowhere. It may wait for what is named and not there yet.
	Outside func(socket, control string, wait bool) sds.Outside
	// Cloud asks the platform that was named where this machine is; nil asks nobody.
	Cloud func(platform string) (Place, error)
}

// Flags are the command line of `proxy`. Given says which flags were there.
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
	Given             map[string]bool
}

// startPatience is how long a file system is waited for of which it is only asked whether a file is there.
const startPatience = 3 * time.Second

// Resolve makes the configuration: defaults, then the mesh file, PROXY_CONFIG and the pod's annotation, each over those
// before it, then variables and flags. What is wrong is refused, all of it at once, with name, value and remedy.
func Resolve(in Inputs) (*Config, error) {
	r := &resolver{in: in, env: newEnvironment(in.Env), layers: newLayers(), config: &Config{}, disks: disks.Disks{Patience: startPatience}}
	if err := r.proxyType(); err != nil {
		return nil, err
	}
	if err := r.proxyConfig(); err != nil {
		return nil, err
	}
	r.identity()
	r.cloud()
	r.controlPlane()
	r.certificates()
	r.envoy()
	r.clientUsers()
	r.bootstrapSettings()
	r.shutdown()
	r.appProbes()
	r.healthCheck()
	r.metrics()
	r.readiness()
	r.lastGood()
	r.others()
	r.tokenExchange()
	r.names()
	r.wasm()
	r.unheard()
	if err := r.env.err(); err != nil {
		return nil, err
	}
	r.config.Settings = append(r.env.settings, r.layers.settings()...)
	r.config.Warnings = append(r.env.warnings, bootstrap.Warnings(r.config.bootstrap(istioVersion))...)
	return r.config, nil
}

type resolver struct {
	in     Inputs
	env    *environment
	layers *layers
	mesh   *meshv1.MeshConfig
	file   string // the mesh file
	config *Config
	disks  disks.Disks // where files of the contract may lie
}

func (r *resolver) proxyType() error {
	switch t := bootstrap.Type(cmp.Or(r.in.Flags.Type, string(bootstrap.Sidecar))); t {
	case bootstrap.Sidecar, bootstrap.Router, bootstrap.Waypoint:
		r.config.Identity.Type = t
		source := "argument"
		if r.in.Flags.Type == "" {
			source = sourceDefault
		}
		r.env.note("type", t, source)
		return nil
	case "ztunnel", "agentgateway":
		return fmt.Errorf("proxy type %q is no Envoy, and has an agent of its own; use sidecar, router or waypoint", t)
	default:
		return fmt.Errorf("proxy type %q is not known; use sidecar, router or waypoint", t)
	}
}

// proxyConfig merges the sources of Istio's ProxyConfig.
func (r *resolver) proxyConfig() error {
	r.file = cmp.Or(r.in.Flags.MeshConfig, defaultMeshFile)
	mesh, doc, err := r.meshFile(r.file)
	if err != nil {
		return err
	}
	r.mesh = mesh
	if doc == nil && r.in.Flags.Given["meshConfig"] {
		r.env.warn("--meshConfig %s: there is no such file, or nothing in it; the defaults hold", r.file)
	}
	if section := doc.Section("defaultConfig"); section != nil {
		r.layers.add(mesh.GetDefaultConfig(), section, "mesh file "+r.file)
	}
	if err := r.proxyConfigYAML(r.env.vars["PROXY_CONFIG"], sourceProxyConfig); err != nil {
		return err
	}
	if err := r.pod(); err != nil {
		return err
	}
	if err := r.annotations(); err != nil {
		return err
	}
	if r.in.Flags.Given["serviceCluster"] {
		r.layers.merged.ClusterName = &meshv1.ProxyConfig_ServiceCluster{ServiceCluster: r.in.Flags.ServiceCluster}
		r.layers.sources["service_cluster"] = "flag --serviceCluster"
	}
	r.config.Proxy = r.layers.merged
	return nil
}

// pod reads the labels and annotations of the pod that the proxy is in.
func (r *resolver) pod() (err error) {
	if r.config.Identity.Labels, err = readPodInfo(labelsFile); err != nil {
		return err
	}
	r.config.Identity.Annotations, err = readPodInfo(annotationsFile)
	return err
}

// noStatusPort takes the agent's status port away.
const noStatusPort = "0"

// statsAnnotation begins those that change the bootstrap's statistics, which the bootstrap reads itself.
const statsAnnotation = "sidecar.istio.io/stats"

// annotations that change the proxy's configuration; the two of their own win over the one for all.
func (r *resolver) annotations() error {
	a := r.config.Identity.Annotations
	for _, name := range sortedKeys(a) {
		if strings.HasPrefix(name, statsAnnotation) || name == "sidecar.istio.io/extraStatTags" {
			r.env.note(strings.TrimPrefix(name, "sidecar.istio.io/"), a[name], "annotation "+name)
		}
	}
	if err := r.proxyConfigYAML(a["proxy.istio.io/config"], sourceAnnotation); err != nil {
		return err
	}
	if v := a["sidecar.istio.io/discoveryAddress"]; v != "" {
		r.layers.merged.DiscoveryAddress = v
		r.layers.sources["discovery_address"] = "annotation sidecar.istio.io/discoveryAddress"
	}
	if v := a["status.sidecar.istio.io/port"]; v != "" {
		port, err := parsePort(v)
		if err != nil && v != noStatusPort {
			return fmt.Errorf("annotation status.sidecar.istio.io/port: %q: write a port from 1 to 65535, or 0 for none", v)
		}
		r.layers.merged.StatusPort = port
		r.layers.sources["status_port"] = "annotation status.sidecar.istio.io/port"
	}
	return nil
}

// plaintext is how Istio's agent decides it: by the policy, or by the port that never has TLS.
func (r *resolver) plaintext(address string) bool {
	for one := range strings.SplitSeq(address, ",") {
		if !strings.HasSuffix(strings.TrimSpace(one), ":15010") {
			return r.config.Proxy.GetControlPlaneAuthPolicy() == meshv1.AuthenticationPolicy_NONE
		}
	}
	return true
}

func (r *resolver) defaultRoot() string {
	switch provider := cmp.Or(r.env.vars["PILOT_CERT_PROVIDER"], "istiod"); {
	case provider == "kubernetes":
		return kubernetesRoot
	case provider == "custom":
		return customRoot
	case provider == "istiod" || provider == "none" || strings.HasPrefix(provider, "k8s.io/"):
		return istiodRoot
	default:
		r.env.refuse("PILOT_CERT_PROVIDER", provider, "use one of istiod, kubernetes, custom, none, k8s.io/<signer>")
		return istiodRoot
	}
}

// socketPath joins a directory and a name, and keeps the "./" that shows a path to be relative.
func socketPath(dir, name string) string {
	path := filepath.Join(dir, name)
	if !filepath.IsAbs(path) {
		path = "./" + path
	}
	return path
}
