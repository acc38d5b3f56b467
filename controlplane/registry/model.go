// Package registry contains the services of the mesh and their endpoints. It combines Kubernetes Services,
// EndpointSlices and Pods with ServiceEntries and WorkloadEntries. It does not depend on Envoy.
package registry

import (
	"iter"
	"net/netip"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// Protocol is the protocol of a service port.
type Protocol string

// The protocols that proxies distinguish.
const (
	HTTP  Protocol = "HTTP"
	HTTP2 Protocol = "HTTP2"
	GRPC  Protocol = "GRPC"
	HTTPS Protocol = "HTTPS"
	TLS   Protocol = "TLS"
	TCP   Protocol = "TCP"
	UDP   Protocol = "UDP"
	// Undeclared: the protocol is not configured, so proxies detect it from the first bytes of each connection.
	Undeclared Protocol = "UNDECLARED"
)

// IsHTTP reports whether the protocol is HTTP, so that proxies can route single requests.
func (p Protocol) IsHTTP() bool { return p == HTTP || p == HTTP2 || p == GRPC }

// MayBeHTTP reports whether connections to the port may contain HTTP, so that proxies may route single requests.
func (p Protocol) MayBeHTTP() bool { return p.IsHTTP() || p == Undeclared }

// IsHTTP2 reports whether the workload requires HTTP/2.
func (p Protocol) IsHTTP2() bool { return p == HTTP2 || p == GRPC }

// Resolution is the method by which proxies find a service's endpoints.
type Resolution int

const (
	// Static: the registry has the endpoints, and EDS sends them.
	Static Resolution = iota
	// DNS: Envoy resolves the endpoints' names and uses all addresses.
	DNS
	// DNSRoundRobin: Envoy resolves the name and uses one address at a time.
	DNSRoundRobin
	// Passthrough: Envoy uses the original destination.
	Passthrough
)

var resolutionNames = [...]string{Static: "STATIC", DNS: "DNS", DNSRoundRobin: "DNS_ROUND_ROBIN", Passthrough: "NONE"}

// String returns Istio's name of the resolution.
func (r Resolution) String() string { return resolutionNames[r] }

// MarshalText returns Istio's name of the resolution.
func (r Resolution) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// Port is one port of a service.
type Port struct {
	Name     string   `json:"name"`
	Number   uint32   `json:"number"`
	Protocol Protocol `json:"protocol"`
	// TargetPort is the port number of the workload if all workloads use the same number. It is 0 if TargetPortName
	// selects the port.
	TargetPort     uint32 `json:"targetPort,omitempty"`
	TargetPortName string `json:"targetPortName,omitempty"`
}

// Service is a routable name of the mesh. It is immutable.
type Service struct {
	// Hostname is the fully qualified name: reviews.default.svc.cluster.local, or a ServiceEntry's host (which may be a
	// wildcard, *.example.com).
	Hostname  string `json:"hostname"`
	Name      string `json:"name"` // metadata.name of its document
	Namespace string `json:"namespace"`
	// Aliases lists the other names that are valid in all namespaces (reviews.default, reviews.default.svc). It does
	// not contain the bare name (reviews), which is valid only in the service's namespace.
	Aliases   []string     `json:"aliases,omitempty"`
	Addresses []netip.Addr `json:"addresses,omitempty"` // virtual addresses
	// Ranges lists the networks of the service. Connections to an address in these networks belong to the service.
	Ranges []netip.Prefix `json:"ranges,omitempty"`
	// Virtual is the preferred virtual address of the service. If another service has the same address, the service
	// receives a different one.
	Virtual netip.Addr `json:"-"`
	// ByName: proxies resolve the host in each request, and ignore the original destination address.
	ByName     bool       `json:"byName,omitempty"`
	Ports      []Port     `json:"ports,omitempty"`
	Resolution Resolution `json:"resolution"`
	// ByInstance: the Service is headless (clusterIP: None). Each of its instances has a DNS name below the name of the
	// Service.
	ByInstance bool `json:"byInstance,omitempty"`
	// Kubernetes: the service is a Kubernetes Service, which has short names.
	Kubernetes bool `json:"kubernetes,omitempty"`
	// ExternalName is the host of a Kubernetes Service of type ExternalName; empty for all others.
	ExternalName string `json:"externalName,omitempty"`
	// AliasOf is the hostname of the service of which this Service of type ExternalName is an alias. It is empty if the
	// external name is a host outside the mesh. The registry does not list an alias as a service.
	AliasOf string `json:"aliasOf,omitempty"`
	// AliasServices lists the Services of type ExternalName that are aliases of this one, ordered by hostname. Each has
	// its own short names and exportTo.
	AliasServices []*Service `json:"aliasServices,omitempty"`
	// External: the service is a ServiceEntry with location MESH_EXTERNAL, for which proxies use no mutual TLS by
	// default.
	External bool `json:"external,omitempty"`
	// NodeLocal: proxies use only endpoints on their own node (internalTrafficPolicy: Local).
	NodeLocal bool `json:"nodeLocal,omitempty"`
	// Distribution specifies which endpoints proxies prefer.
	Distribution Distribution `json:"trafficDistribution,omitempty"`
	// Sessions: requests of a client are sent to the same workload. Terminating endpoints drain: they receive only the
	// requests of their existing sessions.
	Sessions bool `json:"persistentSessions,omitempty"`
	// Selector selects the workloads; nil if the document lists the endpoints.
	Selector map[string]string `json:"selector,omitempty"`
	// ExportTo lists the namespaces to which the service is visible. An empty list or "*" means all namespaces, "."
	// means the namespace of the service.
	ExportTo []string `json:"exportTo,omitempty"`
	// SubjectAltNames lists the identities that the endpoints may have. If it is empty, they may have any.
	SubjectAltNames []string   `json:"subjectAltNames,omitempty"`
	Source          config.Key `json:"source,omitempty"`
}

// WithAliases iterates over the service and its AliasServices.
func (s *Service) WithAliases() iter.Seq[*Service] {
	return func(yield func(*Service) bool) {
		if !yield(s) {
			return
		}
		for _, alias := range s.AliasServices {
			if !yield(alias) {
				return
			}
		}
	}
}

// IsKnownAs reports whether host is the hostname of the service or of one of its aliases, and visible to namespace.
func (s *Service) IsKnownAs(host, namespace string) bool {
	for known := range s.WithAliases() {
		if known.Hostname == host && known.VisibleTo(namespace) && s.VisibleTo(namespace) {
			return true
		}
	}
	return false
}

// Port returns the port with the specified number. If a TCP and a UDP port have the same number, as for DNS and HTTP/3,
// it returns the TCP port.
func (s *Service) Port(number uint32) (Port, bool) {
	var found Port
	ok := false
	for _, p := range s.Ports {
		if p.Number != number {
			continue
		}
		if p.Protocol != UDP {
			return p, true
		}
		found, ok = p, true
	}
	return found, ok
}

// Headless reports whether clients resolve the service's name to the addresses of its workloads, and choose one of
// these.
func (s *Service) Headless() bool {
	return s.Kubernetes && s.Resolution == Static && len(s.Addresses) == 0
}

// VisibleTo reports whether the service is visible to proxies in namespace.
func (s *Service) VisibleTo(namespace string) bool {
	if len(s.ExportTo) == 0 {
		return true
	}
	for _, e := range s.ExportTo {
		if e == "*" || e == namespace || (e == "." && s.Namespace == namespace) {
			return true
		}
	}
	return false
}

// Endpoint is the address of one port of a service on one workload. It is immutable.
type Endpoint struct {
	// Address is an IP address, a host name (for services with DNS resolution) or a unix socket ("unix:///path").
	Address string `json:"address"`
	Port    uint32 `json:"port"` // port of the endpoint; 0 for a unix socket
	// ServicePort is the number of the service's port.
	ServicePort uint32            `json:"servicePort,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	Namespace   string            `json:"namespace"`
	// Workload is the name of the WorkloadEntry, or of the workload of a pod, for example of its Deployment. It is empty
	// for an endpoint that a document lists.
	Workload       string `json:"workload,omitempty"`
	ServiceAccount string `json:"serviceAccount,omitempty"`
	Network        string `json:"network,omitempty"`
	Locality       string `json:"locality,omitempty"` // region/zone/subzone
	Weight         uint32 `json:"weight,omitempty"`   // relative to other endpoints; 0 means 1
	// MTLS is set if the workload has a sidecar with a mesh identity (label security.istio.io/tlsMode=istio).
	MTLS bool `json:"mtls,omitempty"`
	// NotForGateways: only sidecars may connect to the endpoint. For a gateway, its address would be on the gateway's
	// own machine, which belongs to the platform.
	NotForGateways bool `json:"notForGateways,omitempty"`
	// SecondAddress is the address of the other IP family, if the workload has addresses of both; otherwise empty.
	SecondAddress string `json:"secondAddress,omitempty"`
	// Node is the Kubernetes node of the workload; empty if unknown.
	Node string `json:"node,omitempty"`
	// Hostname is the DNS label of the workload below the name of a headless Service; empty if it has none.
	Hostname string `json:"hostname,omitempty"`
	// Draining: the workload terminates, and receives only requests of existing sessions.
	Draining bool `json:"draining,omitempty"`
}

// Registry contains the services and endpoints at one point in time. It is immutable and safe for concurrent use. Build
// creates it.
type Registry struct {
	// Services is ordered by hostname, then namespace.
	Services []*Service
	// Problems lists unresolved references, conflicts and refused endpoints.
	Problems []config.Problem

	opts    Options
	byHost  map[string][]*Service
	aliases map[string]string // other name → hostname
	targets map[string]string // hostname of an alias → hostname of its service

	// These fields are inputs of the next Build.
	sources   []*source
	bySource  map[config.Key]*source
	workloads map[string]*workloadIndex // by namespace
	cluster   clusterIndex
	endpoints map[*Service]*serviceEndpoints
}

// Target returns the hostname of the service of which hostname is an alias. If it is not an alias, Target returns
// hostname itself.
func (r *Registry) Target(hostname string) string {
	if to, ok := r.targets[hostname]; ok && r.byHost[hostname] == nil {
		return to
	}
	return hostname
}

// ByHostname returns the services with this exact hostname. There are several only if several namespaces have a
// ServiceEntry for the host.
func (r *Registry) ByHostname(host string) []*Service { return r.byHost[host] }

// Endpoints returns a service's endpoints of all ports, ordered by the service's ports, then by workload. Callers must
// not modify the slice.
func (r *Registry) Endpoints(s *Service) []Endpoint {
	if found := r.endpoints[s]; found != nil {
		return found.endpoints
	}
	return nil
}

// Datagrams returns the endpoints of a service's UDP ports, which Endpoints does not include. Callers must not modify
// the slice.
func (r *Registry) Datagrams(s *Service) []Endpoint {
	if found := r.endpoints[s]; found != nil {
		return found.datagrams
	}
	return nil
}

// Options returns the options of the registry.
func (r *Registry) Options() Options { return r.opts }
