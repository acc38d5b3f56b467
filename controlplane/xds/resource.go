// Package xds is the discovery server. It manages the clients' streams, subscriptions and versions, merges pushes, and
// sends only the differences. Callers implement Source to generate the resources. The package does not depend on
// Istio's API.
package xds

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// The type URLs of the resources that the server serves.
const (
	ClusterType  = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
	EndpointType = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
	ListenerType = "type.googleapis.com/envoy.config.listener.v3.Listener"
	RouteType    = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration"
	// VirtualHostType is the type of virtual hosts that are sent separately from their route configuration (VHDS).
	VirtualHostType = "type.googleapis.com/envoy.config.route.v3.VirtualHost"
	// SecretType is the type of the certificates and keys that gateways request by name.
	SecretType = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"
	// ExtensionType is the type of filter configurations that are sent separately from their listeners (ECDS).
	ExtensionType = "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig"
	// NameTableType is the type of the table of the mesh's host names and their addresses. Only agents subscribe to it.
	NameTableType = "type.googleapis.com/istio.networking.nds.v1.NameTable"
	// ProxyConfigType is the type of the resource with the root certificates of the mesh. Only agents subscribe to it.
	ProxyConfigType = "type.googleapis.com/istio.mesh.v1alpha1.ProxyConfig"
	// RevocationType is the type of the certificate revocation lists that the control plane's deny list causes, with
	// the root certificates of their CAs. Only agents that support OfferHeader subscribe to it.
	RevocationType = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.CertificateValidationContext"
)

// OfferHeader is the response header of each stream that lists RevocationType and DegradationType. Agents use these
// types only if they receive the header, because other control planes do not support them.
const OfferHeader = "pilotfish-offers"

// Order is the order in which one push sends types. A type precedes the types that refer to it. Callers must not modify
// Order.
var Order = []string{
	ClusterType, EndpointType, SecretType, ExtensionType, ListenerType, RouteType, VirtualHostType, NameTableType,
	RevocationType, ProxyConfigType,
}

// Resource is one marshalled xDS resource. It is immutable, because all connections share it.
type Resource struct {
	Name string
	// Version is a hash of the content. Equal content has the same version in every control plane and after every
	// restart. Versions that NewRouteConfiguration sets end with vhdsVersionSuffix.
	Version string
	Body    *anypb.Any
	// Endpoints is the name of the ClusterLoadAssignment, if the resource is a cluster of type EDS. After each such
	// cluster, the server must send the assignment on the same stream. Otherwise Envoy does not finish warming the
	// cluster.
	Endpoints string
	// UsesVHDS is set on a route configuration whose virtual hosts are separate resources. The server sends them after
	// the route configuration.
	UsesVHDS bool
	// Aliases lists on-demand names that clients requested and that resolve to this resource.
	Aliases []string
	// Notes contains data that the Proxy attaches for its own use. Clients do not receive it.
	Notes any

	encoded *encodedResource // the encoding of the resource in delta responses, created once
}

// NewResource returns a resource called name whose body is m, marshalled deterministically.
func NewResource(name string, m proto.Message) (*Resource, error) {
	value, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("marshalling %s %q: %w", m.ProtoReflect().Descriptor().FullName(), name, err)
	}
	return NewRawResource(name, "type.googleapis.com/"+string(m.ProtoReflect().Descriptor().FullName()), value), nil
}

// NewRouteConfiguration returns a route configuration for a client that supports VHDS. Its version ends with
// vhdsVersionSuffix: when such a client reconnects, the server recognizes the version. If usesVHDS is set, the virtual
// hosts are sent separately. Otherwise they are inline.
func NewRouteConfiguration(name string, m proto.Message, usesVHDS bool) (*Resource, error) {
	r, err := NewResource(name, m)
	if err != nil {
		return nil, err
	}
	r.UsesVHDS = usesVHDS
	r.Version += vhdsVersionSuffix
	r.encoded = encodeResource(r)
	r.Body.Value = r.encoded.value
	return r, nil
}

