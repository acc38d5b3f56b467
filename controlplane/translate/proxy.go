package translate

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"
	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
)

// isEnvoyAtLeast reports whether the proxy's Envoy has at least the version major.minor. It returns false if the
// version is unknown.
func (p *Proxy) isEnvoyAtLeast(major, minor uint32) bool {
	v := p.EnvoyVersion
	return v[0] > major || v[0] == major && v[1] >= minor
}

// SupportsVHDS reports whether the proxy's Envoy supports VHDS over ADS.
func (p *Proxy) SupportsVHDS() bool { return p.isEnvoyAtLeast(1, 37) }

// DisableVHDS makes the control plane send virtual hosts inside their route configurations. It reports whether this
// changes the proxy. Envoy before 1.40 crashes if it receives virtual hosts by VHDS that a route configuration
// contained before.
func (p *Proxy) DisableVHDS() bool {
	if !p.UseVHDS || p.isEnvoyAtLeast(1, 40) {
		return false
	}
	p.UseVHDS = false
	return true
}

// Type is the type of a proxy.
type Type string

// The types of proxies.
const (
	// Sidecar serves one workload.
	Sidecar Type = "sidecar"
	// Router is a gateway: it serves the Gateways that select it.
	Router Type = "router"
)

// Interception is the way in which a sidecar receives its workload's traffic.
type Interception string

// The interception modes, as in the node's metadata.
const (
	// None: the workload connects to its sidecar's address, as an HTTP proxy or on upstream listeners.
	None Interception = "NONE"
	// Redirect: the kernel redirects connections to the sidecar.
	Redirect Interception = "REDIRECT"
)

// grpcGenerator is the GENERATOR metadata of proxyless clients, as in Istio.
const grpcGenerator = "grpc"

// Proxy is one Envoy or proxyless gRPC client, as its node describes it. It is immutable except for UseVHDS, which
// DisableVHDS clears.
type Proxy struct {
	ID             string
	Type           Type
	Name           string
	Namespace      string
	ServiceAccount string
	Labels         map[string]string
	// Address is the address at which peers reach the proxy.
	Address netip.Addr
	// IPv4 and IPv6 report the address families of the proxy.
	IPv4, IPv6 bool
	// Interception is a sidecar's mode. A router is not redirected: it listens on its own ports. A router has the value
	// None if other workloads share its network namespace. It then listens only on its own address.
	Interception Interception
	// AppAddress is the workload's listen address in mode NONE.
	AppAddress netip.Addr
	// Upstreams are the upstream listeners of a sidecar in mode NONE, each for one port of a service.
	Upstreams []Upstream
	// Publish maps a router's ports to the addresses on which it listens for them. For other ports, it listens on its
	// own address.
	Publish map[uint32]netip.AddrPort
	// Proxyless: the client is an application with a gRPC library instead of Envoy.
	Proxyless bool
	// Certificates: a proxyless client has a mesh certificate and the mesh's roots.
	Certificates bool
	// Workload is the name of the proxy's workload, for example of a Deployment, without the instance's suffix.
	Workload string
	// OnDemand: the control plane sends only the virtual hosts and service clusters that the proxy requests. Scope is
	// the setting for this in the node's metadata: automatic, all or empty.
	OnDemand bool
	Scope    string
	// OnDemandTimeout limits how long a request waits for an on-demand resource (see DefaultOnDemandTimeout).
	OnDemandTimeout time.Duration
	// EnvoyVersion is major, minor and patch of the node's Envoy version; zero if unknown.
	EnvoyVersion [3]uint32
	// UseVHDS: the proxy receives virtual hosts by VHDS instead of in their route configurations.
	UseVHDS bool
	// IstioVersion is the mesh version that the agent reports. Metadata contains the node's metadata fields whose
	// values are strings. EnvoyFilters may match both.
	IstioVersion string
	Metadata     map[string]string
	// Network and Locality (region/zone/subzone) are empty if the node does not report them.
	Network, Locality string
	// AutoRegisterGroup is the WorkloadGroup in which the control plane registers the workload when it connects. It is
	// empty if there is none. HealthChecked: the agent reports the workload's health.
	AutoRegisterGroup string
	HealthChecked     bool
	// RegisteredAddress is the address of the workload's WorkloadEntry. It is invalid unless the workload is registered
	// in a group.
	RegisteredAddress netip.Addr
	// Topology is the agent's configuration of the proxies in front of a gateway; nil if there is none.
	Topology *meshconfig.Topology
	// Authenticated: the client has proved its namespace and service account.
	Authenticated bool
	// PodPorts maps names to the workload's ports. It is used for Services whose targetPort is a name.
	PodPorts map[string]uint32
	// Disconnected is closed when the proxy disconnects. If it is nil, the proxy counts as connected.
	Disconnected <-chan struct{}
	// AcceptsHTTP10: the proxy accepts HTTP/1.0. Otherwise it refuses HTTP/1.0 requests, or forwards them as TCP if the
	// port's protocol is not declared.
	AcceptsHTTP10 bool
	// UnpacksLabels: the proxy's agent unpacks packed labels of metrics.
	UnpacksLabels bool
	// SelfDiscovery: the proxy requests the endpoints of its own service, for zone-aware routing.
	SelfDiscovery bool
}

