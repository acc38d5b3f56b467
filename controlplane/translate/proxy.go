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

// atLeast says whether the proxy's Envoy is of that version or a newer one; one that does not say is not.
func (p *Proxy) atLeast(major, minor uint32) bool {
	v := p.EnvoyVersion
	return v[0] > major || v[0] == major && v[1] >= minor
}

// TakesHostsApart says whether the proxy's Envoy takes virtual hosts over the stream that everything comes over.
func (p *Proxy) TakesHostsApart() bool { return p.atLeast(1, 37) }

// KeepWhole has the proxy get virtual hosts within their route configurations from then on, if its Envoy takes them by
// themselves and crashes when it gets them again after it had them within. 1.40 does not.
func (p *Proxy) KeepWhole() bool {
	if !p.HostsApart || p.atLeast(1, 40) {
		return false
	}
	p.HostsApart = false
	return true
}

// Type is what a proxy is for.
type Type string

// The types of proxies.
const (
	// Sidecar serves one workload.
	Sidecar Type = "sidecar"
	// Router is a gateway: it serves the Gateways that select it.
	Router Type = "router"
)

// Interception is how a sidecar gets its workload's traffic.
type Interception string

// The interception modes, as in the node's metadata.
const (
	// None: the workload calls its sidecar by address, as an HTTP proxy or on listeners of its upstreams.
	None Interception = "NONE"
	// Redirect: the kernel redirects connections to the sidecar.
	Redirect Interception = "REDIRECT"
)

// grpcGenerator is what the metadata of those says that need no Envoy; Istio's agents say so too.
const grpcGenerator = "grpc"

// Proxy is one Envoy, as its node describes it. Immutable but for what Instead holds, and
// for HostsApart, which KeepWhole takes away.
type Proxy struct {
	ID             string
	Type           Type
	Name           string
	Namespace      string
	ServiceAccount string
	Labels         map[string]string
	// Address is the address that others reach it by.
	Address netip.Addr
	// IPv4 and IPv6 are the families that it has addresses of.
	IPv4, IPv6 bool
	// Interception is how a sidecar gets traffic. A router gets it at its own ports; with None it shares its network with
	// others, and listens on its own address only.
	Interception Interception
	// AppAddress is where the workload listens, in mode NONE.
	AppAddress netip.Addr
	// Upstreams are addresses on which a sidecar in mode NONE offers one port of a service each.
	Upstreams []Upstream
	// Publish says which address a router's port listens on instead of its own.
	Publish map[uint32]netip.AddrPort
	// Proxyless: it is no Envoy, but an application that speaks xDS itself, as gRPC's libraries do.
	Proxyless bool
	// Certificates: such an application has a certificate of the mesh, and the mesh's roots.
	Certificates bool
	// Workload is what the proxy's workload is called, as a Deployment is: without what tells its copies apart.
	Workload string
	// OnDemand: it asks for virtual hosts and clusters of services as it needs them, and holds no others. Scope is what its
	// node says of that: automatic, all, or nothing.
	OnDemand bool
	Scope    string
	// OnDemandTimeout bounds its wait for what it asks for. It is reached only while nobody answers.
	OnDemandTimeout time.Duration
	// EnvoyVersion is what the node says of its Envoy: major, minor, patch; zero when it does not say.
	EnvoyVersion [3]uint32
	// HostsApart: it gets virtual hosts by themselves, and not within their route configurations.
	HostsApart bool
	// IstioVersion is the version of the mesh that its agent tells, and Metadata what of its node's metadata is text: what
	// EnvoyFilters may ask for.
	IstioVersion string
	Metadata     map[string]string
	// Network and Locality (region/zone/subzone) are where it is; empty when the node does not say.
	Network, Locality string
	// AutoRegisterGroup is the WorkloadGroup that the workload is to be registered in, if any; HealthChecked says that its
	// agent reports its health.
	AutoRegisterGroup string
	HealthChecked     bool
	// Topology is what its agent's ProxyConfig says of the proxies before it; nil when it says nothing.
	Topology *meshconfig.Topology
	// Proven: it proved its namespace and service account.
	Proven bool
	// Instead is what it has in place of EnvoyFilters that its Envoy refused; nil is nothing.
	Instead *Instead
	// PodPorts are the workload's ports by name, for Services whose targetPort is a name.
	PodPorts map[string]uint32
	// Ended is closed when the proxy is no longer connected; nil is never.
	Ended <-chan struct{}
	// SelfDiscovery: it asks for where the like of it are, for zone-aware routing.
	SelfDiscovery bool
}

// Upstream is a listener of a sidecar for one port of a service.
type Upstream struct {
	Host   string
	Port   uint32
	Listen netip.AddrPort
}

// metadata is what is read of a node's metadata. All values but LABELS are strings, as the agent's environment has them.
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

// maxMetadataName bounds the names that the node says of its workload, as Kubernetes does.
const maxMetadataName = 253