// NewRawResource returns a resource whose body is value, a marshalled message of the type typeURL.
func NewRawResource(name, typeURL string, value []byte) *Resource {
	sum := sha256.Sum256(value)
	r := &Resource{
		Name:    name,
		Version: hex.EncodeToString(sum[:12]),
		Body:    &anypb.Any{TypeUrl: typeURL, Value: value},
	}
	r.encoded = encodeResource(r)
	r.Body.Value = r.encoded.value // both fields share the encoded bytes
	return r
}

// deltaBuffer returns the encoding of the resource in a delta response. It returns the stored encoding, unless the
// resource is a modified copy.
func (r *Resource) deltaBuffer() mem.Buffer {
	if f := r.encoded; f != nil && r.Name == f.name && r.Version == f.version && r.Body == f.body {
		return f.bytes
	}
	return encodeResource(r).bytes
}

// State is one immutable state of the mesh. The server does not read it, but only passes it to a Proxy.
type State any

// Change is the difference between the last state that the server processed for a client and the newest state.
type Change interface {
	// Merge returns a change that contains this change and the later change next.
	Merge(next Change) Change
}

// Peer identifies the client of a stream.
type Peer struct {
	Address string
	// Identity is the SPIFFE ID that the client has proved by a token or certificate. It is empty on the plaintext
	// port.
	Identity string
	// Delta reports whether the stream uses the delta protocol. Only delta supports VHDS.
	Delta bool
}

// Source creates a Proxy for each stream.
type Source interface {
	// Connect is called once per stream, with the node of its first request. An error (a gRPC status) refuses the
	// stream.
	Connect(ctx context.Context, node *corev3.Node, peer Peer) (Proxy, error)
}

// TypeScope is the set of resources of one type that a change may affect, for one client.
type TypeScope struct {
	// All: every resource of the type may be changed, added or removed.
	All bool
	// Names applies if All is false: only these resources may be changed, added or removed. A name may occur several
	// times, and a resource with that name need not exist.
	Names []string
}

// PushScope is the set of resources that a change may affect, for one client, by type URL.
type PushScope map[string]TypeScope

// Add adds the resources of the type typeURL that are called names.
func (t PushScope) Add(typeURL string, names ...string) {
	touched := t[typeURL]
	if !touched.All {
		touched.Names = append(touched.Names, names...)
	}
	t[typeURL] = touched
}

// AddAll adds all resources of types.
func (t PushScope) AddAll(types ...string) {
	for _, typeURL := range types {
		t[typeURL] = TypeScope{All: true}
	}
}

// Types returns the types with affected resources, in Order.
func (t PushScope) Types() []string {
	var types []string
	for _, typeURL := range Order {
		if touched := t[typeURL]; touched.All || len(touched.Names) > 0 {
			types = append(types, typeURL)
		}
	}
	return types
}

// FullPushScope returns the scope with all resources of all types.
func FullPushScope() PushScope {
	t := PushScope{}
	t.AddAll(Order...)
	return t
}

// SuspectDocument is a document from which a rejected resource was generated.
type SuspectDocument struct {
	Document string `json:"document"`
	// Position is the document's file and line.
	Position string `json:"at,omitempty"`
	// Field is the path of the field whose value the reason of the NACK quotes.
	Field string `json:"field,omitempty"`
	// Evidence describes why the document may be the cause of the NACK.
	Evidence string `json:"why,omitempty"`
}

// Proxy generates the resources of one client. The server never calls its methods concurrently.
type Proxy interface {
	// ComputePushScope returns the resources that may differ for this client after the change. If the scope is empty,
	// there is no push. The server neither generates nor removes other resources, so the cost of a push depends on the
	// size of the change and not on the size of the mesh.
	ComputePushScope(state State, change Change) PushScope
	// Generate returns resources of the type typeURL. If wildcard is set, it returns all resources that the client
	// should have, and the resources called names. Otherwise it returns only the resources called names. It omits names
	// without a resource. Resources have unique names and are in any order. For virtual hosts with wildcard, names are
	// route configurations, and Generate returns all their virtual hosts.
	Generate(state State, typeURL string, wildcard bool, names []string) ([]*Resource, error)
	// Hooks returns the proxy's optional functions. The server calls it once.
	Hooks() Hooks
}