// Upstream is a listener of a sidecar for one port of a service.
type Upstream struct {
	Host   string
	Port   uint32
	Listen netip.AddrPort
}

// metadata contains the fields of a node's metadata that the control plane uses. All values except LABELS are strings,
// because agents read them from environment variables.
type metadata struct {
	Name           string            `json:"NAME"`
	Namespace      string            `json:"NAMESPACE"`
	ServiceAccount string            `json:"SERVICE_ACCOUNT"`
	Labels         map[string]string `json:"LABELS"`
	InstanceIPs    string            `json:"INSTANCE_IPS"`
	Interception   string            `json:"INTERCEPTION_MODE"`
	AppAddress     string            `json:"APP_ADDRESS"`
	Upstreams      string            `json:"UPSTREAM_LISTENERS"`
	Publish        string            `json:"PUBLISH"`
	PodPorts       json.RawMessage   `json:"POD_PORTS"`
	Network        string            `json:"NETWORK"`
	RegisterGroup  string            `json:"AUTO_REGISTER_GROUP"`
	ProxyConfig    struct {
		ReadinessProbe  json.RawMessage `json:"readinessProbe"`
		GatewayTopology json.RawMessage `json:"gatewayTopology"`
	} `json:"PROXY_CONFIG"`
	Generator    string `json:"GENERATOR"`
	Certificates string `json:"CERTIFICATE_PROVIDER"`
	Workload     string `json:"WORKLOAD_NAME"`
	Scope        string `json:"PILOTFISH_SCOPE"`
}

// maxMetadataName is the maximum length of names in the node's metadata, as in Kubernetes.
const maxMetadataName = 253

