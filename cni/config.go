// Package cni is the CNI plugin. It redirects a pod's traffic to the pod's Envoy before the pod's first process starts.
// If redirection fails, the pod does not start. The plugin runs after the plugin that creates the pod's network.
package cni

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/pilotfish-mesh/pilotfish/cni/agentapi"
	"github.com/pilotfish-mesh/pilotfish/cni/capture"
	"github.com/pilotfish-mesh/pilotfish/iptables/backends"
)

// Config is the plugin's entry in the CNI network configuration list. The keys before "kubeconfig" are those of the CNI
// specification and of Istio's plugin, with the same meaning. "kubeconfig" and the keys after it are specific to
// pilotfish.
type Config struct {
	CNIVersion string          `json:"cniVersion"`
	Name       string          `json:"name"`
	Type       string          `json:"type"`
	PrevResult json.RawMessage `json:"prevResult"`
	// ValidAttachments lists the attachments that GC must not remove. It is nil if the runtime does not send the list.
	// Attachments is the same list with the key of an earlier version of the CNI specification.
	ValidAttachments *[]types.GCAttachment `json:"cni.dev/valid-attachments"`
	Attachments      *[]types.GCAttachment `json:"cni.dev/attachments"`

	LogLevel          string   `json:"plugin_log_level"`
	RunDir            string   `json:"cni_agent_run_dir"`
	ExcludeNamespaces []string `json:"exclude_namespaces"`
	PodNamespace      string   `json:"pod_namespace"`
	NativeNFTables    *bool    `json:"native_nftables"`
	AmbientEnabled    bool     `json:"ambient_enabled"`
	// EnablementSelectors and AmbientRetry are settings of ambient mode. They are accepted and ignored.
	EnablementSelectors json.RawMessage `json:"enablement_selectors"`
	AmbientRetry        bool            `json:"enable_ambient_detection_retry"`

	// Kubeconfig is the kubeconfig for queries to the API server while the node agent does not respond. The default is
	// istio-cni-kubeconfig in the run directory.
	Kubeconfig string `json:"kubeconfig"`
	// PolicyFile is the path of a policy file, which selects the sandboxes to redirect on nodes without Kubernetes. If
	// it is set, the plugin queries neither the node agent nor the API server.
	PolicyFile string `json:"policy_file"`
	// LogFile is the path of the plugin's log file; "" for none. A file larger than LogFileBytes is renamed to LogFile.1.
	LogFile      string `json:"log_file"`
	LogFileBytes int64  `json:"log_file_max_bytes"`

	ProxyListenPort   uint16 `json:"proxy_listen_port"`
	InboundListenPort uint16 `json:"proxy_inbound_listen_port"`
	TunnelPort        uint16 `json:"inbound_tunnel_port"`
	IPv6              string `json:"ipv6"`
	// ForceIPTables is "legacy" or "nft" to run the node's iptables binaries of that variant; "" for the kernel's
	// nftables interface.
	ForceIPTables string `json:"force_iptables_binary"`
	// StatusChecksAgent makes STATUS fail while the node agent does not respond. It must not be set if the node agent's
	// pod uses this network, because the agent's pod could then never start.
	StatusChecksAgent bool `json:"status_asks_agent"`
}

const (
	defaultLogFileBytes = 10 << 20
	kubeconfigName      = "istio-cni-kubeconfig"
)

// parseConfig parses the configuration from the runtime and sets defaults.
func parseConfig(stdin []byte) (*Config, error) {
	c := &Config{}
	if err := json.Unmarshal(stdin, c); err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, "the network configuration is invalid", err.Error())
	}
	c.RunDir = cmp.Or(c.RunDir, agentapi.DefaultRunDir)
	c.LogFileBytes = cmp.Or(c.LogFileBytes, defaultLogFileBytes)
	return c, nil
}

