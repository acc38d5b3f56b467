// Package xds is the discovery server: it keeps each client's streams, subscriptions and versions, merges pushes, and
// sends only what differs. It moves resources that others made, and knows nothing of Istio's.
package xds

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// The type URLs of the resources that are served.
const (
	ClusterType  = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
	EndpointType = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
	ListenerType = "type.googleapis.com/envoy.config.listener.v3.Listener"
	RouteType    = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration"
	// VirtualHostType is a part of a route configuration that is sent by itself (VHDS).
	VirtualHostType = "type.googleapis.com/envoy.config.route.v3.VirtualHost"
	// SecretType is for certificates that gateways get by name.
	SecretType = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"
	// ExtensionType is the configuration of filters that are sent by themselves (ECDS).
	ExtensionType = "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig"
	// NameTableType is for a proxy's agent and not for its Envoy: the names of the mesh and their addresses.
	NameTableType = "type.googleapis.com/istio.networking.nds.v1.NameTable"
	// ProxyConfigType is for the agent too: the roots of the mesh.
	ProxyConfigType = "type.googleapis.com/istio.mesh.v1alpha1.ProxyConfig"
)

// Order is the order in which types are sent when one push touches several: what is referred to goes first.
var Order = []string{
	ClusterType, EndpointType, SecretType, ExtensionType, ListenerType, RouteType, VirtualHostType, NameTableType,
	ProxyConfigType,
}

// Resource is one marshalled xDS resource. It is immutable and shared by all connections that are sent it.
type Resource struct {
	Name string
	// Version is a hash of the content: equal content, equal version, on every control plane and after every restart. That of
	// NewRoutes ends in what says so.
	Version string
	Body    *anypb.Any
	// Endpoints is set on a cluster that gets its endpoints by EDS: the name of the assignment that has to follow the
	// cluster on the same stream each time the cluster is sent, or the cluster stays warming.
	Endpoints string
	// HostsApart is set on a route configuration whose virtual hosts are resources of their own, and go behind it.
	HostsApart bool
	// Aliases are names that the client asked for, and that this resource answers.
	Aliases []string
	// Notes are what those who made the resource remember of that; nobody is sent them.
	Notes any

	frame *frame // what delta responses carry: made once, like the body
}

// NewResource marshals a message deterministically.
func NewResource(name string, m proto.Message) (*Resource, error) {
	value, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("marshalling %s %q: %w", m.ProtoReflect().Descriptor().FullName(), name, err)
	}
	return NewRawResource(name, "type.googleapis.com/"+string(m.ProtoReflect().Descriptor().FullName()), value), nil
}

// NewRoutes makes a route configuration for a client that gets virtual hosts by themselves, which its version tells.
// hostsApart says that those of this one go behind it: others have theirs within at any client.
func NewRoutes(name string, m proto.Message, hostsApart bool) (*Resource, error) {
	r, err := NewResource(name, m)
	if err != nil {
		return nil, err
	}
	r.HostsApart = hostsApart
	r.Version += apartMark
	r.frame = newFrame(r)
	r.Body.Value = r.frame.value
	return r, nil
}

// NewRawResource makes a resource of a message that is marshalled already.
func NewRawResource(name, typeURL string, value []byte) *Resource {
	sum := sha256.Sum256(value)
	r := &Resource{
		Name:    name,
		Version: hex.EncodeToString(sum[:12]),
		Body:    &anypb.Any{TypeUrl: typeURL, Value: value},
	}
	r.frame = newFrame(r)
	r.Body.Value = r.frame.value // the same bytes, once
	return r
}

// framed is the resource as a delta response carries it: the bytes that were made once, unless somebody made a resource
// of his own of this one.
func (r *Resource) framed() mem.Buffer {
	if f := r.frame; f != nil && r.Name == f.name && r.Version == f.version && r.Body == f.body {
		return f.bytes
	}
	return newFrame(r).bytes
}

// State is one immutable state of the mesh. The server only hands it on.
type State any

// Change says what differs between the last state a client was told of and the newest.
type Change interface {
	// Merge gives the change that covers both; next is the later one.
	Merge(next Change) Change
}

// Peer is who is at the other end of a stream.
type Peer struct {
	Address string
	// Identity is the SPIFFE ID that the peer proved by token or certificate; empty on the plaintext port.
	Identity string
	// Delta says which protocol the stream is of. Only in this one can parts of a resource be sent by themselves.
	Delta bool
}

