package config

import (
	"github.com/pilotfish-mesh/pilotfish/bootstrap"
	"github.com/pilotfish-mesh/pilotfish/internal/fstimeout"
)

// Ports are the ports of a proxy on its machine; 0 for a port that is disabled.
type Ports struct {
	Admin, Status, Readiness int
}

// ReadPorts resolves the proxy's ports from the default mesh file, the pod's annotations and env. A command in the
// proxy's container reads the same settings as the agent. For settings that are not valid, it returns the default
// ports.
func ReadPorts(env []string) Ports {
	r := &resolver{env: newEnvironment(env), merger: newProxyConfigMerger(), config: &Config{}, fs: fstimeout.TimeoutFS{Timeout: statTimeout}}
	proxy := defaultProxyConfig()
	if err := r.mergeProxyConfig(); err == nil {
		proxy = r.config.Proxy
	}
	return Ports{
		Admin: int(proxy.GetProxyAdminPort()), Status: int(proxy.GetStatusPort()),
		Readiness: int(r.env.port("envoy.readinessPort", "ENVOY_STATUS_PORT", bootstrap.DefaultReadinessPort)),
	}
}