// kubeconfig returns the path of the kubeconfig.
func (c *Config) kubeconfig() string {
	return cmp.Or(c.Kubeconfig, filepath.Join(c.RunDir, kubeconfigName))
}

// validate returns a CNI error that lists all settings that are invalid or would leave pods without redirection.
func (c *Config) validate() error {
	var problems []error
	refuse := func(key string, value any, remedy string) {
		problems = append(problems, fmt.Errorf("%s %v: %s", key, value, remedy))
	}
	if c.AmbientEnabled {
		refuse("ambient_enabled", true, "ambient mode is not supported, and its pods would not be redirected; set it to false")
	}
	if !filepath.IsAbs(c.RunDir) {
		refuse("cni_agent_run_dir", c.RunDir, "use an absolute path")
	}
	if c.LogFile != "" && !filepath.IsAbs(c.LogFile) {
		refuse("log_file", c.LogFile, "use an absolute path")
	}
	if c.LogFileBytes < 4096 {
		refuse("log_file_max_bytes", c.LogFileBytes, "use at least 4096")
	}
	if c.PolicyFile != "" && c.Kubeconfig != "" {
		refuse("policy_file", c.PolicyFile, "policy_file is for nodes without Kubernetes; remove policy_file or kubeconfig")
	}
	switch c.IPv6 {
	case "", "auto", "capture", "reject", "pass":
	default:
		refuse("ipv6", c.IPv6, "use auto, capture, reject or pass")
	}
	if _, err := c.choice(); err != nil {
		problems = append(problems, err)
	}
	if _, err := logLevel(c.LogLevel); err != nil {
		problems = append(problems, err)
	}
	if len(problems) == 0 {
		return nil
	}
	return types.NewError(types.ErrInvalidNetworkConfig, "the plugin's configuration is invalid", errors.Join(problems...).Error())
}

// choice returns the backend that installs the rules. The default is the kernel's nftables interface, even with
// native_nftables=false, which selects iptables in Istio's plugin. The node's iptables is used only on kernels without
// nftables, or if force_iptables_binary is set.
func (c *Config) choice() (backends.Choice, error) {
	choice, err := backends.ParseChoice(c.ForceIPTables, c.NativeNFTables != nil && *c.NativeNFTables)
	if err != nil {
		return choice, fmt.Errorf("force_iptables_binary, native_nftables: %w", err)
	}
	return choice, nil
}

// valid returns the attachments that GC must not remove, or nil if the runtime does not send them.
func (c *Config) valid() *[]types.GCAttachment { return cmp.Or(c.ValidAttachments, c.Attachments) }

// settings returns the settings that apply to every pod.
func (c *Config) settings() capture.Settings {
	return capture.Settings{
		ExcludeNamespaces: c.ExcludeNamespaces,
		AgentNamespace:    c.PodNamespace,
		ProxyListenPort:   c.ProxyListenPort,
		InboundListenPort: c.InboundListenPort,
		TunnelPort:        c.TunnelPort,
		IPv6:              c.IPv6,
	}
}

// result returns the output of ADD: the result of the previous plugins, byte for byte, or an empty result if there is
// none.
func (c *Config) result() []byte {
	if prev := bytes.TrimSpace(c.PrevResult); len(prev) > 0 && !bytes.Equal(prev, []byte("null")) {
		return prev
	}
	text, _ := json.Marshal(map[string]string{"cniVersion": cmp.Or(c.CNIVersion, "0.1.0")})
	return text
}

// logLevel parses a log level. It accepts the names of Istio's components and of log/slog.
func logLevel(name string) (slog.Level, error) {
	switch strings.ToLower(name) {
	case "debug", "trace":
		return slog.LevelDebug, nil
	case "", "info":
		return slog.LevelInfo, nil
	case "warn", "warning":
		return slog.LevelWarn, nil
	case "error", "fatal", "none":
		return slog.LevelError, nil
	}
	return 0, fmt.Errorf("plugin_log_level %q: use debug, info, warn or error", name)
}
