// Package config contains the documents that describe a mesh: Istio's resources, and objects of Kubernetes, as users
// write them in files or as a cluster contains them. It parses and validates them, holds them in stores, and notifies subscribers of
// changes. Package dirstore reads the files. Package config does not depend on Envoy.
package config

import (
	"cmp"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"
)

// Kind is the kind of a resource, as in its `kind:` field. API versions are not distinguished: networking.istio.io/v1,
// v1beta1 and v1alpha3 have the same fields.
type Kind string

// The kinds that the control plane supports.
const (
	Service             Kind = "Service"
	Secret              Kind = "Secret"
	VirtualService      Kind = "VirtualService"
	DestinationRule     Kind = "DestinationRule"
	Gateway             Kind = "Gateway"
	ServiceEntry        Kind = "ServiceEntry"
	WorkloadEntry       Kind = "WorkloadEntry"
	Sidecar             Kind = "Sidecar"
	PeerAuthentication  Kind = "PeerAuthentication"
	AuthorizationPolicy Kind = "AuthorizationPolicy"
	// RequestAuthentication specifies which end-user tokens are accepted.
	RequestAuthentication Kind = "RequestAuthentication"
	EnvoyFilter           Kind = "EnvoyFilter"
	WorkloadGroup         Kind = "WorkloadGroup"
	ProxyConfig           Kind = "ProxyConfig"
	Telemetry             Kind = "Telemetry"
	WasmPlugin            Kind = "WasmPlugin"
	// Pod, EndpointSlice, Node and Namespace are objects of a Kubernetes cluster, or of a copy of its objects in files.
	Pod           Kind = "Pod"
	EndpointSlice Kind = "EndpointSlice"
	Node          Kind = "Node"
	Namespace     Kind = "Namespace"
)

