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
	"github.com/pilotfish-mesh/pilotfish/internal/logformat"
	"github.com/pilotfish-mesh/pilotfish/internal/usage"
	"github.com/pilotfish-mesh/pilotfish/iptables/backends"
)

// settings contain all flags. Each flag has an environment variable: its name in upper case, with underscores. A flag
// overrides its variable. Flags of Istio's installer have the same name and meaning.
type settings struct {
	lookup  func(string) (string, bool)
	asIstio bool // the program was started as install-cni

	binaryDir, resultsDir, confDir    string
	binDirs                           []string
	confName, confMode                string
	chained                           bool
	kubeconfigName, kubeCAFile        string
	kubeconfigMode                    uint32
	skipTLSVerify                     bool
	runDir                            string
	logLevel, pluginLogFile           string
	logOutputLevel                    string
	logAsJSON                         bool
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
	warnings   []string // settings without effect
}

func (s *settings) register(f *pflag.FlagSet) {
	s.registerInstall(f)
	s.registerPlugin(f)
	s.registerAgent(f)
	s.registerRepair(f)
	s.registerIstio(f)
}

func (s *settings) registerInstall(f *pflag.FlagSet) {
	f.StringVar(&s.binaryDir, "cni-bin-source-dir", "/opt/cni/bin", "directory in this image with the binaries of the plugin and its tombstone")
	f.StringSliceVar(&s.binDirs, "mounted-cni-bin-dir", []string{"/host/opt/cni/bin"}, "comma-separated mount points of the node's directories for CNI plugins")
	f.StringVar(&s.confDir, "mounted-cni-net-dir", "/host/etc/cni/net.d", "mount point of the node's directory for CNI configurations")
	f.StringVar(&s.resultsDir, "mounted-cni-results-dir", "/host/var/lib/cni/results", "mount point of the node's directory for libcni's results")
	f.StringVar(&s.confName, "cni-conf-name", "", "file name of the CNI configuration that is changed (default: the first file in the directory)")
	f.BoolVar(&s.chained, "chained-cni-plugin", true, "append the plugin to the configuration of the primary CNI plugin; false: write a separate configuration")
	f.StringVar(&s.confMode, "cni-conf-mode", "", "how the plugin is added to the node's CNI configuration: chained, standalone, or drop-in (a file in the network's directory, for runtimes with libcni 1.3 or newer); overrides --chained-cni-plugin")
	f.StringVar(&s.kubeconfigName, "kubecfg-file-name", "istio-cni-kubeconfig", "name of the plugin's kubeconfig in --cni-agent-run-dir; empty: none is written")
	f.Uint32Var(&s.kubeconfigMode, "kubeconfig-mode", 0o600, "file mode of the plugin's kubeconfig")
	f.StringVar(&s.kubeCAFile, "kube-ca-file", "", "PEM file with the CA certificates that verify the API server (default: the CA of the service account)")
	f.DurationVar(&s.tokenLife, "plugin-token-life", kube.TokenLife, "lifetime of the plugin's token for the API server, which is renewed at half its lifetime")
	f.BoolVar(&s.skipTLSVerify, "skip-tls-verify", false, "do not verify the API server's certificate in the plugin (insecure)")
}

func (s *settings) registerPlugin(f *pflag.FlagSet) {
	f.StringVar(&s.runDir, "cni-agent-run-dir", agentapi.DefaultRunDir, "directory of the agent's socket and the plugin's kubeconfig; its path must be the same on the node and in this container")
	f.StringVar(&s.pluginLogFile, "cni-log-file", "", "file on the node to which the plugin logs, with a limited size (default: none)")
	f.StringSliceVar(&s.excludeNamespaces, "exclude-namespaces", []string{"kube-system"}, "comma-separated namespaces; the traffic of their pods is never redirected")
	f.Uint16Var(&s.proxyPort, "proxy-listen-port", 0, "port of Envoy for outbound traffic (proxyListenPort); 0: 15001")
	f.Uint16Var(&s.inboundPort, "proxy-inbound-listen-port", 0, "port of Envoy for inbound traffic (proxyInboundListenPort); 0: 15006")
	f.Uint16Var(&s.tunnel, "inbound-tunnel-port", 0, "port of Envoy for HBONE; 0: 15008")
	f.StringVar(&s.ipv6, "ipv6", "", "handling of IPv6 traffic: auto (capture if the pod has no IPv4 address), capture, reject or pass (default auto)")
	f.StringVar(&s.forceIPTables, "force-iptables-binary", "", "use these iptables binaries instead of the kernel's nftables interface: legacy or nft")
	f.BoolVar(&s.nativeNFTables, "native-nftables", false, "use only the kernel's nftables interface; fail if it is not available")
	f.BoolVar(&s.statusQueriesAgent, "status-asks-agent", false, "let the plugin's STATUS command report the network as not ready while this agent does not respond; requires hostNetwork and a CNI configuration of version 1.1.0")
}

