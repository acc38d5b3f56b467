package fleet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/structpb"
)

const (
	clusterType     = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
	endpointType    = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
	listenerType    = "type.googleapis.com/envoy.config.listener.v3.Listener"
	routeType       = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration"
	virtualHostType = "type.googleapis.com/envoy.config.route.v3.VirtualHost"
)

// client simulates the delta xDS stream of one Envoy. It subscribes to clusters and their endpoints, and then to listeners,
// their routes, and the virtual hosts of routes with VHDS. It ACKs all responses.
type client struct {
	fleet     *Fleet
	node      *corev3.Node
	behaviour behaviour

	// Only the goroutine that reads uses these fields.
	stream grpc.ClientStream
	types  map[string]*typeState
	listed map[uint32][]string // names of the routes of each listener
	hosts  map[string]bool     // routes with VHDS; true if a virtual host was received

	mu      sync.Mutex
	settled time.Time // time at which all subscribed resources had been received; zero before
	marked  time.Time // time at which the marker was received
	latest  time.Time // time at which the last response was received

	bytes, answers atomic.Int64
}

// typeState is a client's state of one resource type.
type typeState struct {
	requested bool
	answered  bool
	wanted    map[string]bool // names to which the client subscribes; true if the resource was received
	versions  map[uint32]uint32
}

func (f *Fleet) newClient(i int, o Options) (*client, error) {
	namespace := fmt.Sprintf("ns%d", i%o.Namespaces)
	name := fmt.Sprintf("proxy-%d", i)
	address := fmt.Sprintf("10.%d.%d.%d", 200+i/62500, i/250%250, i%250+1)
	metadata, err := structpb.NewStruct(map[string]any{
		"NAME": name, "NAMESPACE": namespace, "INSTANCE_IPS": address, "INTERCEPTION_MODE": "REDIRECT",
		"LABELS": map[string]any{"app": name}, "CLUSTER_ID": "Kubernetes", "ISTIO_VERSION": "1.30.0",
		"SERVICE_ACCOUNT": name, "MESH_ID": "cluster.local",
	})
	if err != nil {
		return nil, err
	}
	version := &corev3.BuildVersion{Version: &typev3.SemanticVersion{MajorNumber: 1, MinorNumber: o.EnvoyMinor}}
	return &client{
		fleet: f, types: map[string]*typeState{}, listed: map[uint32][]string{}, hosts: map[string]bool{},
		node: &corev3.Node{
			Id: fmt.Sprintf("sidecar~%s~%s.%s~%s.svc.cluster.local", address, name, namespace, namespace), Cluster: name, Metadata: metadata,
			UserAgentName: "envoy", UserAgentVersionType: &corev3.Node_UserAgentBuildVersion{UserAgentBuildVersion: version},
		},
	}, nil
}

func (c *client) typeState(typeURL string) *typeState {
	h := c.types[typeURL]
	if h == nil {
		h = &typeState{wanted: map[string]bool{}, versions: map[uint32]uint32{}}
		c.types[typeURL] = h
	}
	return h
}

// run maintains one stream until the context ends.
func (c *client) run(ctx context.Context, address string) error {
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithInitialWindowSize(c.behaviour.window()), grpc.WithInitialConnWindowSize(c.behaviour.window()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(1<<30), grpc.ForceCodecV2(codec{})))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // requests that are lost here do not matter
	c.stream, err = conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true},
		discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResources_FullMethodName, grpc.WaitForReady(true))
	if err != nil {
		return err
	}
	r := &response{decoder: c.fleet.decoder}
	err = c.begin()
	c.delay(ctx)
	for err == nil {
		if err = c.stream.RecvMsg(r); err != nil {
			break
		}
		if c.behaviour == asEnvoys {
			err = c.handle(r)
		} else {
			err = c.misbehave(ctx, r)
		}
	}
	if errors.Is(err, io.EOF) { // if a send returns EOF, the next receive returns the status
		err = c.stream.RecvMsg(r)
	}
	return err
}

// begin sends the first requests of a stream. They subscribe to clusters, and to all resources of an earlier stream.
func (c *client) begin() error {
	for _, typeURL := range []string{clusterType, endpointType, listenerType, routeType, virtualHostType} {
		h := c.typeState(typeURL)
		if typeURL != clusterType && !h.requested {
			continue
		}
		h.requested = true
		r := &discoveryv3.DeltaDiscoveryRequest{Node: c.node, TypeUrl: typeURL, InitialResourceVersions: map[string]string{}}
		for name := range h.wanted {
			r.ResourceNamesSubscribe = append(r.ResourceNamesSubscribe, name)
		}
		for name, version := range h.versions {
			r.InitialResourceVersions[c.fleet.decoder.text(name)] = c.fleet.decoder.text(version)
		}
		if err := c.stream.SendMsg(r); err != nil {
			return err
		}
	}
	c.recordTimes(time.Time{}, false)
	return nil
}

