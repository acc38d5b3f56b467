package config

import (
	"cmp"
	"fmt"
	"math"
	"net"
	"strconv"
	"strings"

	"github.com/pilotfish-mesh/pilotfish/bootstrap"
)

func (r *resolver) resolveEnvoy() {
	e, f := &r.config.Envoy, r.in.Flags
	e.Disabled = r.env.boolean("envoy.disabled", "DISABLE_ENVOY", false)
	e.Path, e.EnvPath = r.noteFlag("envoy.path", "envoy-path", f.EnvoyPath), r.env.vars["ENVOY_PATH"]
	if e.Path == "" && e.EnvPath != "" {
		r.env.addSetting("envoy.path", e.EnvPath, "environment ENVOY_PATH")
	}
	e.ConfiguredPath = r.resolveBinaryPath()
	e.SearchPath, e.CacheDir = r.env.vars["PATH"], r.in.CacheDir
	e.LogLevel = cmp.Or(r.noteFlag("envoy.logLevel", "proxyLogLevel", f.LogLevel), "warning")
	e.ComponentLogLevel = r.noteFlag("envoy.componentLogLevel", "proxyComponentLogLevel", f.ComponentLogLevel)
	e.LogAsJSON = f.LogAsJSON
	r.env.addSetting("envoy.logAsJSON", e.LogAsJSON, r.flagSource("log_as_json"))
	e.OutlierLog = r.noteFlag("envoy.outlierLog", "outlierLogPath", f.OutlierLog)
	e.ReadinessPort = r.env.port("envoy.readinessPort", "ENVOY_STATUS_PORT", bootstrap.DefaultReadinessPort)
	e.PrometheusPort = r.env.port("envoy.prometheusPort", "ENVOY_PROMETHEUS_PORT", bootstrap.DefaultPrometheusPort)
	e.DualStack = r.env.boolean("envoy.dualStack", "ISTIO_DUAL_STACK", false)
	e.AdminSocket = r.resolveAdminSocket()
	e.ReadinessProxyProtocol = r.env.boolean("envoy.readinessProxyProtocol", "ENVOY_STATUS_PORT_ENABLE_PROXY_PROTOCOL", false)
	e.LogDeprecations = !r.env.boolean("envoy.skipDeprecatedLogs", "ENVOY_SKIP_DEPRECATED_LOGS", true)
	e.CoreDump = r.env.boolean("envoy.coreDump", "ISTIO_ENVOY_ENABLE_CORE_DUMP", false)
	e.KeepPrivileges = !r.env.boolean("envoy.noNewPrivileges", "ENVOY_NO_NEW_PRIVS", true)
	e.IgnoreAdvisories = !r.env.boolean("envoy.advisoryWarning", "ENVOY_ADVISORY_WARNING", true)
	r.config.Dumpable = r.env.boolean("agent.dumpable", "AGENT_DUMPABLE", false)
	e.Restart = f.Restart
	r.env.addSetting("envoy.restart", e.Restart, r.flagSource("restart"))
	r.resolveConcurrency()
	r.checkPorts()
	r.checkDurations()
}

// checkDurations detects negative durations in ProxyConfig, which Envoy would misinterpret. A negative drainDuration is
// an error, as in Istio's agent. For a negative fileFlushInterval, the default applies, with a warning.
func (r *resolver) checkDurations() {
	const remedy = "write a duration that is not negative, such as 5s"
	p := r.config.Proxy
	if d := p.GetDrainDuration().AsDuration(); d < 0 {
		r.addError("drainDuration (%s): %v: %s", r.merger.source("drain_duration"), d, remedy)
	}
	if d := p.GetFileFlushInterval().AsDuration(); d < 0 {
		p.FileFlushInterval = defaultProxyConfig().GetFileFlushInterval()
		r.env.warn("fileFlushInterval (%s): %v: %s; the default %v applies", r.merger.source("file_flush_interval"), d, remedy, p.GetFileFlushInterval().AsDuration())
	}
}

// istioBinaryPath is Istio's default of ProxyConfig's binaryPath.
const istioBinaryPath = "/usr/local/bin/envoy"

// resolveBinaryPath returns ProxyConfig's binaryPath. If the path is istioBinaryPath and no such file exists, it
// returns "": tools that write all defaults into a ProxyConfig also write this path.
func (r *resolver) resolveBinaryPath() string {
	path := r.config.Proxy.GetBinaryPath()
	if path == istioBinaryPath && !r.isFile(path) {
		path = ""
	}
	if e := r.config.Envoy; path != "" && e.Path == "" && e.EnvPath == "" {
		r.env.addSetting("envoy.path", path, "binaryPath ("+r.merger.source("binary_path")+")")
	}
	return path
}

// noteFlag returns the value of a flag. It records the value as a setting unless it is empty.
func (r *resolver) noteFlag(name, flag, value string) string {
	if value != "" {
		r.env.addSetting(name, value, r.flagSource(flag))
	}
	return value
}

// flagSource returns the source to record for a setting: the flag if it is set, and otherwise the default.
func (r *resolver) flagSource(flag string) string {
	if r.in.Flags.Changed[flag] {
		return "flag --" + flag
	}
	return sourceDefault
}

// checkPorts adds errors for invalid port numbers and for duplicate ports.
func (r *resolver) checkPorts() {
	used := map[int64]string{}
	for _, p := range []struct {
		name string
		port int64
	}{
		{"proxyAdminPort", int64(r.config.Proxy.GetProxyAdminPort())},
		{"statusPort", int64(r.config.Proxy.GetStatusPort())},
		{"ENVOY_STATUS_PORT", int64(r.config.Envoy.ReadinessPort)},
		{"ENVOY_PROMETHEUS_PORT", int64(r.config.Envoy.PrometheusPort)},
	} {
		if p.name == "statusPort" && p.port == 0 { // status port 0 means that the port is disabled
			continue
		}
		if p.port < 1 || p.port > math.MaxUint16 {
			r.addError("%s: %d: write a port from 1 to 65535", p.name, p.port)
		} else if other, taken := used[p.port]; taken {
			r.addError("%s and %s are both %d: use a different port for each", other, p.name, p.port)
		}
		used[p.port] = p.name
	}
}

func (r *resolver) resolveMisc() {
	r.config.Bind = r.env.address("bindAddress", "PROXY_BIND_ADDRESS")
	r.config.StatusUsers = r.env.choice("statusPortUsers", "STATUS_PORT_USERS", AnyUser, AnyUser, OwnUser)
	r.config.Profiling = r.in.Flags.Profiling || !r.in.Flags.Changed["profiling"]
	r.env.addSetting("profiling", r.config.Profiling, r.flagSource("profiling"))
}

func parsePort(text string) (int32, error) {
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("%q is not a port", text)
	}
	return int32(n), nil
}

func checkHostPort(address string) error {
	host, port, err := net.SplitHostPort(address)
	if err == nil && host != "" {
		_, err = parsePort(port)
	}
	if err != nil || host == "" || strings.ContainsAny(host, " \t\r\n/") {
		return fmt.Errorf("write host:port, such as %s", defaultDiscovery)
	}
	return nil
}

func hostOfAddress(address string) string {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return address
	}
	return host
}
