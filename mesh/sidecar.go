package mesh

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
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

	"github.com/pilotfish-mesh/pilotfish/mesh/topology"
)

// Paths of the agent's files, relative to its working directory. Istio's agent has the same paths.
const (
	meshConfigPath  = "etc/istio/config/mesh"
	labelsPath      = "etc/istio/pod/labels"
	annotationsPath = "etc/istio/pod/annotations"
	// bootstrapPatchPath is the file with the patch that EnvoyFilters specify for the bootstrap.
	bootstrapPatchPath = "etc/istio/config/bootstrap.json"
	tokenPath          = "var/run/secrets/tokens/istio-token"
	rootCertPath       = "var/run/secrets/istio/root-cert.pem"
	identityPath       = "var/run/secrets/workload-spiffe-uds"
)

const (
	// tokenTTL is short, because other processes of this user can read the token file. The mesh renews the token after
	// half of its lifetime.
	tokenTTL = time.Hour
	// terminationDrain is the drain duration of a sidecar that is stopped while the mesh runs.
	terminationDrain = time.Second
	// preDrainDelay is how long a stopped sidecar still accepts connections. In this time, a check at readyInterval
	// detects the stop, and the other proxies receive the change.
	preDrainDelay = 2 * readyInterval
)

// credentialIssuer issues the credentials with which a workload authenticates to the control plane.
type credentialIssuer interface {
	IssueToken(namespace, serviceAccount string, ttl time.Duration) (string, error)
	RootPEM() []byte
}

// sidecarFiles writes the files of one agent in its working directory.
type sidecarFiles struct {
	dir      string
	instance *topology.Instance
	mesh     *meshconfig.MeshConfig
	issuer   credentialIssuer
	// roots contains the root certificates that were written last.
	roots []byte
}

