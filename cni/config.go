// Package cni is the CNI plugin. It redirects a pod's traffic to its proxy before the pod's first process starts. On an
// error it prevents the pod's start. It runs after the plugin that creates the pod's network.
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

// Config is the plugin's configuration in the network configuration list. The first group of keys has the names and
// meaning of Istio's plugin. The second group is specific to pilotfish.
type Config struct {
	CNIVersion string          `json:"cniVersion"`
	Name       string          `json:"name"`
	Type       string          `json:"type"`
	PrevResult json.RawMessage `json:"prevResult"`
	// ValidAttachments are the attachments that the runtime knows, for GC; nil if the runtime does not specify them.
	// Attachments is the key's name in an earlier version of the specification.
	ValidAttachments *[]types.GCAttachment `json:"cni.dev/valid-attachments"`
	Attachments      *[]types.GCAttachment `json:"cni.dev/attachments"`

	LogLevel          string   `json:"plugin_log_level"`
	RunDir            string   `json:"cni_agent_run_dir"`
	ExcludeNamespaces []string `json:"exclude_namespaces"`
	PodNamespace      string   `json:"pod_namespace"`
	NativeNFTables    *bool    `json:"native_nftables"`
	AmbientEnabled    bool     `json:"ambient_enabled"`
	// The keys of ambient mode are accepted and ignored.
	EnablementSelectors json.RawMessage `json:"enablement_selectors"`
	AmbientRetry        bool            `json:"enable_ambient_detection_retry"`

	// Kubeconfig is for queries to the API server when the node agent does not respond; "" is istio-cni-kubeconfig in
	// the run directory.
	Kubeconfig string `json:"kubeconfig"`
	// PolicyFile replaces the node agent and API server on nodes without Kubernetes.
	PolicyFile string `json:"policy_file"`
	// LogFile is rotated once it exceeds LogFileBytes, with one old file; "" writes no file.
	LogFile      string `json:"log_file"`
	LogFileBytes int64  `json:"log_file_max_bytes"`

	ProxyListenPort   uint16 `json:"proxy_listen_port"`
	InboundListenPort uint16 `json:"proxy_inbound_listen_port"`
	TunnelPort        uint16 `json:"inbound_tunnel_port"`
	IPv6              string `json:"ipv6"`
	// ForceIPTables is "legacy" or "nft" to disable native nftables.
	ForceIPTables string `json:"force_iptables_binary"`
	// StatusChecksAgent makes STATUS fail while the node agent does not respond. Do not set it if the node agent's pod
	// uses this network, because it would then never start.
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

// validate returns all errors of settings that cannot work or would leave a pod unprotected.
func (c *Config) validate() error {
	var problems []error
	refuse := func(key string, value any, remedy string) {
		problems = append(problems, fmt.Errorf("%s %v: %s", key, value, remedy))
	}
	if c.AmbientEnabled {
		refuse("ambient_enabled", true, "ambient mode is not supported: its pods would be unprotected; set it to false")
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

// choice returns the backend that applies the rules. In Istio's plugin native_nftables=false selects the node's
// iptables. Here iptables is used for kernels without nftables, or if it is forced.
func (c *Config) choice() (backends.Choice, error) {
	choice, err := backends.ParseChoice(c.ForceIPTables, c.NativeNFTables != nil && *c.NativeNFTables)
	if err != nil {
		return choice, fmt.Errorf("force_iptables_binary, native_nftables: %w", err)
	}
	return choice, nil
}

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

// result returns the output of ADD: the result of the previous plugins, byte for byte, or nil without one.
func (c *Config) result() []byte {
	if prev := bytes.TrimSpace(c.PrevResult); len(prev) > 0 && !bytes.Equal(prev, []byte("null")) {
		return prev
	}
	text, _ := json.Marshal(map[string]string{"cniVersion": cmp.Or(c.CNIVersion, "0.1.0")})
	return text
}

// logLevel parses a level name of Istio's components or of log/slog.
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