// ParseProxy reads a proxy from the node of its first request. identity is the SPIFFE ID that it proved, or empty on a
// connection that proves none; a node that claims to be someone else is an error, and so is one that asks for what is
// not offered.
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
			return nil, fmt.Errorf("node of %s: metadata %s has %d bytes, and names have %d at most", p.Address, field, len(name), maxMetadataName)
		}
	}
	p.ServiceAccount, p.Labels = m.ServiceAccount, m.Labels
	p.Metadata = textOf(node.GetMetadata())
	p.IstioVersion = p.Metadata["ISTIO_VERSION"]
	p.Scope = m.Scope
	p.SelfDiscovery, _ = strconv.ParseBool(p.Metadata["ENABLE_SELF_DISCOVERY"])
	p.Proxyless, p.Certificates = m.Generator == grpcGenerator, m.Certificates != ""
	version := node.GetUserAgentBuildVersion().GetVersion()
	p.Network, p.Locality = m.Network, localityName(node.GetLocality())
	p.AutoRegisterGroup, p.HealthChecked = m.RegisterGroup, len(m.ProxyConfig.ReadinessProbe) > 0
	p.Topology = readTopology(m.ProxyConfig.GatewayTopology)
	p.EnvoyVersion = [3]uint32{version.GetMajorNumber(), version.GetMinorNumber(), version.GetPatch()}
	if p.Name, err = agreed("NAME", p.Name, m.Name); err != nil {
		return nil, fmt.Errorf("node %q: %w", p.ID, err)
	}
	if p.Namespace, err = agreed("NAMESPACE", p.Namespace, m.Namespace); err != nil {
		return nil, fmt.Errorf("node %q: %w", p.ID, err)
	}
	p.Workload = cmp.Or(m.Workload, p.Name)
	if p.Namespace == "" {
		return nil, fmt.Errorf("node %q: it has no namespace: the agent sends one as NAMESPACE in the node's metadata", p.ID)
	}
	if err := p.checkIdentity(identity); err != nil {
		return nil, err
	}
	if err := p.readAddresses(m); err != nil {
		return nil, fmt.Errorf("node %q: %w", p.ID, err)
	}
	if p.PodPorts, err = parsePodPorts(m.PodPorts); err != nil {
		return nil, fmt.Errorf("node %q: metadata POD_PORTS: %w", p.ID, err)
	}
	return p, nil
}

// readTopology reads what a gateway's agent says of the proxies before it. What cannot be read says nothing: no address that
// a caller claims is believed then.
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

// textOf is what of a node's metadata is text.
func textOf(s *structpb.Struct) map[string]string {
	out := map[string]string{}
	for name, value := range s.GetFields() {
		if text, ok := value.GetKind().(*structpb.Value_StringValue); ok {
			out[name] = text.StringValue
		}
	}
	return out
}

// agreed is what both the node's id and its metadata say, as far as they say anything. One that contradicts itself would
// be served as the one and shown as the other.
func agreed(field, id, metadata string) (string, error) {
	if id != "" && metadata != "" && id != metadata {
		return "", fmt.Errorf("its id says %q, and its metadata %s %q: the agent sends the same in both", id, field, metadata)
	}
	return cmp.Or(id, metadata), nil
}

func readMetadata(s *structpb.Struct) (metadata, error) {
	var m metadata
	data, err := s.MarshalJSON()
	if err != nil {
		return m, fmt.Errorf("metadata: %w", err)
	}
	// Field by field, for agents send much else, and an odd value of a field that does not matter is no reason to refuse.
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(data, &fields); err != nil {
		return m, fmt.Errorf("metadata: %w", err)
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
				return m, fmt.Errorf("metadata %s: %s is not what is expected there: %w", name, raw, err)
			}
		}
	}
	return m, nil
}

// parseID reads "sidecar~127.77.1.1~reviews-v1.default~default.svc.cluster.local".
func parseID(id string) (*Proxy, error) {
	parts := strings.Split(id, "~")
	if len(parts) != 4 {
		return nil, fmt.Errorf("node id %q has not the form type~address~name.namespace~domain: is this an agent of the mesh?", id)
	}
	p := &Proxy{ID: id, Type: Type(parts[0])}
	if p.Type != Sidecar && p.Type != Router {
		return nil, fmt.Errorf("node id %q: type %q is not served: use sidecar or router", id, parts[0])
	}
	var err error
	if p.Address, err = netip.ParseAddr(parts[1]); err != nil {
		return nil, fmt.Errorf("node id %q: %w", id, err)
	}
	if i := strings.LastIndexByte(parts[2], '.'); i >= 0 {
		p.Name, p.Namespace = parts[2][:i], parts[2][i+1:]
	} else {
		p.Name = parts[2]
	}
	return p, nil
}