func (c *client) send(typeURL string, subscribe, unsubscribe []string) error {
	c.typeState(typeURL).requested = true
	return c.stream.SendMsg(&discoveryv3.DeltaDiscoveryRequest{
		TypeUrl: typeURL, ResourceNamesSubscribe: subscribe, ResourceNamesUnsubscribe: unsubscribe,
	})
}

// handle processes a response as Envoy does.
func (c *client) handle(r *response) error {
	now := time.Now()
	c.bytes.Add(int64(r.size))
	c.answers.Add(1)
	h := c.typeState(r.typeURL)
	h.answered = true
	subscribe, unsubscribe := c.apply(h, r)
	if err := c.stream.SendMsg(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: r.typeURL, ResponseNonce: r.nonce}); err != nil {
		return err
	}
	if err := c.follow(r.typeURL, subscribe, unsubscribe); err != nil {
		return err
	}
	c.recordTimes(now, r.marked)
	return nil
}

// apply records a response, and returns the names to subscribe to and to unsubscribe from.
func (c *client) apply(h *typeState, r *response) (subscribe, unsubscribe []string) {
	want := c.typeState(referred[r.typeURL])
	add := func(name string) {
		if _, has := want.wanted[name]; !has {
			want.wanted[name] = false
			subscribe = append(subscribe, name)
		}
	}
	for _, it := range r.resources {
		h.versions[it.name] = it.version
		name := c.fleet.decoder.text(it.name)
		if _, subscribed := h.wanted[name]; subscribed {
			h.wanted[name] = true
		}
		switch r.typeURL {
		case clusterType:
			if it.endpoints != "" {
				add(it.endpoints)
			}
		case listenerType:
			c.listed[it.name] = it.routes
			for _, route := range it.routes {
				add(route)
			}
		case routeType:
			if it.vhds && !c.hosts[name] {
				c.hosts[name] = false // no virtual host received yet
			}
		case virtualHostType:
			c.hosts[routeOf(name)] = true
		}
	}
	for _, name := range r.removed {
		unsubscribe = append(unsubscribe, c.drop(h, r.typeURL, name)...)
	}
	return subscribe, unsubscribe
}

// referred maps a resource type to the type of the resources to which it refers.
var referred = map[string]string{clusterType: endpointType, listenerType: routeType}

func (c *client) drop(h *typeState, typeURL, name string) (unsubscribe []string) {
	id := c.fleet.decoder.id([]byte(name))
	delete(h.versions, id)
	if _, subscribed := h.wanted[name]; subscribed {
		h.wanted[name] = true
	}
	want := c.typeState(referred[typeURL]).wanted
	switch typeURL {
	case clusterType:
		if _, has := want[name]; has {
			delete(want, name)
			delete(c.typeState(endpointType).versions, id)
			unsubscribe = append(unsubscribe, name)
		}
	case listenerType:
		delete(c.listed, id)
		for route := range want {
			if !c.isListed(route) {
				delete(want, route)
				delete(c.hosts, route)
				delete(c.typeState(routeType).versions, c.fleet.decoder.id([]byte(route)))
				unsubscribe = append(unsubscribe, route)
			}
		}
	case virtualHostType:
		c.hosts[routeOf(name)] = true
	}
	return unsubscribe
}

func (c *client) isListed(route string) bool {
	for _, routes := range c.listed {
		if slices.Contains(routes, route) {
			return true
		}
	}
	return false
}

// routeOf returns the name of the route configuration in the name of a virtual host: the part before the last slash.
func routeOf(name string) string {
	for i := len(name) - 1; i >= 0; i-- {
		if name[i] == '/' {
			return name[:i]
		}
	}
	return name
}

// follow sends the subscription requests that result from a response.
func (c *client) follow(typeURL string, subscribe, unsubscribe []string) error {
	if len(subscribe)+len(unsubscribe) > 0 {
		if err := c.send(referred[typeURL], subscribe, unsubscribe); err != nil {
			return err
		}
	}
	if h := c.typeState(listenerType); !h.requested && c.isComplete(clusterType) && c.isComplete(endpointType) {
		if err := c.send(listenerType, nil, nil); err != nil {
			return err
		}
	}
	if len(c.hosts) > 0 && !c.typeState(virtualHostType).requested {
		return c.send(virtualHostType, nil, nil)
	}
	return nil
}

// isComplete reports whether all subscribed resources of a type were received.
func (c *client) isComplete(typeURL string) bool {
	h := c.typeState(typeURL)
	if h.requested && !h.answered {
		return false
	}
	for _, answered := range h.wanted {
		if !answered {
			return false
		}
	}
	return h.requested || typeURL == endpointType || typeURL == routeType || typeURL == virtualHostType
}

// recordTimes records the times that the fleet reports. now is the time of a response, or zero.
func (c *client) recordTimes(now time.Time, marked bool) {
	whole := true
	for _, typeURL := range []string{clusterType, endpointType, listenerType, routeType} {
		whole = whole && c.isComplete(typeURL)
	}
	for _, come := range c.hosts {
		whole = whole && come
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !now.IsZero() {
		c.latest = now
	}
	if marked && c.marked.IsZero() {
		c.marked = now
	}
	if whole && c.settled.IsZero() {
		c.settled = time.Now()
	}
}