// Source makes resources for clients.
type Source interface {
	// Connect is called once a stream, with the node of its first request. An error (a gRPC status) refuses the stream.
	Connect(ctx context.Context, node *corev3.Node, peer Peer) (Proxy, error)
}

// Touched is what of one type a change may concern for one client.
type Touched struct {
	// All: any resource of the type may differ, come or go.
	All bool
	// Names, where not All: only these may differ, come or go. They may be named twice, and there may be none of the name.
	Names []string
}

// Touches is what a change may concern for one client, by type.
type Touches map[string]Touched

// Add adds names of a type.
func (t Touches) Add(typeURL string, names ...string) {
	touched := t[typeURL]
	if !touched.All {
		touched.Names = append(touched.Names, names...)
	}
	t[typeURL] = touched
}

// AddAll adds all of the types.
func (t Touches) AddAll(types ...string) {
	for _, typeURL := range types {
		t[typeURL] = Touched{All: true}
	}
}

// Types are those of which anything is touched, in the order of sending.
func (t Touches) Types() []string {
	var types []string
	for _, typeURL := range Order {
		if touched := t[typeURL]; touched.All || len(touched.Names) > 0 {
			types = append(types, typeURL)
		}
	}
	return types
}

// Everything touches all of all types.
func Everything() Touches {
	t := Touches{}
	t.AddAll(Order...)
	return t
}

// Blamed is a document that a rejected resource was made of, for people.
type Blamed struct {
	Document string `json:"document"`
	// At is where it stands.
	At string `json:"at,omitempty"`
	// Field is the one that the reason quotes.
	Field string `json:"field,omitempty"`
	// Why says what speaks for its being the cause.
	Why string `json:"why,omitempty"`
}

// Blamer is a Proxy that knows what its resources are made of.
type Blamer interface {
	// Blame gives what the named resources of a type were made of, the likeliest cause of their rejection first. since is
	// when the client last accepted anything of the type; zero is never.
	Blame(state State, typeURL string, names []string, reason string, since time.Time) []Blamed
}

// Yielder is a Proxy that may do without a part of what its client refuses.
type Yielder interface {
	// Refused is called when the client refused resources of a type, as they were sent: meanwhile the state may be another.
	// It gives what may differ from now on. What was sent once and refused is not sent again, so that it does not matter if
	// nothing differs. since is when the client last accepted anything of the type; zero is never.
	Refused(state State, typeURL string, resources []*Resource, reason string, since time.Time) Touches
	// Accepted is called when the client accepted resources of a type, and removals, and gives what may differ from now on.
	Accepted(state State, typeURL string, resources []*Resource, removed []string) Touches
}

// Proxy makes the resources of one client. The server calls it from one goroutine at a time.
type Proxy interface {
	// Affected says what may differ for this client after the change; nothing means: nothing to do. What is not named is
	// neither generated nor removed, so that a change costs what it concerns, and not what there is.
	Affected(state State, change Change) Touches
	// Generate gives the resources of a type: all that the client should have when wildcard, and besides those that it
	// names. A name without a resource is left out. The order is free; names are unique. Of virtual hosts there is no
	// whole: with wildcard the names are of route configurations, of which all virtual hosts are meant.
	Generate(state State, typeURL string, wildcard bool, names []string) ([]*Resource, error)
}

// Replacer is a Proxy whose client is to have something in place of a resource that goes, but not before it has stopped
// referring to that.
type Replacer interface {
	// Replaces is called when resources would be removed. If there is something in place of any, it is generated from then
	// on, and from now on.
	Replaces(typeURL string, names []string) bool
}

// Resumer is a Proxy that wants to know what its client has when it comes back, before that is compared.
type Resumer interface {
	Resume(typeURL string, names []string)
}

// Leaver is a Proxy whose client may have to come anew: what was read of its node when it connected may no longer be so.
type Leaver interface {
	// Leave gives the reason, and nil while there is none. It is asked at each push.
	Leave() error
}

// Reporter is a Proxy that wants to know how its client's workload is.
type Reporter interface {
	// Report is called when the client's agent has found the workload healthy, or not and why. It must not block.
	Report(healthy bool, reason string)
}
