package mesh

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshconfig "istio.io/api/mesh/v1alpha1"
	networkingbeta "istio.io/api/networking/v1beta1"
)

// Where the agent expects its files, from its working directory: the contract of Istio's agent.
const (
	meshConfigPath  = "etc/istio/config/mesh"
	labelsPath      = "etc/istio/pod/labels"
	annotationsPath = "etc/istio/pod/annotations"
	// bootstrapPatchPath is what EnvoyFilters merge into the bootstrap.
	bootstrapPatchPath = "etc/istio/config/bootstrap.json"
	tokenPath          = "var/run/secrets/tokens/istio-token"
	rootCertPath       = "var/run/secrets/istio/root-cert.pem"
	identityPath       = "var/run/secrets/workload-spiffe-uds"
)

const (
	// tokenTTL is short, because a token is a file that others of this user can read; it is renewed at half its life.
	tokenTTL = time.Hour
	// terminationDrain is how long a sidecar that is stopped alone lets requests finish.
	terminationDrain = time.Second
	// preDrainDelay is how long it serves on: until readyInterval shows that it ends, and others know.
	preDrainDelay = 2 * readyInterval
)

// issuer signs what proves a workload's identity to the control plane.
type issuer interface {
	IssueToken(namespace, serviceAccount string, ttl time.Duration) (string, error)
	RootPEM() []byte
}

// sidecarFiles are the files of one agent, in its working directory.
type sidecarFiles struct {
	dir      string
	instance *Instance
	mesh     *meshconfig.MeshConfig
	issuer   issuer
	// roots are those that the agent was given.
	roots []byte
}

// write lays out the agent's working directory.
func (s *sidecarFiles) write() error {
	for _, path := range []string{meshConfigPath, labelsPath, tokenPath, rootCertPath, identityPath + "/socket", "etc/istio/proxy/XDS"} {
		if err := os.MkdirAll(filepath.Join(s.dir, filepath.Dir(path)), 0o700); err != nil {
			return fmt.Errorf("making the agent's directory: %w", withRemedy(err))
		}
	}
	meshFile, err := protojson.Marshal(proxyMesh(s.mesh))
	if err != nil {
		return fmt.Errorf("writing the agent's mesh configuration: %w", err)
	}
	w := s.instance.workload
	for path, data := range map[string][]byte{
		meshConfigPath:  meshFile,
		labelsPath:      downwardFile(w.Labels),
		annotationsPath: downwardFile(w.Annotations),
	} {
		if err := writeFile(filepath.Join(s.dir, path), data, 0o600); err != nil {
			return err
		}
	}
	if err := s.renewRoots(); err != nil {
		return err
	}
	return s.renewToken()
}

// renewRoots puts the authority's roots, where they changed, where the agent reads them for every connection. Without that
// it would take the control plane for a stranger once the root that it started with is retired.
func (s *sidecarFiles) renewRoots() error {
	roots := s.issuer.RootPEM()
	if bytes.Equal(roots, s.roots) {
		return nil
	}
	if err := writeFile(filepath.Join(s.dir, rootCertPath), roots, 0o600); err != nil {
		return err
	}
	s.roots = roots
	return nil
}

// renewToken puts a fresh token where the agent reads it for every call.
func (s *sidecarFiles) renewToken() error {
	w := s.instance.workload
	token, err := s.issuer.IssueToken(w.Namespace, w.ServiceAccount, tokenTTL)
	if err != nil {
		return fmt.Errorf("issuing a token to workload %s: %w", s.instance.Name, err)
	}
	return writeFile(filepath.Join(s.dir, tokenPath), []byte(token), 0o600)
}

// proxyMesh is the mesh configuration for proxies: the user's, with defaults that fit many proxies on one machine.
func proxyMesh(m *meshconfig.MeshConfig) *meshconfig.MeshConfig {
	m = proto.Clone(m).(*meshconfig.MeshConfig)
	if m.DefaultConfig == nil {
		m.DefaultConfig = &meshconfig.ProxyConfig{}
	}
	d := m.DefaultConfig
	if d.Concurrency == nil {
		d.Concurrency = wrapperspb.Int32(1)
	}
	if d.TerminationDrainDuration == nil {
		d.TerminationDrainDuration = durationpb.New(terminationDrain)
	}
	return m
}