// ParseProxy reads a proxy from the node of its first request. identity is the client's verified SPIFFE ID. It is empty
// if the connection has no authentication. It returns an error if the node contradicts the identity or requests an
// unsupported mode.
func ParseProxy(node *corev3.Node, identity string) (*Proxy, error) {
	m, err := readMetadata(node.GetMetadata())
	if err != nil {
		return nil, fmt.Errorf("node %q: %w", node.GetId(), err)
	}
	p, err := parseID(node.GetId())
	if err != nil {
		return nil, err
	}
	for field, name := range map[string]string{
		"NAME": cmp.Or(m.Name, p.Name), "NAMESPACE": cmp.Or(m.Namespace, p.Namespace), "SERVICE_ACCOUNT": m.ServiceAccount, "WORKLOAD_NAME": m.Workload,
	} {
		if len(name) > maxMetadataName {
			return nil, fmt.Errorf("node at %s: the metadata field %s has %d bytes; at most %d are allowed", p.Address, field, len(name), maxMetadataName)
		}
	}
	p.ServiceAccount, p.Labels = m.ServiceAccount, m.Labels
	p.Metadata = stringFields(node.GetMetadata())
	p.IstioVersion = p.Metadata["ISTIO_VERSION"]
	p.Scope = m.Scope
	p.UnpacksLabels, _ = strconv.ParseBool(p.Metadata["PILOTFISH_UNPACKS_LABELS"])
	p.AcceptsHTTP10 = p.Metadata["HTTP10"] == "1" // as in Istio
	p.SelfDiscovery, _ = strconv.ParseBool(p.Metadata["ENABLE_SELF_DISCOVERY"])
	p.Proxyless, p.Certificates = m.Generator == grpcGenerator, m.Certificates != ""
	version := node.GetUserAgentBuildVersion().GetVersion()
	p.Network, p.Locality = m.Network, localityName(node.GetLocality())
	p.AutoRegisterGroup, p.HealthChecked = m.RegisterGroup, len(m.ProxyConfig.ReadinessProbe) > 0
	p.Topology = readTopology(m.ProxyConfig.GatewayTopology)
	p.EnvoyVersion = [3]uint32{version.GetMajorNumber(), version.GetMinorNumber(), version.GetPatch()}
	if p.Name, err = mergeField("NAME", p.Name, m.Name); err != nil {
		return nil, fmt.Errorf("node %q: %w", p.ID, err)
	}
	if p.Namespace, err = mergeField("NAMESPACE", p.Namespace, m.Namespace); err != nil {
		return nil, fmt.Errorf("node %q: %w", p.ID, err)
	}
	p.Workload = cmp.Or(m.Workload, p.Name)
	if p.Namespace == "" {
		return nil, fmt.Errorf("node %q has no namespace: the agent must send the namespace in the node ID or in the metadata field NAMESPACE", p.ID)
	}
	if err := p.checkIdentity(identity); err != nil {
		return nil, err
	}
	if err := p.readAddresses(m); err != nil {
		return nil, fmt.Errorf("node %q: %w", p.ID, err)
	}
	if p.PodPorts, err = parsePodPorts(m.PodPorts); err != nil {
		return nil, fmt.Errorf("node %q: reading the metadata field POD_PORTS: %w", p.ID, err)
	}
	return p, nil
}

// readTopology parses the gateway topology of the node's metadata. On a parse error it returns nil, so that the gateway
// does not trust forwarding headers of clients.
func readTopology(text []byte) *meshconfig.Topology {
	if len(text) == 0 {
		return nil
	}
	out := &meshconfig.Topology{}
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(text, out); err != nil {
		return nil
	}
	return out
}

// stringFields returns the fields of a node's metadata whose values are strings.
func stringFields(s *structpb.Struct) map[string]string {
	out := map[string]string{}
	for name, value := range s.GetFields() {
		if text, ok := value.GetKind().(*structpb.Value_StringValue); ok {
			out[name] = text.StringValue
		}
	}
	return out
}

// mergeField returns a value that may be in the node's ID, in its metadata, or in both. It returns an error if the two
// values differ: the control plane would otherwise use one value to serve the proxy and display the other.
func mergeField(field, id, metadata string) (string, error) {
	if id != "" && metadata != "" && id != metadata {
		return "", fmt.Errorf("the node ID contains %q, but the metadata field %s is %q: both must have the same value", id, field, metadata)
	}
	return cmp.Or(id, metadata), nil
}

func readMetadata(s *structpb.Struct) (metadata, error) {
	var m metadata
	data, err := s.MarshalJSON()
	if err != nil {
		return m, fmt.Errorf("reading the node's metadata: %w", err)
	}
	// Fields are decoded one by one. Agents send many fields that are not used here, and an unexpected value in one of
	// these must not cause an error.
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(data, &fields); err != nil {
		return m, fmt.Errorf("reading the node's metadata: %w", err)
	}
	for name, to := range map[string]any{
		"NAME": &m.Name, "NAMESPACE": &m.Namespace, "SERVICE_ACCOUNT": &m.ServiceAccount, "LABELS": &m.Labels,
		"INSTANCE_IPS": &m.InstanceIPs, "INTERCEPTION_MODE": &m.Interception, "APP_ADDRESS": &m.AppAddress,
		"UPSTREAM_LISTENERS": &m.Upstreams, "PUBLISH": &m.Publish, "POD_PORTS": &m.PodPorts,
		"NETWORK": &m.Network, "AUTO_REGISTER_GROUP": &m.RegisterGroup, "PROXY_CONFIG": &m.ProxyConfig,
		"GENERATOR": &m.Generator, "CERTIFICATE_PROVIDER": &m.Certificates,
		"PILOTFISH_SCOPE": &m.Scope,
		"WORKLOAD_NAME":   &m.Workload,
	} {
		if raw, ok := fields[name]; ok && string(raw) != "null" {
			if err := json.Unmarshal(raw, to); err != nil {
				return m, fmt.Errorf("the metadata field %s has the unexpected value %s: %w", name, raw, err)
			}
		}
	}
	return m, nil
}

