package agent

import (
	"cmp"
	"fmt"
	"math"
	"net"
	"strconv"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/pilotfish-mesh/pilotfish/bootstrap"
)

func (r *resolver) envoy() {
	e, f := &r.config.Envoy, r.in.Flags
	e.Disabled = r.env.boolean("envoy.disabled", "DISABLE_ENVOY", false)
	e.Path, e.EnvPath = r.flag("envoy.path", "envoy-path", f.EnvoyPath), r.env.vars["ENVOY_PATH"]
	if e.Path == "" && e.EnvPath != "" {
		r.env.note("envoy.path", e.EnvPath, "environment ENVOY_PATH")
	}
	e.SearchPath, e.CacheDir = r.env.vars["PATH"], r.in.CacheDir
	e.LogLevel = cmp.Or(r.flag("envoy.logLevel", "proxyLogLevel", f.LogLevel), "warning")
	e.ComponentLogLevel = r.flag("envoy.componentLogLevel", "proxyComponentLogLevel", f.ComponentLogLevel)
	e.LogAsJSON = f.LogAsJSON
	r.env.note("envoy.logAsJSON", e.LogAsJSON, r.origin("log_as_json"))
	e.OutlierLog = r.flag("envoy.outlierLog", "outlierLogPath", f.OutlierLog)
	e.ReadinessPort = r.env.port("envoy.readinessPort", "ENVOY_STATUS_PORT", bootstrap.DefaultReadinessPort)
	e.PrometheusPort = r.env.port("envoy.prometheusPort", "ENVOY_PROMETHEUS_PORT", bootstrap.DefaultPrometheusPort)
	e.DualStack = r.env.boolean("envoy.dualStack", "ISTIO_DUAL_STACK", false)
	e.CoreDump = r.env.boolean("envoy.coreDump", "ISTIO_ENVOY_ENABLE_CORE_DUMP", false)
	e.Restart = f.Restart
	r.env.note("envoy.restart", e.Restart, r.origin("restart"))
	r.concurrency()
	r.ports()
	r.times()
}

// times refuses what Envoy would take for something else, or for a very long time.
func (r *resolver) times() {
	p := r.config.Proxy
	for name, d := range map[protoreflect.Name]*durationpb.Duration{
		"drain_duration": p.GetDrainDuration(), "file_flush_interval": p.GetFileFlushInterval(),
	} {
		if d.AsDuration() < 0 {
			field := p.ProtoReflect().Descriptor().Fields().ByName(name)
			r.fail("%s (%s): %v: write a duration that is not negative, as 5s", field.JSONName(), r.layers.source(name), d.AsDuration())
		}
	}
}

// flag notes a flag's value, unless it says nothing.
func (r *resolver) flag(name, flag, value string) string {
	if value != "" {
		r.env.note(name, value, r.origin(flag))
	}
	return value
}

// origin is the flag when it was given, and the default otherwise.
func (r *resolver) origin(flag string) string {
	if r.in.Flags.Given[flag] {
		return "flag --" + flag
	}
	return sourceDefault
}

// ports refuses what could never be bound, and two uses of one port.
func (r *resolver) ports() {
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
		if p.name == "statusPort" && p.port == 0 { // none is wanted
			continue
		}
		if p.port < 1 || p.port > math.MaxUint16 {
			r.fail("%s: %d: write a port from 1 to 65535", p.name, p.port)
		} else if other, taken := used[p.port]; taken {
			r.fail("%s and %s are both %d: give each a port of its own", other, p.name, p.port)
		}
		used[p.port] = p.name
	}
}

func (r *resolver) others() {
	r.config.Bind = r.env.address("bindAddress", "PROXY_BIND_ADDRESS")
	r.config.Profiling = r.in.Flags.Profiling || !r.in.Flags.Given["profiling"]
	r.env.note("profiling", r.config.Profiling, r.origin("profiling"))
	if r.config.Proxy.GetBinaryPath() != "" {
		r.env.warn("ProxyConfig's binaryPath has no effect; name an Envoy with --envoy-path or ENVOY_PATH")
	}
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
		return fmt.Errorf("write it as host:port, as %s", defaultDiscovery)
	}
	return nil
}

func hostOf(address string) string {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return address
	}
	return host
}