// downwardFile is a map in the form of Kubernetes' downward API: one key="value" a line, sorted.
func downwardFile(m map[string]string) []byte {
	var b strings.Builder
	for _, k := range sortedKeys(m) {
		fmt.Fprintf(&b, "%s=%s\n", k, strconv.Quote(m[k]))
	}
	return []byte(b.String())
}

// inherited are the variables that an agent keeps of the environment that the mesh was started in. Everything else
// might change what it does: an ISTIO_META_ variable of the user's, for instance.
var inherited = []string{"PATH", "HOME", "XDG_CACHE_HOME", "TMPDIR", "LANG", "TZ", "GODEBUG", "GOTRACEBACK", "GOCOVERDIR", "SSL_CERT_FILE", "SSL_CERT_DIR"}

// agentDir is the working directory of an instance's agent.
func (m *Mesh) agentDir(i *Instance) string {
	return filepath.Join(m.runtime.path, workloadsDir, i.Name)
}

// agentEnv is the environment of an instance's agent.
func (m *Mesh) agentEnv(i *Instance, at Attachment) ([]string, error) {
	bootstrap, err := m.documentedBootstrap(i)
	if err != nil {
		return nil, err
	}
	env := slices.Concat(m.inheritedEnv(), bootstrap, m.documentedEnv(i))
	discovery := fmt.Sprintf("%s:%d", m.placement.ControlPlane(), securePort)
	proxyConfig, err := m.proxyConfig(discovery)
	if err != nil {
		return nil, err
	}
	w := i.workload
	ports, err := podPorts(w)
	if err != nil {
		return nil, err
	}
	env = append(env,
		"INSTANCE_IP="+i.Proxy.String(),
		"HOST_IP="+m.placement.ControlPlane().String(),
		"POD_NAME="+i.Name,
		"POD_NAMESPACE="+w.Namespace,
		"SERVICE_ACCOUNT="+w.ServiceAccount,
		"TRUST_DOMAIN="+m.cfg.Topology.TrustDomain,
		"CA_ADDR="+discovery,
		"PROXY_CONFIG="+proxyConfig,
		"ECC_SIGNATURE_ALGORITHM=ECDSA",
		// A new root is known to all as soon as it is announced, and not only when certificates are renewed.
		"PROXY_CONFIG_XDS_AGENT=true",
		fmt.Sprintf("TOKEN_EXCHANGE_URL=https://%s:%d/token", m.placement.ControlPlane(), exchangePort),
		"TOKEN_EXCHANGE_ROOT_CA="+rootCertPath,
		"ENVOY_PATH="+m.envoy.Path,
		"TERMINATION_GRACE_PERIOD="+defaultStopTimeout.String(),
		"PRE_DRAIN_DELAY="+preDrainDelay.String(),
		"ISTIO_META_WORKLOAD_NAME="+w.Name,
		"ISTIO_META_OWNER=pilotfish://meshes/"+m.cfg.Topology.Name+"/workloads/"+w.Name,
		"ISTIO_META_POD_PORTS="+ports,
		"ISTIO_META_MESH_ID="+m.cfg.Topology.TrustDomain,
		"ISTIO_META_CLUSTER_ID=Kubernetes",
		runVariable+"="+m.runID,
	)
	return append(env, at.AgentEnv...), nil
}

// documentedEnv are the variables that ProxyConfigs say; what the mesh itself sets counts above them.
func (m *Mesh) documentedEnv(i *Instance) []string {
	of := m.documentedConfig(i).GetEnvironmentVariables()
	var env []string
	for _, name := range sortedKeys(of) {
		env = append(env, name+"="+of[name])
	}
	return env
}

// documentedThreads are the arguments for as many of Envoy's threads as ProxyConfigs say: above all else that says so.
func (m *Mesh) documentedThreads(i *Instance) []string {
	n := m.documentedConfig(i).GetConcurrency()
	switch {
	case n == nil:
		return nil
	case n.GetValue() == 0:
		return []string{"--concurrency", strconv.Itoa(runtime.NumCPU())}
	}
	return []string{"--concurrency", strconv.Itoa(int(n.GetValue()))}
}

// documentedConfig is what ProxyConfigs say of an instance; nothing while there is no control plane.
func (m *Mesh) documentedConfig(i *Instance) *networkingbeta.ProxyConfig {
	p := m.currentPlane()
	if p == nil {
		return nil
	}
	return p.proxyConfig(i.workload.Namespace, i.workload.Labels)
}

