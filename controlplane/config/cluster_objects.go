package config

import (
	"net/netip"
	"reflect"
	"slices"
	"strings"
)

// clusterKinds are the kinds that describe the state of a Kubernetes cluster. Kubernetes writes these objects, so the
// parser reads them leniently: it never refuses one, and several files may contain the same object.
var clusterKinds = []Kind{Pod, EndpointSlice, Node, Namespace}

// IsClusterState reports whether Kubernetes, and not a user, writes objects of the kind.
func (k Kind) IsClusterState() bool { return slices.Contains(clusterKinds, k) }

// IsClusterScoped reports whether objects of the kind have no namespace. Their Key.Namespace is empty.
func (k Kind) IsClusterScoped() bool { return k == Node || k == Namespace }

// DuplicateSeverity returns the severity of the finding about two documents with the same key. Many files repeat the
// Namespace of their documents, so this is no error.
func (k Kind) DuplicateSeverity() Severity {
	if k.IsClusterState() {
		return Info
	}
	return Error
}

// DuplicateRemedy returns the remedy of the finding about two documents with the same key.
func (k Kind) DuplicateRemedy() string {
	if k.IsClusterState() {
		return noRemedyNeeded
	}
	return "rename or remove one of the two"
}

// PodSpec contains the fields of a Kubernetes Pod that the control plane uses, from its metadata, spec and status.
type PodSpec struct {
	UID string
	// Addresses are the pod's IP addresses, at most one of each IP family. The first one is the primary address. It is
	// empty until the pod's network exists.
	Addresses      []netip.Addr
	ServiceAccount string
	Node           string // name of its node; empty until the pod is scheduled
	// Workload is the name of the object that manages the pod, for example of its Deployment (see WorkloadName).
	Workload string
	// Hostname and Subdomain are the fields of the pod's spec. With a subdomain, the pod has a DNS name of its own.
	Hostname, Subdomain string
	// Ports are the named ports of its containers. Pods of one workload may share the slice.
	Ports []PodPort
	// Phase is the pod's phase: Pending, Running, Succeeded, Failed or Unknown.
	Phase       string
	HostNetwork bool // the pod has the addresses of its node
	Ready       bool // condition Ready
	Terminating bool // the pod has a deletion time
}

// PodPort is a named port of a pod.
type PodPort struct {
	Name   string
	Number uint32
}

// IsFinished reports whether the pod's containers have ended for good.
func (p *PodSpec) IsFinished() bool { return p.Phase == "Succeeded" || p.Phase == "Failed" }

// Equal reports whether two specs are equal.
func (p *PodSpec) Equal(o *PodSpec) bool { return p == o || reflect.DeepEqual(p, o) }

// EndpointSliceSpec contains the fields of a Kubernetes EndpointSlice that the control plane uses.
type EndpointSliceSpec struct {
	// Service is the name of its Service, in the same namespace (label kubernetes.io/service-name). It is empty if the
	// slice belongs to no Service.
	Service     string
	AddressType string // IPv4, IPv6 or FQDN
	Ports       []SlicePort
	Endpoints   []SliceEndpoint
}

// ServiceNameLabel is the label of an EndpointSlice with the name of its Service.
const ServiceNameLabel = "kubernetes.io/service-name"

// SlicePort is a port of all endpoints of an EndpointSlice.
type SlicePort struct {
	Name     string // name of the Service's port; empty if it has none
	Protocol string // TCP, UDP or SCTP
	Number   uint32
}

// SliceEndpoint is one address of an endpoint in an EndpointSlice. An endpoint with several addresses is represented by
// several values.
type SliceEndpoint struct {
	Address string
	Node    string // name of the node; empty if unknown
	Zone    string // zone of the node; empty if unknown
	// Pod and PodUID identify the pod to which the endpoint refers, in the namespace of the slice. Pod is empty for an
	// endpoint that refers to no pod. PodUID may be empty in slices that users wrote.
	Pod, PodUID string
	// Hostname is the DNS label of the endpoint below the name of a headless Service; empty if it has none.
	Hostname    string
	Ready       bool // includes publishNotReadyAddresses of the Service
	Serving     bool // accepts requests; also set while it terminates
	Terminating bool
}

// Equal reports whether two specs are equal.
func (s *EndpointSliceSpec) Equal(o *EndpointSliceSpec) bool {
	return s == o || s.Service == o.Service && s.AddressType == o.AddressType && slices.Equal(s.Ports, o.Ports) && slices.Equal(s.Endpoints, o.Endpoints)
}

// NodeSpec contains the fields of a Kubernetes Node that the control plane uses.
type NodeSpec struct {
	// Locality is "region/zone/subzone" without empty parts at the end; empty if the node has no locality.
	Locality string
}

// Labels of a Kubernetes Node that specify its locality. The second name of a list is the one of old versions.
var (
	regionLabels  = []string{"topology.kubernetes.io/region", "failure-domain.beta.kubernetes.io/region"}
	zoneLabels    = []string{"topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"}
	subzoneLabels = []string{"topology.istio.io/subzone"}
)

// NewNodeSpec returns the spec of a node with these labels.
func NewNodeSpec(labels map[string]string) *NodeSpec {
	var parts []string
	for _, names := range [][]string{regionLabels, zoneLabels, subzoneLabels} {
		part := ""
		for _, name := range names {
			if part == "" {
				part = labels[name]
			}
		}
		parts = append(parts, part)
	}
	return &NodeSpec{Locality: strings.TrimRight(strings.Join(parts, "/"), "/")}
}

// Equal reports whether two specs are equal.
func (n *NodeSpec) Equal(o *NodeSpec) bool { return *n == *o }

// NamespaceSpec contains the fields of a Kubernetes Namespace that the control plane uses, besides its labels and
// annotations.
type NamespaceSpec struct {
	Terminating bool
}

// Equal reports whether two specs are equal.
func (n *NamespaceSpec) Equal(o *NamespaceSpec) bool { return *n == *o }

// equalClusterSpecs reports whether two specs of the same cluster kind are equal.
func equalClusterSpecs(a, b any) bool {
	switch spec := a.(type) {
	case *PodSpec:
		other, ok := b.(*PodSpec)
		return ok && spec.Equal(other)
	case *EndpointSliceSpec:
		other, ok := b.(*EndpointSliceSpec)
		return ok && spec.Equal(other)
	case *NodeSpec:
		other, ok := b.(*NodeSpec)
		return ok && spec.Equal(other)
	case *NamespaceSpec:
		other, ok := b.(*NamespaceSpec)
		return ok && spec.Equal(other)
	}
	return false
}

// TrimMetadata returns those labels and annotations of a Kubernetes object that the control plane uses. Other metadata
// changes often, for example by heartbeats of nodes, and is large.
func TrimMetadata(kind Kind, labels, annotations map[string]string) (usedLabels, usedAnnotations map[string]string) {
	switch kind {
	case EndpointSlice, Node: // their specs contain all that is used
		return nil, nil
	case Pod:
		return labels, nil
	}
	for name, value := range annotations {
		domain, _, _ := strings.Cut(name, "/")
		if strings.HasSuffix(domain, "istio.io") || strings.HasSuffix(domain, "pilotfish.dev") {
			if usedAnnotations == nil {
				usedAnnotations = map[string]string{}
			}
			usedAnnotations[name] = value
		}
	}
	return labels, usedAnnotations
}
