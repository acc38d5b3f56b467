// Package bootstrap builds the Envoy bootstrap of one proxy from its identity and settings. It uses Envoy's own types,
// so that every value is quoted, escaped and named correctly for any input.
//
// The names, ports, clusters and listeners are those of Istio's sidecars. Control planes, dashboards and probes for
// Istio's sidecars therefore also work with this bootstrap.
package bootstrap

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	meshv1 "istio.io/api/mesh/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/internal/tlspolicy"
)

// Type is the role of a proxy. It is the first part of its node ID.
type Type string

// The supported types of proxies.
const (
	Sidecar  Type = "sidecar"
	Router   Type = "router"
	Waypoint Type = "waypoint"
)

// Config contains all inputs of a bootstrap.
type Config struct {
	Type Type
	// IPs are the proxy's addresses. At least one is required. The first is part of the node ID.
	IPs            []netip.Addr
	Name           string // name of the pod or workload
	Namespace      string
	Domain         string // DNS domain in the node ID; empty: <namespace>.svc.cluster.local
	ServiceAccount string
	Labels         map[string]string
	Annotations    map[string]string
	// Metadata is added to the node's metadata unchanged. Entries that this package sets override it.
	Metadata map[string]any
	// Locality is region/zone/subzone. It applies only if the proxy's labels contain no locality.
	Locality string
	// ProxyConfig contains ports, names, statistics and runtime values. Required.
	ProxyConfig *meshv1.ProxyConfig
	// ControlPlaneSANs are the subject names that the agent accepts in the control plane's certificate. The node
	// metadata contains them as PILOT_SAN.
	ControlPlaneSANs []string
	// ControlPlaneRoot is the file of root certificates that verify the control plane. The node metadata contains it as
	// XDS_ROOT_CERT.
	ControlPlaneRoot string
	IstioVersion     string // ISTIO_VERSION in the node metadata, unless Metadata contains it
	// Envoy is the major and minor version of the Envoy that will start. The bootstrap contains only runtime flags that
	// this version knows; zero means all flags.
	Envoy [2]int

	// SotW selects state-of-the-world ADS (api_type GRPC) instead of delta. A waypoint always uses delta.
	SotW bool
	// Bind, if valid, is the only address on which Envoy opens its admin, readiness and Prometheus ports, and on which
	// the agent opens its status port. It replaces localhost (for the admin and status ports) and the wildcard address
	// (for the other ports).
	Bind           netip.Addr
	ReadinessPort  uint32 // 0: 15021
	PrometheusPort uint32 // 0: 15090
	// ReadinessProxied makes the readiness port also accept the PROXY protocol.
	ReadinessProxied bool
	// XDSSocket and SDSSocket are the agent's unix sockets. Envoy resolves a relative path against its working
	// directory. A relative path can avoid the kernel's limit of 108 bytes for a socket's path.
	XDSSocket string // empty: <config path>/XDS
	// AdminSocket is the unix socket of Envoy's admin interface. If it is empty, the admin interface listens on
	// ProxyConfig's TCP port.
	AdminSocket string
	SDSSocket   string // empty: DefaultSDSSocket
	// StatusSocket is the unix socket of the agent's status server, if that server has no port. If it is empty, Envoy
	// connects to the status port.
	StatusSocket string
	// FilesSocket is the socket on which the agent serves secrets from files, if another process serves SDSSocket. If
	// it is empty, SDSSocket is used for them.
	FilesSocket string
	// DualStack makes listeners bind the wildcard address of the other address family too.
	DualStack bool
	// ExitOnZero informs the control plane that the draining proxy exits as soon as it has no connections.
	ExitOnZero bool
	// TLSPolicy restricts the TLS parameters of the connections and listeners in the bootstrap.
	TLSPolicy tlspolicy.Policy
	// OutlierLog is the file to which Envoy logs ejections of endpoints; empty for none.
	OutlierLog string

	// MemoryLimit is the container's memory limit in bytes, for Envoy and the agent together. Envoy uses it to shed
	// load before the kernel kills it. 0 means no limit.
	MemoryLimit uint64
	// LocalMetrics makes the Prometheus port listen only on localhost.
	LocalMetrics bool
	// SecureMetricsPort is the port for Envoy's statistics, and SecureMergedMetricsPort the port for the statistics
	// that the agent merges. Both accept only clients with a certificate of the mesh. 0 means no such port.
	SecureMetricsPort, SecureMergedMetricsPort uint32
	// TracingProvider is the mesh's default tracing provider; nil for none. The tracing settings of ProxyConfig
	// override it.
	TracingProvider *meshv1.MeshConfig_ExtensionProvider

	// AgentSecret is a credential that Envoy sends in each request to the agent; empty: none.
	AgentSecret string

	// Override is a document in JSON or YAML that changes the bootstrap. An object is merged into the bootstrap. A list
	// is a JSON patch (RFC 6902). Errors in it refer to it by OverrideFile.
	Override     []byte
	OverrideFile string
	// Custom replaces the bootstrap. It is a complete bootstrap in JSON or YAML, or a Go template that produces one.
	// Errors in it refer to it by CustomFile.
	Custom     []byte
	CustomFile string
	// Env returns an environment variable for a template. If it is nil, all variables are empty in templates.
	Env func(name string) string
	// LogAsJSON is the value of the template option log_json: whether the agent logs in JSON.
	LogAsJSON bool
	// HostIP replaces $(HOST_IP) in Override and Custom.
	HostIP string

	// WorkingDir is prepended to relative paths in the gRPC bootstrap, because gRPC applications run in other working
	// directories. Empty means /.
	WorkingDir string
	// CertDir is the directory with the certificate files of proxyless gRPC applications; empty if there are none.
	CertDir string
}

