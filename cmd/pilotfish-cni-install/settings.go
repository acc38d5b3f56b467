package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/pilotfish-mesh/pilotfish/cni/agentapi"
	"github.com/pilotfish-mesh/pilotfish/cni/capture"
	"github.com/pilotfish-mesh/pilotfish/cni/install"
	"github.com/pilotfish-mesh/pilotfish/cni/kube"
	"github.com/pilotfish-mesh/pilotfish/cni/repair"
	"github.com/pilotfish-mesh/pilotfish/iptables/backends"
)

// settings contain all flags. Each flag has an environment variable: its name in upper case, with underscores. A flag
// overrides its variable. Flags of Istio's installer have the same name and meaning.
type settings struct {
	lookup func(string) (string, bool)

	binaryDir, resultsDir, confDir    string
	binDirs                           []string
	confName, confMode                string
	chained                           bool
	kubeconfigName, kubeCAFile        string
	kubeconfigMode                    uint32
	skipTLSVerify                     bool
	runDir                            string
	logLevel, pluginLogFile           string
	excludeNamespaces                 []string
	podNamespace, daemonSet           string
	proxyPort, inboundPort, tunnel    uint16
	ipv6, forceIPTables               string
	nativeNFTables                    bool
	statusQueriesAgent                bool
	readyAddress                      string
	monitoringPort                    uint16
	node, kubeconfig, proc, hostNetNS string
	serviceAccount, notReadyTaint     string

	repairEnabled, repairPods, deletePods, labelPods, repairDrifted bool
	podEvents                                                       bool
	labelKey, labelValue                                            string
	checkEvery, tokenLife                                           time.Duration

	// Set by resolve:
	mode       install.Mode
	repairMode repair.Mode
	level      slog.Level
	api        kube.Config
	choice     backends.Choice
}

func (s *settings) register(f *pflag.FlagSet) {
	s.registerInstall(f)
	s.registerPlugin(f)
	s.registerAgent(f)
	s.registerRepair(f)
}

func (s *settings) registerInstall(f *pflag.FlagSet) {
	f.StringVar(&s.binaryDir, "cni-bin-source-dir", "/opt/cni/bin", "folder of this image with the plugin and its tombstone")
	f.StringSliceVar(&s.binDirs, "mounted-cni-bin-dir", []string{"/host/opt/cni/bin"}, "where the node's folders of CNI plugins are mounted")
	f.StringVar(&s.confDir, "mounted-cni-net-dir", "/host/etc/cni/net.d", "where the node's folder of CNI configurations is mounted")
	f.StringVar(&s.resultsDir, "mounted-cni-results-dir", "/host/var/lib/cni/results", "where libcni's cache of sandboxes is mounted")
	f.StringVar(&s.confName, "cni-conf-name", "", "the CNI configuration to use instead of the first one")
	f.BoolVar(&s.chained, "chained-cni-plugin", true, "add the plugin to the end of the primary plugin's list; false: write a separate configuration")
	f.StringVar(&s.confMode, "cni-conf-mode", "", "chained, standalone, or drop-in: a file in the network's folder, for runtimes with libcni 1.3 or newer")
	f.StringVar(&s.kubeconfigName, "kubecfg-file-name", "istio-cni-kubeconfig", "name of the plugin's kubeconfig, in the run directory; empty: none")
	f.Uint32Var(&s.kubeconfigMode, "kubeconfig-mode", 0o600, "its file mode")
	f.StringVar(&s.kubeCAFile, "kube-ca-file", "", "the cluster's certificate authority; by default the service account's")
	f.DurationVar(&s.tokenLife, "plugin-token-life", kube.TokenLife, "lifetime of the plugin's token for the API server; it is renewed at half its lifetime")
	f.BoolVar(&s.skipTLSVerify, "skip-tls-verify", false, "let the plugin accept any certificate of the API server")
}

func (s *settings) registerPlugin(f *pflag.FlagSet) {
	f.StringVar(&s.runDir, "cni-agent-run-dir", agentapi.DefaultRunDir, "directory of the socket and the kubeconfig, with the same path on the node and here")
	f.StringVar(&s.pluginLogFile, "cni-log-file", "", "a file on the node for the plugin's log, of limited size")
	f.StringSliceVar(&s.excludeNamespaces, "exclude-namespaces", []string{"kube-system"}, "namespaces whose pods are never redirected")
	f.Uint16Var(&s.proxyPort, "proxy-listen-port", 0, "the mesh's port for outbound traffic (proxyListenPort); 0: 15001")
	f.Uint16Var(&s.inboundPort, "proxy-inbound-listen-port", 0, "the mesh's port for inbound traffic (proxyInboundListenPort); 0: 15006")
	f.Uint16Var(&s.tunnel, "inbound-tunnel-port", 0, "the mesh's port for HBONE; 0: 15008")
	f.StringVar(&s.ipv6, "ipv6", "", "treatment of IPv6: auto, capture, reject or pass")
	f.StringVar(&s.forceIPTables, "force-iptables-binary", "", "legacy or nft, to use iptables binaries instead of the kernel's nftables interface")
	f.BoolVar(&s.nativeNFTables, "native-nftables", false, "use only the kernel's nftables interface; fail if it is not available")
	f.BoolVar(&s.statusQueriesAgent, "status-asks-agent", false, "report the network as not ready while this agent does not respond; needs hostNetwork and a CNI configuration of version 1.1.0")
}