// parseID parses "sidecar~127.77.1.1~reviews-v1.default~default.svc.cluster.local".
func parseID(id string) (*Proxy, error) {
	parts := strings.Split(id, "~")
	if len(parts) != 4 {
		return nil, fmt.Errorf("node id %q is not of the form type~address~name.namespace~domain: only agents of the mesh can connect to the control plane", id)
	}
	p := &Proxy{ID: id, Type: Type(parts[0])}
	if p.Type != Sidecar && p.Type != Router {
		return nil, fmt.Errorf("node id %q: the control plane does not support type %q: use sidecar or router", id, parts[0])
	}
	var err error
	if p.Address, err = netip.ParseAddr(parts[1]); err != nil {
		return nil, fmt.Errorf("node id %q: the second part is not an IP address: %w", id, err)
	}
	if i := strings.LastIndexByte(parts[2], '.'); i >= 0 {
		p.Name, p.Namespace = parts[2][:i], parts[2][i+1:]
	} else {
		p.Name = parts[2]
	}
	return p, nil
}

// checkIdentity returns an error if the proxy reports another namespace or service account than its verified identity
// contains. Namespace and account determine which resources the proxy may receive. checkIdentity also stores the
// account of the identity and sets Authenticated.
func (p *Proxy) checkIdentity(identity string) error {
	if identity == "" {
		return nil
	}
	_, path, _ := strings.Cut(strings.TrimPrefix(identity, "spiffe://"), "/")
	parts := strings.Split(path, "/")
	if len(parts) != 4 || parts[0] != "ns" || parts[2] != "sa" {
		return fmt.Errorf("node %q: the client's identity %q is not of the form spiffe://<trust domain>/ns/<namespace>/sa/<service account>", p.ID, identity)
	}
	if parts[1] != p.Namespace {
		return fmt.Errorf("node %q claims namespace %q, but the client's verified identity is %s", p.ID, p.Namespace, identity)
	}
	if p.ServiceAccount != "" && parts[3] != p.ServiceAccount {
		return fmt.Errorf("node %q claims service account %q, but the client's verified identity is %s", p.ID, p.ServiceAccount, identity)
	}
	p.ServiceAccount, p.Authenticated = parts[3], true
	return nil
}

func (p *Proxy) readAddresses(m metadata) error {
	all := splitList(m.InstanceIPs)
	if len(all) > 0 {
		addr, err := netip.ParseAddr(all[0])
		if err != nil {
			return fmt.Errorf("reading the metadata field INSTANCE_IPS: %w", err)
		}
		p.Address = addr
	}
	p.addFamily(p.Address)
	for _, text := range all {
		if addr, err := netip.ParseAddr(text); err == nil && !addr.IsLinkLocalUnicast() && !addr.IsLoopback() {
			p.addFamily(addr)
		}
	}
	var err error
	if p.Publish, err = parsePublish(m.Publish); err != nil {
		return fmt.Errorf("reading the metadata field PUBLISH: %w", err)
	}
	if p.Type == Router {
		p.Interception = Interception(m.Interception)
		return nil
	}
	return p.readInterception(m)
}

func (p *Proxy) addFamily(addr netip.Addr) {
	is4 := addr.Unmap().Is4()
	p.IPv4, p.IPv6 = p.IPv4 || is4, p.IPv6 || !is4
}