// hostIPVariable is a text in Override, in Custom and in the addresses of telemetry services. The node's address
// replaces it.
const hostIPVariable = "$(HOST_IP)"

// DefaultSDSSocket is the default path of the socket on which the agent serves certificates.
const DefaultSDSSocket = "./var/run/secrets/workload-spiffe-uds/socket"

// Default ports of Envoy's own listeners.
const (
	DefaultReadinessPort  = 15021
	DefaultPrometheusPort = 15090
	defaultAdminPort      = 15000
	defaultStatusPort     = 15020
	defaultConfigPath     = "./etc/istio/proxy"
)

// withDefaults returns the configuration with its defaults, or an error if a required value is missing or invalid.
func (c Config) withDefaults() (Config, error) {
	if c.Type != Sidecar && c.Type != Router && c.Type != Waypoint {
		return c, fmt.Errorf("bootstrap: proxy type %q is not known; use %q, %q or %q", c.Type, Sidecar, Router, Waypoint)
	}
	if len(c.IPs) == 0 {
		return c, fmt.Errorf("bootstrap: the proxy has no IP address; set INSTANCE_IP to the proxy's address")
	}
	for _, ip := range c.IPs {
		if !ip.IsValid() {
			return c, fmt.Errorf("bootstrap: the proxy's IP addresses %v contain an invalid address", c.IPs)
		}
	}
	if c.ProxyConfig == nil {
		c.ProxyConfig = &meshv1.ProxyConfig{}
	}
	if c.Domain == "" {
		c.Domain = c.Namespace + ".svc.cluster.local"
	}
	c.ReadinessPort = portOrDefault(c.ReadinessPort, DefaultReadinessPort)
	c.PrometheusPort = portOrDefault(c.PrometheusPort, DefaultPrometheusPort)
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

func portOrDefault(port, otherwise uint32) uint32 {
	if port == 0 {
		return otherwise
	}
	return port
}

func (c Config) adminPort() uint32 {
	return portOrDefault(uint32(max(c.ProxyConfig.GetProxyAdminPort(), 0)), defaultAdminPort)
}

func (c Config) statusPort() uint32 {
	return portOrDefault(uint32(max(c.ProxyConfig.GetStatusPort(), 0)), defaultStatusPort)
}

// hasOnlyIPv6 reports whether the proxy has no IPv4 address.
func (c Config) hasOnlyIPv6() bool {
	for _, ip := range c.IPs {
		if ip.Unmap().Is4() {
			return false
		}
	}
	return true
}

// localAddress returns the address on which the admin interface and the agent listen.
func (c Config) localAddress() string {
	switch {
	case c.Bind.IsValid():
		return c.Bind.String()
	case c.hasOnlyIPv6():
		return "::1"
	}
	return "127.0.0.1"
}

// AdminAddress returns the address of Envoy's admin interface: host:port, or "unix:" and the path of a socket.
func (c Config) AdminAddress() string {
	if c.AdminSocket != "" {
		return "unix:" + c.AdminSocket
	}
	return hostPort(c.localAddress(), c.adminPort())
}

// adminEndpoint returns the address that Envoy itself uses to connect to its admin interface.
func (c Config) adminEndpoint() *corev3.Address {
	if c.AdminSocket != "" {
		return pipe(c.AdminSocket)
	}
	return tcp(c.localAddress(), c.adminPort())
}

// adminListener returns the address on which Envoy opens its admin interface. If it is a unix socket, only Envoy's user
// may connect to it.
func (c Config) adminListener() *corev3.Address {
	address := c.adminEndpoint()
	if socket := address.GetPipe(); socket != nil {
		socket.Mode = 0o600
	}
	return address
}

// StatusAddress returns the address of the agent's status server: host:port, or "unix:" and the path of a socket. The
// host is Bind, or empty for all addresses. The agent must listen on this address, because Envoy connects to it.
func (c Config) StatusAddress() string {
	if c.StatusSocket != "" {
		return "unix:" + c.StatusSocket
	}
	if c.Bind.IsValid() {
		return hostPort(c.Bind.String(), c.statusPort())
	}
	return hostPort("", c.statusPort())
}

// StatsURL returns the URL of Envoy's statistics in the Prometheus format.
func (c Config) StatsURL() string {
	return "http://" + hostPort(c.localAddress(), portOrDefault(c.PrometheusPort, DefaultPrometheusPort)) + "/stats/prometheus"
}

func hostPort(host string, port uint32) string {
	return net.JoinHostPort(host, strconv.FormatUint(uint64(port), 10))
}

// openAddresses returns the addresses on which the readiness and Prometheus listeners listen. The first is the main
// address.
func (c Config) openAddresses() []string {
	v4, v6 := netip.IPv4Unspecified().String(), netip.IPv6Unspecified().String()
	switch {
	case c.Bind.IsValid():
		return []string{c.Bind.String()}
	case c.hasOnlyIPv6():
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
