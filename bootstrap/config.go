// Package bootstrap makes an Envoy bootstrap from the identity and settings of one proxy. The bootstrap is built from
// Envoy's own types, so that every value in it is quoted, escaped and named right whatever the input holds.
//
// Its names, ports, clusters and listeners are those of Istio's sidecars, so that control planes, dashboards and probes
// that know one know the other.
package bootstrap

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"

	meshv1 "istio.io/api/mesh/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/internal/tlspolicy"
)

// Type is what a proxy is for; it is the first part of its node id.
type Type string

// The types of proxy that can be bootstrapped.
const (
	Sidecar  Type = "sidecar"
	Router   Type = "router"
	Waypoint Type = "waypoint"
)

// Config is all that a bootstrap depends on.
type Config struct {
	Type Type
	// IPs are the proxy's addresses; the first is its identity. At least one is needed.
	IPs            []netip.Addr
	Name           string // of the pod or workload
	Namespace      string
	Domain         string // DNS domain of the node id; empty: <namespace>.svc.cluster.local
	ServiceAccount string
	Labels         map[string]string
	Annotations    map[string]string
	// Metadata is added to the node's metadata as it is, under what this package sets itself.
	Metadata map[string]any
	// Locality is region/zone/subzone, for a proxy whose labels do not say it.
	Locality string
	// ProxyConfig gives ports, names, statistics and runtime values. Required.
	ProxyConfig *meshv1.ProxyConfig
	// ControlPlaneSANs are the names the control plane's certificate may have; told to it as PILOT_SAN.
	ControlPlaneSANs []string
	// ControlPlaneRoot is the file of roots that the control plane is verified with; told to it as XDS_ROOT_CERT.
	ControlPlaneRoot string
	IstioVersion     string // told as ISTIO_VERSION when Metadata has none
	// Envoy is the major and minor version of the Envoy that is to start with it, which gets no runtime flag that it does not
	// know; zero is one that knows all.
	Envoy [2]int

	// SotW asks for state-of-the-world ADS (api_type GRPC) instead of delta. A waypoint always asks for delta.
	SotW bool
	// Bind, when valid, is the one address for Envoy's admin, readiness and Prometheus ports and for the agent's status
	// port, in place of localhost (admin, agent) and the wildcard (the others).
	Bind           netip.Addr
	ReadinessPort  uint32 // 0: 15021
	PrometheusPort uint32 // 0: 15090
	// XDSSocket and SDSSocket are the agent's unix sockets. A relative path keeps within the 108 bytes of a socket's
	// name and is resolved against Envoy's working directory.
	XDSSocket string // empty: <config path>/XDS
	SDSSocket string // empty: DefaultSDSSocket
	// StatusSocket is where the agent answers Envoy when it has no status port; empty: at the status port.
	StatusSocket string
	// FilesSocket is where the agent serves secrets from files when somebody else serves SDSSocket; empty: the same socket.
	FilesSocket string
	// DualStack also binds the wildcard of the other address family.
	DualStack bool
	// ExitOnZero tells the control plane that the proxy ends with its last connection.
	ExitOnZero bool
	// TLSPolicy narrows the TLS of Envoy's own connections and listeners, which are in the bootstrap.
	TLSPolicy tlspolicy.Policy
	// OutlierLog is where Envoy logs ejections of endpoints; empty: nowhere.
	OutlierLog string

	// MemoryLimit is how many bytes the container may use in all, Envoy and agent together. With one, Envoy sheds load
	// before the kernel kills it. 0: no limit.
	MemoryLimit uint64
	// LocalMetrics binds the Prometheus port to localhost alone.
	LocalMetrics bool
	// SecureMetricsPort and SecureMergedMetricsPort are ports that give Envoy's own and the agent's merged statistics to
	// clients with a certificate of the mesh. 0: none.
	SecureMetricsPort, SecureMergedMetricsPort uint32
	// TracingProvider is the mesh's default provider of tracing. ProxyConfig's own tracing wins over it. Nil: none.
	TracingProvider *meshv1.MeshConfig_ExtensionProvider

	// Override changes the bootstrap: a JSON or YAML object is merged into it, a list is a JSON patch (RFC 6902).
	// OverrideFile names it in errors.
	Override     []byte
	OverrideFile string
	// Custom takes the bootstrap's place: a whole bootstrap in JSON or YAML, or a Go template that makes one. CustomFile
	// names it in errors.
	Custom     []byte
	CustomFile string
	// Env gives a variable of the environment to a template that asks for it; nil gives none.
	Env func(name string) string
	// LogAsJSON tells a template that the agent logs so.
	LogAsJSON bool
	// HostIP stands for $(HOST_IP) in Override and Custom.
	HostIP string

	// WorkingDir is what relative paths are relative to, for readers of the gRPC bootstrap, who work elsewhere; empty: /.
	WorkingDir string
	// CertDir is where certificates are written for clients that do not speak SDS; empty: nowhere.
	CertDir string
}

