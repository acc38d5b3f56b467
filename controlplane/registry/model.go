// Package registry knows which services the mesh has, and where each is served: it joins Kubernetes Services,
// ServiceEntries and WorkloadEntries into services and endpoints. It knows nothing of Envoy.
package registry

import (
	"iter"
	"net/netip"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// Protocol is what a service port speaks.
type Protocol string

// The protocols that are told apart.
const (
	HTTP  Protocol = "HTTP"
	HTTP2 Protocol = "HTTP2"
	GRPC  Protocol = "GRPC"
	HTTPS Protocol = "HTTPS"
	TLS   Protocol = "TLS"
	TCP   Protocol = "TCP"
	UDP   Protocol = "UDP"
	// Undeclared: nobody says what the port speaks, so that each connection's first bytes have to tell.
	Undeclared Protocol = "UNDECLARED"
)

// IsHTTP says whether requests can be seen and routed.
func (p Protocol) IsHTTP() bool { return p == HTTP || p == HTTP2 || p == GRPC }

// MayBeHTTP says whether requests can be seen and routed, where a connection turns out to have any.
func (p Protocol) MayBeHTTP() bool { return p.IsHTTP() || p == Undeclared }

// IsHTTP2 says whether the workload itself wants HTTP/2.
func (p Protocol) IsHTTP2() bool { return p == HTTP2 || p == GRPC }

// Resolution is how a service's addresses are found.
type Resolution int

const (
	// Static: the endpoints are known here and sent by EDS.
	Static Resolution = iota
	// DNS: Envoy resolves the endpoints' names, and uses all addresses.
	DNS
	// DNSRoundRobin: Envoy resolves the name, and uses one address at a time.
	DNSRoundRobin
	// Passthrough: the caller's original destination is used.
	Passthrough
)

var resolutionNames = [...]string{Static: "STATIC", DNS: "DNS", DNSRoundRobin: "DNS_ROUND_ROBIN", Passthrough: "NONE"}

// String is Istio's name of the resolution.
func (r Resolution) String() string { return resolutionNames[r] }

// MarshalText writes Istio's name.
func (r Resolution) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// Port is one port of a service.
type Port struct {
	Name     string   `json:"name"`
	Number   uint32   `json:"number"`
	Protocol Protocol `json:"protocol"`
	// TargetPort is the port on the workload, when the service fixes one for all; 0 when TargetPortName decides.
	TargetPort     uint32 `json:"targetPort,omitempty"`
	TargetPortName string `json:"targetPortName,omitempty"`
}

// Service is a name that the mesh can route to. Immutable.
type Service struct {
	// Hostname is the fully qualified name: reviews.default.svc.cluster.local, or a ServiceEntry's host (which may be a
	// wildcard, *.example.com).
	Hostname  string `json:"hostname"`
	Name      string `json:"name"` // metadata.name of its document
	Namespace string `json:"namespace"`
	// Aliases are the other names it is known by everywhere (reviews.default, reviews.default.svc). The bare name
	// (reviews) is only an alias for callers of its own namespace and is not in this list.
	Aliases   []string     `json:"aliases,omitempty"`
	Addresses []netip.Addr `json:"addresses,omitempty"` // virtual addresses; empty when it has none
	// Ranges are blocks of addresses that connections to it go to, besides.
	Ranges []netip.Prefix `json:"ranges,omitempty"`
	// Virtual is the address that its name leads to, where it was given one; it may have had to take the next.
	Virtual netip.Addr `json:"-"`
	// ByName: requests go to the host that they name, which proxies look up, and not to the address that the caller chose.
	ByName     bool       `json:"byName,omitempty"`
	Ports      []Port     `json:"ports,omitempty"`
	Resolution Resolution `json:"resolution"`
	// ByInstance: it asks for no address (clusterIP: None), and callers know its instances by names below its own.
	ByInstance bool `json:"byInstance,omitempty"`
	// Kubernetes says that it came from a Kubernetes Service, so that short names apply.
	Kubernetes bool `json:"kubernetes,omitempty"`
	// ExternalName is the host that a Kubernetes Service of type ExternalName leads to; empty for all others.
	ExternalName string `json:"externalName,omitempty"`
	// AliasOf is the hostname of the service that such a Service is another name of; empty where it leads outside. Then the
	// registry does not list it as a service.
	AliasOf string `json:"aliasOf,omitempty"`
	// AliasServices are the Services of type ExternalName that are other names of this one, ordered by hostname. Each has
	// short names and an exportTo of its own.
	AliasServices []*Service `json:"aliasServices,omitempty"`
	// External is a ServiceEntry with location MESH_EXTERNAL: no mTLS by default.
	External bool `json:"external,omitempty"`
	// Selector selects its workloads; nil when its endpoints are listed in place.
	Selector map[string]string `json:"selector,omitempty"`
	// ExportTo is the namespaces that may see it; empty or "*" is all, "." is its own.
	ExportTo []string `json:"exportTo,omitempty"`
	// SubjectAltNames, when set, are the identities its endpoints may have.
	SubjectAltNames []string   `json:"subjectAltNames,omitempty"`
	Source          config.Key `json:"source,omitempty"`
}

// WithAliases gives the service and the Services that are other names of it.
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

// Port finds a port by its number. Where datagrams have the number too, as DNS and HTTP/3 do, it is the port for
// connections, whichever is written first.
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

// Headless says whether callers find the addresses of the workloads themselves behind the service's name, and choose one.
func (s *Service) Headless() bool {
	return s.Kubernetes && s.Resolution == Static && len(s.Addresses) == 0
}

// VisibleTo says whether a proxy of the namespace may see the service.
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

// Endpoint is one place where one port of a service is served. Immutable.
type Endpoint struct {
	// Address is an IP address, or a host name for services with DNS resolution, or a unix socket ("unix:///path").
	Address string `json:"address"`
	Port    uint32 `json:"port"` // on the endpoint; 0 for a unix socket
	// ServicePort is the number of the service's port it belongs to.
	ServicePort    uint32            `json:"servicePort,omitempty"`
	Labels         map[string]string `json:"labels,omitempty"`
	Namespace      string            `json:"namespace"`
	Workload       string            `json:"workload,omitempty"` // name of its WorkloadEntry; empty for endpoints listed in a ServiceEntry
	ServiceAccount string            `json:"serviceAccount,omitempty"`
	Network        string            `json:"network,omitempty"`
	Locality       string            `json:"locality,omitempty"` // region/zone/subzone
	Weight         uint32            `json:"weight,omitempty"`   // relative; 0 counts as 1
	// MTLS says that a sidecar with a mesh identity answers there (label security.istio.io/tlsMode=istio).
	MTLS bool `json:"mtls,omitempty"`
}

// Registry is the services and endpoints at one moment. Immutable, safe for concurrent use. Build makes it.
type Registry struct {
	// Services are ordered by hostname, then namespace.
	Services []*Service
	// Problems are the references that lead nowhere, and the like.
	Problems []config.Problem

	opts    Options
	byHost  map[string][]*Service
	aliases map[string]string // other name → hostname
	targets map[string]string // hostname of an alias → that of the service

	// What the next Build starts from.
	sources   []*source
	bySource  map[config.Key]*source
	workloads map[string]*crowd // by namespace
	served    map[*Service]*served
}

// Target is the hostname of the service that a hostname is an alias of, and the hostname itself where it is none.
func (r *Registry) Target(hostname string) string {
	if to, ok := r.targets[hostname]; ok && r.byHost[hostname] == nil {
		return to
	}
	return hostname
}

// ByHostname gives the services of that exact hostname (one, unless namespaces compete for a ServiceEntry's host).
func (r *Registry) ByHostname(host string) []*Service { return r.byHost[host] }

// Endpoints gives a service's endpoints, all ports, in a stable order: by the service's ports, then by workload. Nobody
// may change the slice.
func (r *Registry) Endpoints(s *Service) []Endpoint {
	if served := r.served[s]; served != nil {
		return served.endpoints
	}
	return nil
}

// Datagrams gives the workloads that serve a service's ports of UDP, which are not among its endpoints. Nobody may change
// the slice.
func (r *Registry) Datagrams(s *Service) []Endpoint {
	if served := r.served[s]; served != nil {
		return served.datagrams
	}
	return nil
}

// Options are what the registry was built with.
func (r *Registry) Options() Options { return r.opts }