func (p *Proxy) readInterception(m metadata) error {
	p.Interception = Interception(m.Interception)
	if p.Interception == "" || p.Proxyless {
		p.Interception = Redirect
	}
	if interceptionModes[p.Interception] == nil {
		return fmt.Errorf("interception mode %q is not supported: set ISTIO_META_INTERCEPTION_MODE to NONE or REDIRECT", m.Interception)
	}
	if p.Interception != None {
		return nil
	}
	var err error
	p.AppAddress = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	if m.AppAddress != "" {
		if p.AppAddress, err = netip.ParseAddr(m.AppAddress); err != nil {
			return fmt.Errorf("reading the metadata field APP_ADDRESS: %w", err)
		}
	}
	if p.AppAddress == p.Address {
		return fmt.Errorf("the workload and its sidecar have the same address %s: set ISTIO_META_APP_ADDRESS to an address that only the workload uses", p.Address)
	}
	if p.Upstreams, err = parseUpstreams(m.Upstreams); err != nil {
		return fmt.Errorf("reading the metadata field UPSTREAM_LISTENERS: %w", err)
	}
	return nil
}

// parseUpstreams parses "mysql.default.svc.cluster.local:3306=127.77.1.16:3306,…".
func parseUpstreams(s string) ([]Upstream, error) {
	var out []Upstream
	for _, item := range splitList(s) {
		target, listen, ok := strings.Cut(item, "=")
		i := strings.LastIndexByte(target, ':')
		if !ok || i < 0 {
			return nil, fmt.Errorf("%q is not of the form host:port=address:port", item)
		}
		port, err := strconv.ParseUint(target[i+1:], 10, 16)
		if err != nil {
			return nil, fmt.Errorf("the port in %q is not a number from 0 to 65535", item)
		}
		addr, err := netip.ParseAddrPort(listen)
		if err != nil {
			return nil, fmt.Errorf("the address and port after = in %q cannot be read: %w", item, err)
		}
		out = append(out, Upstream{Host: target[:i], Port: uint32(port), Listen: addr})
	}
	return out, nil
}

// parsePublish parses "8080=127.0.0.1:8080,…".
func parsePublish(s string) (map[uint32]netip.AddrPort, error) {
	out := map[uint32]netip.AddrPort{}
	for _, item := range splitList(s) {
		port, listen, ok := strings.Cut(item, "=")
		if !ok {
			return nil, fmt.Errorf("%q is not of the form port=address:port", item)
		}
		number, err := strconv.ParseUint(port, 10, 16)
		if err != nil {
			return nil, fmt.Errorf("the port in %q is not a number from 0 to 65535", item)
		}
		addr, err := netip.ParseAddrPort(listen)
		if err != nil {
			return nil, fmt.Errorf("the address and port after = in %q cannot be read: %w", item, err)
		}
		out[uint32(number)] = addr
	}
	return out, nil
}

// parsePodPorts parses [{"name":"http","containerPort":9080}], which is JSON or a string that contains JSON.
func parsePodPorts(raw json.RawMessage) (map[string]uint32, error) {
	if len(raw) == 0 {
		return nil, nil
	}
	var text string
	if json.Unmarshal(raw, &text) == nil {
		raw = json.RawMessage(text)
	}
	var ports []struct {
		Name          string `json:"name"`
		ContainerPort uint32 `json:"containerPort"`
	}
	if len(raw) == 0 {
		return nil, nil
	}
	if err := json.Unmarshal(raw, &ports); err != nil {
		return nil, err
	}
	out := map[string]uint32{}
	for _, p := range ports {
		if p.Name != "" {
			out[p.Name] = p.ContainerPort
		}
	}
	return out, nil
}

func splitList(s string) []string {
	var out []string
	for _, item := range strings.Split(s, ",") {
		if item = strings.TrimSpace(item); item != "" {
			out = append(out, item)
		}
	}
	return out
}

// scope returns the part of the mesh that is visible to the proxy.
func (p *Proxy) scope(s *snapshot.Snapshot) *snapshot.Scope {
	if p.Type == Router {
		return s.GatewayScope(p.Namespace, p.Labels)
	}
	return s.Scope(p.Namespace, p.Labels)
}