func (s *settings) registerAgent(f *pflag.FlagSet) {
	f.StringVar(&s.logLevel, "log-level", "info", "log level of the agent and the plugin: debug, info, warn or error")
	f.StringVar(&s.readyAddress, "readiness-address", ":8000", "address of /healthz and /readyz")
	f.Uint16Var(&s.monitoringPort, "monitoring-port", 15014, "port of /metrics")
	f.StringVar(&s.node, "kubernetes-node-name", "", "this node's name; by default the host's")
	f.StringVar(&s.kubeconfig, "kubeconfig", "", "kubeconfig for the API server; by default the pod's service account")
	f.StringVar(&s.serviceAccount, "service-account-dir", kube.ServiceAccountDir, "where the pod's token and the cluster's certificate authority are")
	f.StringVar(&s.podNamespace, "pod-namespace", "", "this agent's namespace")
	f.StringVar(&s.daemonSet, "daemonset-name", "pilotfish-cni-node", "this agent's daemon set; the plugin is uninstalled only when it is deleted")
	f.StringVar(&s.notReadyTaint, "not-ready-taint", "", "name of a taint that is removed from this node once the agent is ready, such as cni.istio.io/not-ready; empty: none")
	f.StringVar(&s.proc, "proc-dir", "/proc", "the node's /proc")
	f.StringVar(&s.hostNetNS, "host-network-namespace", "", "the node's own network namespace, as a path; by default that of its first process")
}

func (s *settings) registerRepair(f *pflag.FlagSet) {
	f.BoolVar(&s.repairEnabled, "repair-enabled", true, "repair pods that started without redirection; false: only report them")
	f.BoolVar(&s.repairPods, "repair-repair-pods", true, "install the redirection in them")
	f.BoolVar(&s.deletePods, "repair-delete-pods", false, "delete them")
	f.BoolVar(&s.labelPods, "repair-label-pods", false, "label them")
	f.BoolVar(&s.repairDrifted, "repair-drifted-pods", false, "also repair pods whose redirection differs from the expected one")
	f.StringVar(&s.labelKey, "repair-broken-pod-label-key", "cni.istio.io/uninitialized", "the label's name")
	f.StringVar(&s.labelValue, "repair-broken-pod-label-value", "true", "its value")
	f.BoolVar(&s.podEvents, "pod-events", true, "report findings and repairs as events of the pods")
	f.DurationVar(&s.checkEvery, "check-interval", time.Minute, "how often the redirection of all live pods is checked")
}

// variable returns the name of a flag's environment variable.
func variable(flag string) string { return strings.ToUpper(strings.ReplaceAll(flag, "-", "_")) }

// resolve reads the variables of flags that are not set, and validates all settings. It returns all errors together.
func (s *settings) resolve(f *pflag.FlagSet) error {
	var errs []error
	f.VisitAll(func(flag *pflag.Flag) {
		value, set := s.lookup(variable(flag.Name))
		if flag.Changed || !set || value == "" && flag.Value.Type() != "string" {
			return
		}
		if err := f.Set(flag.Name, value); err != nil {
			errs = append(errs, fmt.Errorf("variable %s: %w", variable(flag.Name), err))
		}
	})
	errs = append(errs, s.resolveLog(), s.resolveModes(f), s.resolveNode(), s.checkPlugin())
	return errors.Join(errs...)
}

func (s *settings) resolveLog() error {
	name := s.logLevel
	// Istio's log levels have scopes: "default:debug,cni:info".
	if _, level, scoped := strings.Cut(strings.Split(name, ",")[0], ":"); scoped {
		name = level
	}
	if err := s.level.UnmarshalText([]byte(name)); err != nil {
		return fmt.Errorf("log-level %q is not known: use debug, info, warn or error", s.logLevel)
	}
	s.logLevel = strings.ToLower(s.level.String())
	return nil
}