// Key identifies one resource.
type Key struct {
	Kind      Kind   `json:"kind"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// String returns "Kind namespace/name", or "Kind name" for an object without a namespace.
func (k Key) String() string {
	if k.Namespace == "" {
		return fmt.Sprintf("%s %s", k.Kind, k.Name)
	}
	return fmt.Sprintf("%s %s/%s", k.Kind, k.Namespace, k.Name)
}

// CompareKeys orders keys by kind, namespace and name.
func CompareKeys(a, b Key) int {
	return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

// Position is a position in a file. Line and Column begin with 1; 0 is unknown.
type Position struct {
	File   string `json:"file,omitempty"`
	Line   int    `json:"line,omitempty"`
	Column int    `json:"column,omitempty"`
}

func (p Position) String() string {
	switch {
	case p.File == "":
		return "(no file)"
	case p.Line == 0:
		return p.File
	case p.Column == 0:
		return fmt.Sprintf("%s:%d", p.File, p.Line)
	}
	return fmt.Sprintf("%s:%d:%d", p.File, p.Line, p.Column)
}

// ComparePositions orders positions by file, line and column.
func ComparePositions(a, b Position) int {
	return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
}

// Resource is one document. A resource in a store is immutable: to change it, put a new resource.
type Resource struct {
	Key
	APIVersion  string
	Labels      map[string]string
	Annotations map[string]string
	// Created is the creation time. If resources conflict, for example VirtualServices of one host, the oldest takes
	// precedence. Ties are broken as CompareAge specifies. Documents exported from a cluster have a creation time.
	// Other documents in files have none and precede them. MemoryStore sets the creation time of a resource that has
	// none.
	Created time.Time
	// Origin is the position of the document; empty if it is not from a file.
	Origin Position
	// Spec is a pointer to the kind's own type: *v1alpha3.VirtualService and so on of istio.io/api
	// (networking/v1alpha3, security/v1beta1), and *ServiceSpec, *SecretSpec, *PodSpec, *EndpointSliceSpec, *NodeSpec
	// and *NamespaceSpec for objects of Kubernetes.
	Spec any
	// Positions maps a field path of the document ("spec.http[0].route[0].destination.host") to its position in the
	// file, for problems that are found later (an unknown host). Nil if the document is not from a file.
	Positions map[string]Position
	// Denial marks a generated policy that replaces a refused policy and denies all traffic to its workloads.
	Denial bool
}

// PositionOf returns the position of the field at path, of its nearest known parent, or of the document.
func (r *Resource) PositionOf(path string) Position {
	for p := path; p != ""; p = parentPath(p) {
		if at, ok := r.Positions[p]; ok {
			return at
		}
	}
	return r.Origin
}

func parentPath(path string) string {
	for i := len(path) - 1; i > 0; i-- {
		if path[i] == '.' || path[i] == '[' {
			return path[:i]
		}
	}
	return ""
}

// Equal reports whether two resources are equal except for their positions and creation times.
func (r *Resource) Equal(o *Resource) bool {
	if r == nil || o == nil {
		return r == o
	}
	if r.Key != o.Key || !equalMaps(r.Labels, o.Labels) || !equalMaps(r.Annotations, o.Annotations) {
		return false
	}
	switch spec := r.Spec.(type) {
	case proto.Message:
		other, ok := o.Spec.(proto.Message)
		return ok && proto.Equal(spec, other)
	case *ServiceSpec:
		other, ok := o.Spec.(*ServiceSpec)
		return ok && spec.Equal(other)
	case *SecretSpec:
		other, ok := o.Spec.(*SecretSpec)
		return ok && spec.Equal(other)
	}
	return equalClusterSpecs(r.Spec, o.Spec)
}

func equalMaps(a, b map[string]string) bool {
	if len(a) != len(b) {
		return false
	}
	for k, v := range a {
		if w, ok := b[k]; !ok || v != w {
			return false
		}
	}
	return true
}

// Severity is the severity of a Problem.
type Severity string

const (
	// Error: the document is refused; its last accepted version stays in force.
	Error Severity = "error"
	// Warning: the document is in force, but a part of it does not have the expected effect.
	Warning Severity = "warning"
	// Info: the document was read and has no effect here (a Deployment, for instance).
	Info Severity = "info"
)

// ProblemAttr is the attribute of a log record that reports a Problem. A program that displays problems by other means
// uses it to suppress the duplicate.
const ProblemAttr = "problem"

// Problem is a problem of a document, with the information that its author needs to fix it.
type Problem struct {
	// Code is the kind of finding (see Codes).
	Code     Code     `json:"code"`
	Severity Severity `json:"severity"`
	// Key identifies the resource, as far as it could be read.
	Key Key      `json:"resource"`
	At  Position `json:"at"`
	// Field is the path of the field ("spec.http[0].timeout"); empty if the problem concerns the whole document.
	Field string `json:"field,omitempty"`
	// Value is the invalid value as written.
	Value   string `json:"value,omitempty"`
	Message string `json:"message"`
	// Remedy describes how to fix the problem.
	Remedy string `json:"remedy,omitempty"`
	// Missing is the object whose absence the problem reports. It is the zero value for other problems.
	Missing MissingObject `json:"-"`
	// Hosts are the hosts of a refused ServiceEntry or DestinationRule, separated by spaces.
	Hosts string `json:"-"`
}

// MissingObject identifies an object to which a document refers and that does not exist. An empty field means any
// value.
type MissingObject struct {
	Kind            Kind // empty for a service: a Service or a ServiceEntry can define it
	Namespace, Name string
	Host            string // the full name of a host
	Effect          string // what the absence causes
}

func (p Problem) String() string {
	s := fmt.Sprintf("%s: %s", p.At, p.Severity)
	if p.Key.Kind != "" {
		s += fmt.Sprintf(": %s", p.Key)
	}
	if p.Field != "" {
		s += ": " + p.Field
	}
	if p.Value != "" {
		s += fmt.Sprintf(": %q", p.Value)
	}
	s += ": " + p.Message
	if p.Remedy != "" {
		s += " (" + p.Remedy + ")"
	}
	if p.Code != "" {
		s += " [" + string(p.Code) + "]"
	}
	return s
}

// Store contains the resources in force. All methods are safe for concurrent use.
type Store interface {
	// List returns the resources of a kind, ordered by namespace and name. The caller owns the slice, but not the
	// resources.
	List(kind Kind) []*Resource
	// Get returns one resource, or nil.
	Get(key Key) *Resource
	// Subscribe calls notify after each change with the keys of the resources that were added, changed or removed. The
	// calls have the order of the changes and are never concurrent. notify must not block. The returned function ends
	// the subscription.
	Subscribe(notify func(changed []Key)) (cancel func())
}