// documentedBootstrap has the agent merge what EnvoyFilters say of the bootstrap: it writes that into a file, and gives the
// variable that names it.
func (m *Mesh) documentedBootstrap(i *Instance) ([]string, error) {
	p := m.currentPlane()
	if p == nil {
		return nil, nil
	}
	text, err := p.bootstrap(i.workload)
	if err != nil {
		return nil, fmt.Errorf("the bootstrap of workload %s, as EnvoyFilters change it: %w", i.Name, err)
	}
	if len(text) == 0 {
		return nil, nil
	}
	if err := writeFile(filepath.Join(m.agentDir(i), bootstrapPatchPath), text, 0o600); err != nil {
		return nil, err
	}
	return []string{"ISTIO_BOOTSTRAP_OVERRIDE=" + bootstrapPatchPath}, nil
}

func (m *Mesh) inheritedEnv() []string {
	var env []string
	for _, name := range inherited {
		if v := lookupEnv(m.cfg.Environ, name); v != "" {
			env = append(env, name+"="+v)
		}
	}
	return env
}

// podPorts are the workload's ports as the control plane reads them of a pod, for Services whose targetPort is a name.
func podPorts(w *Workload) (string, error) {
	type containerPort struct {
		Name          string `json:"name"`
		ContainerPort uint16 `json:"containerPort"`
	}
	ports := []containerPort{}
	for _, p := range w.Ports {
		ports = append(ports, containerPort{p.Name, p.Port})
	}
	out, err := json.Marshal(ports)
	return string(out), err
}

// statsPrefixes are what status and the mesh's users read of Envoy's statistics, besides the agent's own selection.
var statsPrefixes = []string{"http.", "cluster.outbound", "cluster.inbound"}

// proxyConfig is what only this mesh knows, in the form of Istio's PROXY_CONFIG; it stands above the mesh file.
func (m *Mesh) proxyConfig(discovery string) (string, error) {
	cfg := map[string]any{"discoveryAddress": discovery}
	if m.cfg.Topology.Mesh.GetDefaultConfig().GetProxyStatsMatcher() == nil {
		cfg["proxyStatsMatcher"] = map[string]any{"inclusionPrefixes": statsPrefixes}
	}
	out, err := json.Marshal(cfg)
	return string(out), err
}

// appEnv is the environment of an instance's application: that of the mesh's own process, and that of its place.
func (m *Mesh) appEnv(i *Instance, at Attachment) ([]string, error) {
	place, err := m.placeEnv(i, at)
	return append(append([]string(nil), m.cfg.Environ...), place...), err
}

// placeEnv is what an application has to know of its place, and what the topology says.
func (m *Mesh) placeEnv(i *Instance, at Attachment) ([]string, error) {
	w := i.workload
	vars := i.variables(m.cfg.Topology.baseDir(), m.cfg.SelfPath)
	env := append([]string(nil), at.AppEnv...)
	env = append(env,
		"PILOTFISH_APP_ADDRESS="+i.App.String(),
		"PILOTFISH_DNS_ADDRESS="+i.dnsAddress(),
		"PILOTFISH_NAME="+i.Name,
		"PILOTFISH_NAMESPACE="+w.Namespace,
		"PILOTFISH_TOKEN_FILE="+filepath.Join(m.agentDir(i), tokenPath),
		"PILOTFISH_TOKEN_URL="+i.tokenURL(),
		runVariable+"="+m.runID,
	)
	if vars["PORT"] != "" {
		env = append(env, "PORT="+vars["PORT"])
	}
	for _, u := range w.Upstreams {
		env = append(env, u.variable()+"="+vars[u.variable()])
	}
	for _, name := range sortedKeys(w.Env) {
		value, err := expand(w.Env[name], vars)
		if err != nil {
			return nil, fmt.Errorf("variable %s of workload %s: %w", name, w.Name, err)
		}
		env = append(env, name+"="+value)
	}
	return env, nil
}

// appArgs is the application's command with its variables expanded.
func (m *Mesh) appArgs(i *Instance) ([]string, error) {
	vars := i.variables(m.cfg.Topology.baseDir(), m.cfg.SelfPath)
	args := make([]string, len(i.workload.Command))
	for n, arg := range i.workload.Command {
		var err error
		if args[n], err = expand(arg, vars); err != nil {
			return nil, fmt.Errorf("command of workload %s: %w", i.workload.Name, err)
		}
	}
	return args, nil
}