func (s *settings) resolveModes(f *pflag.FlagSet) error {
	s.mode = install.Mode(s.confMode)
	if s.mode == "" && s.chained {
		s.mode = install.Chained
	} else if s.mode == "" {
		s.mode = install.Standalone
	}
	if !f.Changed("repair-repair-pods") && (s.deletePods || s.labelPods) {
		s.repairPods = false
	}
	switch {
	case !s.repairEnabled:
		s.repairMode = repair.Watch
	case s.repairPods:
		s.repairMode = repair.Repair
	case s.deletePods:
		s.repairMode = repair.Delete
	case s.labelPods:
		s.repairMode = repair.Label
	default:
		s.repairMode = repair.Watch
	}
	if s.checkEvery < time.Second {
		return fmt.Errorf("check-interval %v is too short: use at least 1s", s.checkEvery)
	}
	return nil
}

func (s *settings) resolveNode() error {
	if s.node == "" {
		s.node, _ = s.lookup("NODE_NAME")
	}
	if s.node == "" {
		s.node, _ = s.lookup("REPAIR_NODE_NAME")
	}
	if s.node != "" {
		return nil
	}
	var err error
	if s.node, err = os.Hostname(); err != nil {
		return fmt.Errorf("this node's name is not known (set kubernetes-node-name): %w", err)
	}
	return nil
}

func (s *settings) resolveAPI() (err error) {
	if s.kubeconfig != "" {
		s.api, err = kube.Load(s.kubeconfig)
		return err
	}
	host, _ := s.lookup("KUBERNETES_SERVICE_HOST")
	port, _ := s.lookup("KUBERNETES_SERVICE_PORT")
	s.api, err = kube.InCluster(host, port, s.serviceAccount)
	return err
}

// checkPlugin reports settings that the plugin would refuse for every pod.
func (s *settings) checkPlugin() error {
	var errs []error
	if s.tokenLife < kube.MinTokenLife || s.tokenLife > kube.TokenLife {
		errs = append(errs, fmt.Errorf("plugin-token-life %v: use a value from %v, the minimum of API servers, to %v", s.tokenLife, kube.MinTokenLife, kube.TokenLife))
	}
	if !filepath.IsAbs(s.runDir) {
		errs = append(errs, fmt.Errorf("cni-agent-run-dir %q: use an absolute path", s.runDir))
	}
	if s.pluginLogFile != "" && !filepath.IsAbs(s.pluginLogFile) {
		errs = append(errs, fmt.Errorf("cni-log-file %q: use an absolute path", s.pluginLogFile))
	}
	switch s.ipv6 {
	case "", "auto", "capture", "reject", "pass":
	default:
		errs = append(errs, fmt.Errorf("ipv6 %q: use auto, capture, reject or pass", s.ipv6))
	}
	var err error
	s.choice, err = backends.ParseChoice(s.forceIPTables, s.nativeNFTables)
	errs = append(errs, err)
	if _, _, err := net.SplitHostPort(s.readyAddress); err != nil {
		errs = append(errs, fmt.Errorf("readiness-address: %w", err))
	}
	return errors.Join(errs...)
}

func (s *settings) logger(out io.Writer) *slog.Logger {
	return slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{Level: s.level}))
}

// capture returns the plugin's settings, for the check of pods.
func (s *settings) capture() capture.Settings {
	return capture.Settings{
		ExcludeNamespaces: s.excludeNamespaces, AgentNamespace: s.podNamespace,
		ProxyListenPort: s.proxyPort, InboundListenPort: s.inboundPort, TunnelPort: s.tunnel, IPv6: s.ipv6,
	}
}

// plugin returns the plugin's entry in the CNI configuration.
func (s *settings) plugin() map[string]any {
	entry := map[string]any{
		"plugin_log_level":   s.logLevel,
		"cni_agent_run_dir":  s.runDir,
		"exclude_namespaces": s.excludeNamespaces,
	}
	for name, value := range map[string]string{
		"pod_namespace": s.podNamespace, "kubeconfig": s.kubeconfigPath(), "log_file": s.pluginLogFile, "ipv6": s.ipv6,
		"force_iptables_binary": s.forceIPTables,
	} {
		if value != "" {
			entry[name] = value
		}
	}
	for name, port := range map[string]uint16{
		"proxy_listen_port": s.proxyPort, "proxy_inbound_listen_port": s.inboundPort, "inbound_tunnel_port": s.tunnel,
	} {
		if port != 0 {
			entry[name] = port
		}
	}
	if s.nativeNFTables {
		entry["native_nftables"] = true
	}
	if s.statusQueriesAgent {
		entry["status_asks_agent"] = true
	}
	return entry
}

func (s *settings) kubeconfigPath() string {
	if s.kubeconfigName == "" {
		return ""
	}
	return filepath.Join(s.runDir, s.kubeconfigName)
}

// tokenFile returns the path of the agent's own token.
func (s *settings) tokenFile() string { return filepath.Join(s.serviceAccount, "token") }

// caFile returns the path of the CA certificate for the plugin's kubeconfig.
func (s *settings) caFile() string {
	return cmp.Or(s.kubeCAFile, filepath.Join(s.serviceAccount, "ca.crt"))
}