// checkIdentity refuses a proxy that claims another namespace or service account than its identity has: with its
// configuration goes what that one may see.
func (p *Proxy) checkIdentity(identity string) error {
	if identity == "" {
		return nil
	}
	_, path, _ := strings.Cut(strings.TrimPrefix(identity, "spiffe://"), "/")
	parts := strings.Split(path, "/")
	if len(parts) != 4 || parts[0] != "ns" || parts[2] != "sa" {
		return fmt.Errorf("node %q: the caller's identity %q is not spiffe://<trust domain>/ns/<namespace>/sa/<service account>", p.ID, identity)
	}
	if parts[1] != p.Namespace {
		return fmt.Errorf("node %q is of namespace %q, but the caller proved to be %s", p.ID, p.Namespace, identity)
	}
	if p.ServiceAccount != "" && parts[3] != p.ServiceAccount {
		return fmt.Errorf("node %q has service account %q, but the caller proved to be %s", p.ID, p.ServiceAccount, identity)
	}
	p.ServiceAccount, p.Proven = parts[3], true
	return nil
}

func (p *Proxy) readAddresses(m metadata) error {
	all := splitList(m.InstanceIPs)
	if len(all) > 0 {
		addr, err := netip.ParseAddr(all[0])
		if err != nil {
			return fmt.Errorf("metadata INSTANCE_IPS: %w", err)
		}
		p.Address = addr
	}
	p.noteFamily(p.Address)
	for _, text := range all {
		if addr, err := netip.ParseAddr(text); err == nil && !addr.IsLinkLocalUnicast() && !addr.IsLoopback() {
			p.noteFamily(addr)
		}
	}
	var err error
	if p.Publish, err = parsePublish(m.Publish); err != nil {
		return fmt.Errorf("metadata PUBLISH: %w", err)
	}
	if p.Type == Router {
		p.Interception = Interception(m.Interception)
		return nil
	}
	return p.readInterception(m)
}

func (p *Proxy) noteFamily(addr netip.Addr) {
	is4 := addr.Unmap().Is4()
	p.IPv4, p.IPv6 = p.IPv4 || is4, p.IPv6 || !is4
}

func (p *Proxy) readInterception(m metadata) error {
	p.Interception = Interception(m.Interception)
	if p.Interception == "" || p.Proxyless {
		p.Interception = Redirect
	}
	if captures[p.Interception] == nil {
		return fmt.Errorf("interception mode %q is not offered: set ISTIO_META_INTERCEPTION_MODE to NONE or REDIRECT", m.Interception)
	}
	if p.Interception != None {
		return nil
	}
	var err error
	p.AppAddress = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	if m.AppAddress != "" {
		if p.AppAddress, err = netip.ParseAddr(m.AppAddress); err != nil {
			return fmt.Errorf("metadata APP_ADDRESS: %w", err)
		}
	}
	if p.AppAddress == p.Address {
		return fmt.Errorf("the workload's address and its sidecar's are the same, %s: set ISTIO_META_APP_ADDRESS to an address of the workload's own", p.Address)
	}
	if p.Upstreams, err = parseUpstreams(m.Upstreams); err != nil {
		return fmt.Errorf("metadata UPSTREAM_LISTENERS: %w", err)
	}
	return nil
}

// parseUpstreams reads "mysql.default.svc.cluster.local:3306=127.77.1.16:3306,…".
func parseUpstreams(s string) ([]Upstream, error) {
	var out []Upstream
	for _, item := range splitList(s) {
		target, listen, ok := strings.Cut(item, "=")
		i := strings.LastIndexByte(target, ':')
		if !ok || i < 0 {
			return nil, fmt.Errorf("%q has not the form host:port=address:port", item)
		}
		port, err := strconv.ParseUint(target[i+1:], 10, 16)
		if err != nil {
			return nil, fmt.Errorf("%q: port: %w", item, err)
		}
		addr, err := netip.ParseAddrPort(listen)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", item, err)
		}
		out = append(out, Upstream{Host: target[:i], Port: uint32(port), Listen: addr})
	}
	return out, nil
}

// parsePublish reads "8080=127.0.0.1:8080,…".
func parsePublish(s string) (map[uint32]netip.AddrPort, error) {
	out := map[uint32]netip.AddrPort{}
	for _, item := range splitList(s) {
		port, listen, ok := strings.Cut(item, "=")
		if !ok {
			return nil, fmt.Errorf("%q has not the form port=address:port", item)
		}
		number, err := strconv.ParseUint(port, 10, 16)
		if err != nil {
			return nil, fmt.Errorf("%q: port: %w", item, err)
		}
		addr, err := netip.ParseAddrPort(listen)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", item, err)
		}
		out[uint32(number)] = addr
	}
	return out, nil
}

// parsePodPorts reads [{"name":"http","containerPort":9080}], which comes as JSON or as a string of JSON.
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

// scope is what the proxy sees of the mesh.
func (p *Proxy) scope(s *snapshot.Snapshot) *snapshot.Scope {
	if p.Type == Router {
		return s.GatewayScope(p.Namespace, p.Labels)
	}
	return s.Scope(p.Namespace, p.Labels)
}