// hostIPVariable stands for the node's address in an override and in the addresses of telemetry services.
const hostIPVariable = "$(HOST_IP)"

// DefaultSDSSocket is where the agent serves certificates unless told otherwise.
const DefaultSDSSocket = "./var/run/secrets/workload-spiffe-uds/socket"

// Ports of Envoy's own listeners unless the configuration says otherwise.
const (
	DefaultReadinessPort  = 15021
	DefaultPrometheusPort = 15090
	defaultAdminPort      = 15000
	defaultStatusPort     = 15020
	defaultConfigPath     = "./etc/istio/proxy"
)

// withDefaults fills in what may be left out and refuses what may not.
func (c Config) withDefaults() (Config, error) {
	if c.Type != Sidecar && c.Type != Router && c.Type != Waypoint {
		return c, fmt.Errorf("bootstrap: proxy type %q is not known; use %q, %q or %q", c.Type, Sidecar, Router, Waypoint)
	}
	if len(c.IPs) == 0 {
		return c, fmt.Errorf("bootstrap: the proxy has no IP address; set INSTANCE_IP to the address it is reached at")
	}
	for _, ip := range c.IPs {
		if !ip.IsValid() {
			return c, fmt.Errorf("bootstrap: the proxy's IP addresses %v contain one that is not valid", c.IPs)
		}
	}
	if c.ProxyConfig == nil {
		c.ProxyConfig = &meshv1.ProxyConfig{}
	}
	if c.Domain == "" {
		c.Domain = c.Namespace + ".svc.cluster.local"
	}
	c.ReadinessPort = orPort(c.ReadinessPort, DefaultReadinessPort)
	c.PrometheusPort = orPort(c.PrometheusPort, DefaultPrometheusPort)
	if c.XDSSocket == "" {
		c.XDSSocket = configPath(c.ProxyConfig) + "/XDS"
	}
	if c.SDSSocket == "" {
		c.SDSSocket = DefaultSDSSocket
	}
	return c, nil
}

func configPath(pc *meshv1.ProxyConfig) string {
	if p := pc.GetConfigPath(); p != "" {
		return p
	}
	return defaultConfigPath
}

func orPort(port, otherwise uint32) uint32 {
	if port == 0 {
		return otherwise
	}
	return port
}

func (c Config) adminPort() uint32 {
	return orPort(uint32(max(c.ProxyConfig.GetProxyAdminPort(), 0)), defaultAdminPort)
}

func (c Config) statusPort() uint32 {
	return orPort(uint32(max(c.ProxyConfig.GetStatusPort(), 0)), defaultStatusPort)
}

// onlyIPv6 says that the proxy has no IPv4 address at all.
func (c Config) onlyIPv6() bool {
	for _, ip := range c.IPs {
		if ip.Unmap().Is4() {
			return false
		}
	}
	return true
}

// localAddress is where the admin interface and the agent listen.
func (c Config) localAddress() string {
	switch {
	case c.Bind.IsValid():
		return c.Bind.String()
	case c.onlyIPv6():
		return "::1"
	}
	return "127.0.0.1"
}

// AdminAddress is where Envoy's admin interface listens, as host:port.
func (c Config) AdminAddress() string { return hostPort(c.localAddress(), c.adminPort()) }

// StatusAddress is where Envoy expects the agent's status port, and where the agent has to listen: every address, unless
// Bind says which one; or "unix:" and the path of a socket.
func (c Config) StatusAddress() string {
	if c.StatusSocket != "" {
		return "unix:" + c.StatusSocket
	}
	if c.Bind.IsValid() {
		return hostPort(c.Bind.String(), c.statusPort())
	}
	return hostPort("", c.statusPort())
}

// StatsURL is where Envoy gives its statistics in Prometheus's format.
func (c Config) StatsURL() string {
	return "http://" + hostPort(c.localAddress(), orPort(c.PrometheusPort, DefaultPrometheusPort)) + "/stats/prometheus"
}

func hostPort(host string, port uint32) string {
	return net.JoinHostPort(host, strconv.FormatUint(uint64(port), 10))
}

// openAddresses are where the readiness and Prometheus listeners bind; the first is the main one.
func (c Config) openAddresses() []string {
	v4, v6 := netip.IPv4Unspecified().String(), netip.IPv6Unspecified().String()
	switch {
	case c.Bind.IsValid():
		return []string{c.Bind.String()}
	case c.onlyIPv6():
		return []string{v6}
	case c.DualStack && c.hasIPv6():
		if c.IPs[0].Unmap().Is4() {
			return []string{v4, v6}
		}
		return []string{v6, v4}
	}
	return []string{v4}
}

func (c Config) hasIPv6() bool {
	for _, ip := range c.IPs {
		if ip.Unmap().Is6() {
			return true
		}
	}
	return false
}