// write creates the agent's working directory and files.
func (s *sidecarFiles) write() error {
	for _, path := range []string{meshConfigPath, labelsPath, tokenPath, rootCertPath, identityPath + "/socket", "etc/istio/proxy/XDS"} {
		if err := os.MkdirAll(filepath.Join(s.dir, filepath.Dir(path)), 0o700); err != nil {
			return fmt.Errorf("creating the agent's directory: %w", withRemedy(err))
		}
	}
	meshFile, err := protojson.Marshal(withProxyDefaults(s.mesh))
	if err != nil {
		return fmt.Errorf("writing the agent's mesh configuration: %w", err)
	}
	w := s.instance.Workload
	for path, data := range map[string][]byte{
		meshConfigPath:  meshFile,
		labelsPath:      formatDownwardAPI(w.Labels),
		annotationsPath: formatDownwardAPI(w.Annotations),
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

// renewRoots writes the CA's root certificates if they changed. The agent reads them for every connection. Without the
// update, it would not trust the control plane any more after the first root certificate is retired.
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

// renewToken writes a new token to the file. The agent reads the file for every call.
func (s *sidecarFiles) renewToken() error {
	w := s.instance.Workload
	token, err := s.issuer.IssueToken(w.Namespace, w.ServiceAccount, tokenTTL)
	if err != nil {
		return fmt.Errorf("issuing a token to workload %s: %w", s.instance.Name, err)
	}
	return writeFile(filepath.Join(s.dir, tokenPath), []byte(token), 0o600)
}

// withProxyDefaults returns a copy of m with defaults for many proxies on one machine: one worker thread and a short
// drain, unless the user has set them.
func withProxyDefaults(m *meshconfig.MeshConfig) *meshconfig.MeshConfig {
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

// formatDownwardAPI formats a map as Kubernetes' downward API does: one key="value" per line, sorted.
func formatDownwardAPI(m map[string]string) []byte {
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(m)) {
		fmt.Fprintf(&b, "%s=%s\n", k, strconv.Quote(m[k]))
	}
	return []byte(b.String())
}

// inheritedVariables lists the variables that agents inherit from the mesh's environment. Other variables, such as a
// user's ISTIO_META_ variables, could change the behaviour of an agent.
var inheritedVariables = []string{"PATH", "HOME", "XDG_CACHE_HOME", "TMPDIR", "LANG", "TZ", "GODEBUG", "GOTRACEBACK", "GOCOVERDIR", "SSL_CERT_FILE", "SSL_CERT_DIR"}

// agentDir returns the working directory of an instance's agent.
func (m *Mesh) agentDir(i *topology.Instance) string {
	return filepath.Join(m.runtime.path, workloadsDir, i.Name)
}

// agentEnv returns the environment of an instance's agent.
func (m *Mesh) agentEnv(i *topology.Instance, at Attachment) ([]string, error) {
	bootstrap, err := m.bootstrapEnv(i)
	if err != nil {
		return nil, err
	}
	env := slices.Concat(m.inheritedEnv(), bootstrap, m.proxyConfigEnv(i))
	discovery := fmt.Sprintf("%s:%d", m.placement.ControlPlane(), topology.SecurePort)
	proxyConfig, err := m.proxyConfigJSON(discovery)
	if err != nil {
		return nil, err
	}
	w := i.Workload
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
		// With this setting, the agent receives a new root certificate as soon as it is announced, not only when the
		// agent renews its certificate.
		"PROXY_CONFIG_XDS_AGENT=true",
		fmt.Sprintf("TOKEN_EXCHANGE_URL=https://%s:%d/token", m.placement.ControlPlane(), topology.TokenExchangePort),
		"TOKEN_EXCHANGE_ROOT_CA="+rootCertPath,
		"ENVOY_PATH="+m.envoy.Path,
		"ENVOY_ADVISORY_WARNING=false", // the mesh logs this warning once for all agents
		"ENVOY_ADMIN_SOCKET="+adminSocketPath,
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

// proxyConfigEnv returns the variables that ProxyConfigs specify. The mesh's own variables override them.
func (m *Mesh) proxyConfigEnv(i *topology.Instance) []string {
	variables := m.lookupProxyConfig(i).GetEnvironmentVariables()
	var env []string
	for _, name := range slices.Sorted(maps.Keys(variables)) {
		env = append(env, name+"="+variables[name])
	}
	return env
}

// concurrencyArgs returns the arguments for the concurrency that ProxyConfigs specify. It overrides all other settings.
func (m *Mesh) concurrencyArgs(i *topology.Instance) []string {
	n := m.lookupProxyConfig(i).GetConcurrency()
	switch {
	case n == nil:
		return nil
	case n.GetValue() == 0:
		return []string{"--concurrency", strconv.Itoa(runtime.NumCPU())}
	}
	return []string{"--concurrency", strconv.Itoa(int(n.GetValue()))}
}

// lookupProxyConfig returns an instance's merged ProxyConfigs, or nil before the first start of the control plane.
func (m *Mesh) lookupProxyConfig(i *topology.Instance) *networkingbeta.ProxyConfig {
	p := m.currentControlPlane()
	if p == nil {
		return nil
	}
	return p.proxyConfig(i.Workload.Namespace, i.Workload.Labels)
}

// bootstrapEnv writes the bootstrap patch from EnvoyFilters into a file, and returns the variable with its path.
func (m *Mesh) bootstrapEnv(i *topology.Instance) ([]string, error) {
	p := m.currentControlPlane()
	if p == nil {
		return nil, nil
	}
	text, err := p.bootstrap(i.Workload)
	if err != nil {
		return nil, fmt.Errorf("applying EnvoyFilters to the bootstrap of workload %s: %w", i.Name, err)
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
	for _, name := range inheritedVariables {
		if v := lookupEnv(m.cfg.Environ, name); v != "" {
			env = append(env, name+"="+v)
		}
	}
	return env
}

// podPorts returns the workload's ports as JSON, as in Istio's node metadata POD_PORTS. The control plane resolves
// named targetPorts of Services with it.
func podPorts(w *topology.Workload) (string, error) {
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

// trafficStat is the suffix of the statistics that `pilotfish status` reads. Each further statistic costs CPU time for
// each request, so users select those that they read.
const trafficStat = "downstream_rq_completed"

// proxyConfigJSON returns settings of this mesh in the form of Istio's PROXY_CONFIG, which overrides the mesh file. The
// statistics are those that the mesh file selects, and trafficStat.
func (m *Mesh) proxyConfigJSON(discovery string) (string, error) {
	selected := &meshconfig.ProxyConfig_ProxyStatsMatcher{}
	if s := m.cfg.Topology.Mesh.GetDefaultConfig().GetProxyStatsMatcher(); s != nil {
		selected = proto.Clone(s).(*meshconfig.ProxyConfig_ProxyStatsMatcher)
	}
	selected.InclusionSuffixes = append(selected.InclusionSuffixes, trafficStat)
	out, err := protojson.Marshal(&meshconfig.ProxyConfig{DiscoveryAddress: discovery, ProxyStatsMatcher: selected})
	return string(out), err
}

// appEnv returns the environment of an instance's application: the mesh's own environment and the instance's variables.
func (m *Mesh) appEnv(i *topology.Instance, at Attachment) ([]string, error) {
	env, err := m.instanceEnv(i, at)
	return append(append([]string(nil), m.cfg.Environ...), env...), err
}

// instanceEnv returns the variables for an instance's application, including those of the topology.
func (m *Mesh) instanceEnv(i *topology.Instance, at Attachment) ([]string, error) {
	w := i.Workload
	vars := i.Variables(m.cfg.Topology.BaseDir(), m.cfg.SelfPath)
	env := append([]string(nil), at.AppEnv...)
	env = append(env,
		"PILOTFISH_APP_ADDRESS="+i.App.String(),
		"PILOTFISH_DNS_ADDRESS="+i.DNS.String(),
		"PILOTFISH_NAME="+i.Name,
		"PILOTFISH_NAMESPACE="+w.Namespace,
		runVariable+"="+m.runID,
	)
	if w.HasSidecar() {
		env = append(env, "PILOTFISH_TOKEN_FILE="+filepath.Join(m.agentDir(i), tokenPath), "PILOTFISH_TOKEN_URL="+i.TokenURL())
	}
	if vars["PORT"] != "" {
		env = append(env, "PORT="+vars["PORT"])
	}
	for _, u := range w.Upstreams {
		env = append(env, u.Variable()+"="+vars[u.Variable()])
	}
	for _, name := range slices.Sorted(maps.Keys(w.Env)) {
		value, err := topology.ExpandVariables(w.Env[name], vars)
		if err != nil {
			return nil, fmt.Errorf("expanding the variable %s of workload %s: %w", name, w.Name, err)
		}
		env = append(env, name+"="+value)
	}
	return env, nil
}

// appArgs returns the application's command with its variables expanded.
func (m *Mesh) appArgs(i *topology.Instance) ([]string, error) {
	vars := i.Variables(m.cfg.Topology.BaseDir(), m.cfg.SelfPath)
	args := make([]string, len(i.Workload.Command))
	for n, arg := range i.Workload.Command {
		var err error
		if args[n], err = topology.ExpandVariables(arg, vars); err != nil {
			return nil, fmt.Errorf("expanding the command of workload %s: %w", i.Workload.Name, err)
		}
	}
	return args, nil
}
