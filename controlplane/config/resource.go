// Package config holds the documents that describe a mesh: Istio's resources and Kubernetes Services, as users have
// them in files. It parses and validates them, keeps them in stores, and tells who watches what changed. It knows
// nothing of Envoy.
package config

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"
)

// Kind is the kind of a resource, as in its `kind:` field. API versions of one kind are one and the same here:
// networking.istio.io/v1, v1beta1 and v1alpha3 have the same fields.
type Kind string

// The kinds that the control plane understands.
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
	// RequestAuthentication says which tokens of end users are taken.
	RequestAuthentication Kind = "RequestAuthentication"
	EnvoyFilter           Kind = "EnvoyFilter"
	WorkloadGroup         Kind = "WorkloadGroup"
	ProxyConfig           Kind = "ProxyConfig"
	Telemetry             Kind = "Telemetry"
	WasmPlugin            Kind = "WasmPlugin"
)

// Key names one resource.
type Key struct {
	Kind      Kind   `json:"kind"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

func (k Key) String() string { return fmt.Sprintf("%s %s/%s", k.Kind, k.Namespace, k.Name) }

// Position is a place in a file. Line and Column count from 1; 0 is unknown.
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

// Resource is one document. It is immutable once it is in a store: whoever changes a resource puts a new one.
type Resource struct {
	Key
	APIVersion  string
	Labels      map[string]string
	Annotations map[string]string
	// Created orders resources of which the oldest wins (VirtualServices of one host, for instance); ties are broken by
	// namespace and name. Documents that were taken from a cluster bring theirs along; other documents of files
	// have none, and come first; what is put into a store by a program gets the time of that.
	Created time.Time
	// Origin is where the document begins; empty when it did not come from a file.
	Origin Position
	// Spec is a pointer to the kind's own type: *v1alpha3.VirtualService and so on of istio.io/api
	// (networking/v1alpha3, security/v1beta1), and *ServiceSpec and *SecretSpec for Kubernetes Services and Secrets.
	Spec any
	// Places maps a field path of the document ("spec.http[0].route[0].destination.host") to where it stands in the
	// file, for messages about what only shows later (a host that does not exist). Nil when it did not come from a file.
	Places map[string]Position
}

// Place is where the field stands, or its nearest parent that is known, or the document.
func (r *Resource) Place(path string) Position {
	for p := path; p != ""; p = parentPath(p) {
		if at, ok := r.Places[p]; ok {
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

// Equal says whether two resources mean the same: all but their place and time of creation.
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
	return false
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

// Severity grades a Problem.
type Severity string

const (
	// Error: the document is refused; the last good one of its name stays in force.
	Error Severity = "error"
	// Warning: the document is in force, and something in it will not do what its author expects.
	Warning Severity = "warning"
	// Info: the document was read and has no effect here (a Deployment, for instance).
	Info Severity = "info"
)

// ProblemAttr is the attribute that a log record has when it tells of a Problem, for whoever shows problems by other
// means and wants each only once.
const ProblemAttr = "problem"

// Problem is something wrong with a document, with all that its author needs to mend it.
type Problem struct {
	// Code says which kind of finding it is (see Codes).
	Code     Code     `json:"code"`
	Severity Severity `json:"severity"`
	// Key names the resource as far as it could be read.
	Key Key      `json:"resource"`
	At  Position `json:"at"`
	// Field is the path of the field ("spec.http[0].timeout"); empty when it is the document as a whole.
	Field string `json:"field,omitempty"`
	// Value is the offending value as written.
	Value   string `json:"value,omitempty"`
	Message string `json:"message"`
	// Remedy says what to do.
	Remedy string `json:"remedy,omitempty"`
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

// Store holds the resources that are in force. All methods are safe for concurrent use.
type Store interface {
	// List gives the resources of a kind, ordered by namespace and name. The slice is the caller's, the resources are not.
	List(kind Kind) []*Resource
	// Get gives one resource, or nil.
	Get(key Key) *Resource
	// Subscribe calls notify after each change with the keys that were added, changed or removed, in the order of the
	// changes and never concurrently. notify must not block. The returned function ends the subscription.
	Subscribe(notify func(changed []Key)) (cancel func())
}