func (s *settings) registerAgent(f *pflag.FlagSet) {
	f.StringVar(&s.logLevel, "log-level", "info", "log level of the agent and the plugin: debug, info, warn or error")
	f.StringVar(&s.readyAddress, "readiness-address", ":8000", "address of /healthz and /readyz")
	f.Uint16Var(&s.monitoringPort, "monitoring-port", 15014, "port of /metrics")
	f.StringVar(&s.node, "kubernetes-node-name", "", "name of this node (default: the host name)")
	f.StringVar(&s.kubeconfig, "kubeconfig", "", "kubeconfig for the API server (default: the pod's service account)")
	f.StringVar(&s.serviceAccount, "service-account-dir", kube.ServiceAccountDir, "directory with the pod's token and the cluster's CA certificate")
	f.StringVar(&s.podNamespace, "pod-namespace", "", "namespace of this agent's pod")
	f.StringVar(&s.daemonSet, "daemonset-name", "pilotfish-cni-node", "name of this agent's DaemonSet; the agent uninstalls the plugin only if the DaemonSet is deleted")
	f.StringVar(&s.notReadyTaint, "not-ready-taint", "", "taint, such as cni.istio.io/not-ready, that the agent removes from this node once it is ready; empty: none")
	f.StringVar(&s.proc, "proc-dir", "/proc", "mount point of the node's /proc")
	f.StringVar(&s.hostNetNS, "host-network-namespace", "", "path of the node's network namespace (default: the namespace of the node's process 1)")
}

func (s *settings) registerRepair(f *pflag.FlagSet) {
	f.BoolVar(&s.repairEnabled, "repair-enabled", true, "repair pods that started without redirection; false: only report them")
	f.BoolVar(&s.repairPods, "repair-repair-pods", true, "repair method: install the redirection in the running pods")
	f.BoolVar(&s.deletePods, "repair-delete-pods", false, "repair method: delete the pods, so that their controllers replace them")
	f.BoolVar(&s.labelPods, "repair-label-pods", false, "repair method: label the pods")
	f.BoolVar(&s.repairDrifted, "repair-drifted-pods", false, "also repair pods whose redirection rules differ from the expected rules")
	f.StringVar(&s.labelKey, "repair-broken-pod-label-key", "cni.istio.io/uninitialized", "name of the label for --repair-label-pods")
	f.StringVar(&s.labelValue, "repair-broken-pod-label-value", "true", "value of the label for --repair-label-pods")
	f.BoolVar(&s.podEvents, "pod-events", true, "report problems and repairs as Kubernetes events of the pods")
	f.DurationVar(&s.checkEvery, "check-interval", time.Minute, "interval between checks of the redirection of all running pods")
}

// variable returns the name of the environment variable of the flag called flag.
func variable(flag string) string { return strings.ToUpper(strings.ReplaceAll(flag, "-", "_")) }

// resolve reads the environment variables of flags that are not set, and validates all settings. It returns all errors
// joined.
func (s *settings) resolve(f *pflag.FlagSet) error {
	var errs []error
	f.VisitAll(func(flag *pflag.Flag) {
		value, set := s.lookup(variable(flag.Name))
		if flag.Changed || !set || value == "" && flag.Value.Type() != "string" {
			return
		}
		if err := f.Set(flag.Name, value); err != nil {
			errs = append(errs, fmt.Errorf("variable %s: %w", variable(flag.Name), usage.DescribeFlagError(f, err)))
		}
	})
	s.applyIstioDefaults(f)
	errs = append(errs, s.checkIstioSettings(f), s.resolveLog(), s.resolveModes(f), s.resolveNode(), s.checkPlugin())
	return errors.Join(errs...)
}

func (s *settings) resolveLog() error {
	name := cmp.Or(istioLevel(s.logOutputLevel), istioLevel(s.logLevel)) // Istio's levels have scopes: default:debug,cni:info
	switch name {
	case "fatal":
		name = "error"
	case "none":
		s.level, s.logLevel = slog.LevelError+1, "error"
		return nil
	}
	if err := s.level.UnmarshalText([]byte(name)); err != nil {
		return fmt.Errorf("log-level %q is not known: use debug, info, warn or error", cmp.Or(s.logOutputLevel, s.logLevel))
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
		return fmt.Errorf("reading the host name, which is the default of kubernetes-node-name: %w; set kubernetes-node-name", err)
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

// checkPlugin returns an error for settings with which the plugin would fail for every pod.
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
	switch {
	case s.logAsJSON:
		return slog.New(logformat.NewJSON(out, s.level))
	case s.asIstio:
		return slog.New(logformat.NewText(out, s.level))
	}
	return slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{Level: s.level}))
}

// capture returns the redirection settings of the plugin. The agent uses them to check pods.
func (s *settings) capture() capture.Settings {
	return capture.Settings{
		ExcludeNamespaces: s.excludeNamespaces, AgentNamespace: s.podNamespace,
		ProxyListenPort: s.proxyPort, InboundListenPort: s.inboundPort, TunnelPort: s.tunnel, IPv6: s.ipv6,
	}
}

// plugin returns the plugin's entry in the CNI configuration file.
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
