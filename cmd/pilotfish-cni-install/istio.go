package main

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
)

// istioName is the name of Istio's node agent. Its chart starts the program by this name.
const istioName = "install-cni"

// istioSetting is a flag of Istio's node agent for a function that this agent does not have. Like the agent's own
// flags, it has an environment variable (see variable).
type istioSetting struct {
	flag string
	// boolean is true if the flag may be set without a value.
	boolean bool
	// accepted lists the values that are silently ignored; nil ignores all values. Other values cause a warning with
	// the reason, or an error if refused is set.
	accepted []string
	reason   string
	refused  bool
}

var istioSettings = []istioSetting{
	{flag: "ambient-enabled", boolean: true, accepted: []string{"", "false"}, refused: true,
		reason: "ambient mode is not supported: install the chart with ambient.enabled=false, and use sidecars"},
	{flag: "ambient-enablement-selector"}, {flag: "ambient-dns-capture", boolean: true}, {flag: "ambient-ipv6", boolean: true},
	{flag: "ambient-disable-safe-upgrade", boolean: true}, {flag: "ambient-reconcile-pod-rules-on-startup", boolean: true},
	{flag: "enable-ambient-detection-retry", boolean: true}, {flag: "ztunnel-uds-address"},
	{flag: "cni-network-config", accepted: []string{""}, reason: "the agent writes the plugin's configuration from its own settings"},
	{flag: "cni-network-config-file", accepted: []string{""}, reason: "the agent writes the plugin's configuration from its own settings"},
	{flag: "istio-owned-cni-config", boolean: true, accepted: []string{"", "false"}, reason: "the agent changes the configuration of the primary CNI plugin"},
	{flag: "istio-owned-cni-config-filename"},
	{flag: "cni-conf-group-read", boolean: true, accepted: []string{"", "false"}, reason: "the configuration is readable for all users of the node"},
	{flag: "repair-node-name"}, // see resolveNode
	{flag: "repair-sidecar-annotation", accepted: []string{"", "sidecar.istio.io/status"}, reason: "the agent checks the redirection of each injected pod"},
	{flag: "repair-init-container-name"}, {flag: "repair-init-container-termination-message"}, {flag: "repair-init-container-exit-code"},
	{flag: "repair-label-selectors", accepted: []string{""}, reason: "the agent checks all pods of its node"},
	{flag: "repair-field-selectors", accepted: []string{""}, reason: "the agent checks all pods of its node"},
	{flag: "log_caller", accepted: []string{""}, reason: "the agent logs no source lines"},
	{flag: "log_stacktrace_level", accepted: []string{"", "default:none", "none"}, reason: "the agent logs no stack traces"},
	{flag: "log_target", accepted: []string{"", "stdout", "stderr"}, reason: "the agent logs to standard error"},
	{flag: "vklog"}, {flag: "ctrlz_port"}, {flag: "ctrlz_address"},
}

// registerIstio adds the flags that only Istio's node agent has. They are hidden, except the log flags.
func (s *settings) registerIstio(f *pflag.FlagSet) {
	f.StringVar(&s.logOutputLevel, "log_output_level", "", "log level in Istio's form, such as default:info,cni-agent:debug; overrides --log-level")
	f.BoolVar(&s.logAsJSON, "log_as_json", false, "log in JSON, with the fields of Istio's programs")
	for _, i := range istioSettings {
		f.String(i.flag, "", "a flag of Istio's node agent")
		if i.boolean {
			f.Lookup(i.flag).NoOptDefVal = "true"
		}
		_ = f.MarkHidden(i.flag)
	}
}

// checkIstioSettings returns an error if a flag requests a function of Istio's node agent that this agent must refuse.
// It records a warning for each other flag without effect.
func (s *settings) checkIstioSettings(f *pflag.FlagSet) error {
	for _, i := range istioSettings {
		value := f.Lookup(i.flag).Value.String()
		if on, err := strconv.ParseBool(value); i.boolean && err == nil {
			value = strconv.FormatBool(on)
		}
		if i.accepted == nil || slices.Contains(i.accepted, value) {
			continue
		}
		if i.refused {
			return fmt.Errorf("%s=%s (%s): %s", i.flag, value, variable(i.flag), i.reason)
		}
		s.warnings = append(s.warnings, fmt.Sprintf("%s=%q (%s) has no effect: %s", i.flag, value, variable(i.flag), i.reason))
	}
	return nil
}

// applyIstioDefaults sets the defaults that Istio's chart relies on, if the program was started as install-cni. The chart
// mounts the node's /proc in /host/proc and does not share the node's process IDs.
func (s *settings) applyIstioDefaults(f *pflag.FlagSet) {
	if !s.asIstio {
		return
	}
	if !f.Changed("daemonset-name") {
		s.daemonSet = "istio-cni-node"
	}
	allowed, _ := s.lookup("ALLOW_SWITCH_TO_HOST_NS")
	if on, _ := strconv.ParseBool(allowed); on && !f.Changed("proc-dir") && isDir(hostProc) {
		s.proc = hostProc
	}
	if s.nativeNFTables && s.forceIPTables != "" { // Istio's agent prefers nftables, too
		s.warnings = append(s.warnings, fmt.Sprintf("force-iptables-binary=%q has no effect, because native-nftables is set", s.forceIPTables))
		s.forceIPTables = ""
	}
}

// hostProc is where Istio's chart mounts the node's /proc.
const hostProc = "/host/proc"

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// istioLevel returns the log level for this agent in text, the value of --log_output_level: the level of the agent's
// own scope, or else of all scopes. It returns "" if text contains neither.
func istioLevel(text string) string {
	levels := map[string]string{}
	for entry := range strings.SplitSeq(text, ",") {
		scope, level, scoped := strings.Cut(strings.TrimSpace(entry), ":")
		if !scoped {
			scope, level = "default", scope
		}
		levels[scope] = level
	}
	for _, scope := range []string{"cni-agent", "all", "default"} {
		if levels[scope] != "" {
			return levels[scope]
		}
	}
	return ""
}
