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

// client is one Envoy as its control plane sees it: it asks for clusters, for the assignments that these name, then for
// listeners, for the routes that those name, and for virtual hosts where routes are without; and it acknowledges all.
type client struct {
	fleet  *Fleet
	node   *corev3.Node
	manner manner

	// Of the goroutine that reads.
	stream grpc.ClientStream
	types  map[string]*held
	listed map[uint32][]string // the routes of each listener
	hosts  map[string]bool     // routes whose virtual hosts come by themselves; true when one has come

	mu      sync.Mutex
	settled time.Time // when it had all that it asked for; zero before
	marked  time.Time // when the sign was seen
	latest  time.Time // when anything came

	bytes, answers atomic.Int64
}

// held is what a client has of one type.
type held struct {
	asked    bool
	answered bool
	wanted   map[string]bool // by name, where names are asked for; true once it was answered
	versions map[uint32]uint32
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
		fleet: f, types: map[string]*held{}, listed: map[uint32][]string{}, hosts: map[string]bool{},
		node: &corev3.Node{
			Id: fmt.Sprintf("sidecar~%s~%s.%s~%s.svc.cluster.local", address, name, namespace, namespace), Cluster: name, Metadata: metadata,
			UserAgentName: "envoy", UserAgentVersionType: &corev3.Node_UserAgentBuildVersion{UserAgentBuildVersion: version},
		},
	}, nil
}

func (c *client) held(typeURL string) *held {
	h := c.types[typeURL]
	if h == nil {
		h = &held{wanted: map[string]bool{}, versions: map[uint32]uint32{}}
		c.types[typeURL] = h
	}
	return h
}

// run keeps one stream until the context ends.
func (c *client) run(ctx context.Context, address string) error {
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithInitialWindowSize(c.manner.window()), grpc.WithInitialConnWindowSize(c.manner.window()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(1<<30), grpc.ForceCodecV2(codec{})))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // nobody waits for what is left
	c.stream, err = conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true},
		discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResources_FullMethodName, grpc.WaitForReady(true))
	if err != nil {
		return err
	}
	r := &response{decoder: c.fleet.decoder}
	err = c.begin()
	c.dawdle(ctx)
	for err == nil {
		if err = c.stream.RecvMsg(r); err != nil {
			break
		}
		if c.manner == asEnvoys {
			err = c.take(r)
		} else {
			err = c.misbehave(ctx, r)
		}
	}
	if errors.Is(err, io.EOF) { // of a send: why the stream ended is told to who reads
		err = c.stream.RecvMsg(r)
	}
	return err
}

// begin sends the first requests of a stream: for clusters, and for all that the client has from an earlier stream.
func (c *client) begin() error {
	for _, typeURL := range []string{clusterType, endpointType, listenerType, routeType, virtualHostType} {
		h := c.held(typeURL)
		if typeURL != clusterType && !h.asked {
			continue
		}
		h.asked = true
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
	c.note(time.Time{}, false)
	return nil
}

func (c *client) send(typeURL string, subscribe, unsubscribe []string) error {
	c.held(typeURL).asked = true
	return c.stream.SendMsg(&discoveryv3.DeltaDiscoveryRequest{
		TypeUrl: typeURL, ResourceNamesSubscribe: subscribe, ResourceNamesUnsubscribe: unsubscribe,
	})
}

// take does what Envoy does with a response.
func (c *client) take(r *response) error {
	now := time.Now()
	c.bytes.Add(int64(r.size))
	c.answers.Add(1)
	h := c.held(r.typeURL)
	h.answered = true
	subscribe, unsubscribe := c.apply(h, r)
	if err := c.stream.SendMsg(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: r.typeURL, ResponseNonce: r.nonce}); err != nil {
		return err
	}
	if err := c.follow(r.typeURL, subscribe, unsubscribe); err != nil {
		return err
	}
	c.note(now, r.marked)
	return nil
}

// apply books a response, and gives the names that the client now asks for and no longer does.
func (c *client) apply(h *held, r *response) (subscribe, unsubscribe []string) {
	want := c.held(referred[r.typeURL])
	add := func(name string) {
		if _, has := want.wanted[name]; !has {
			want.wanted[name] = false
			subscribe = append(subscribe, name)
		}
	}
	for _, it := range r.resources {
		h.versions[it.name] = it.version
		name := c.fleet.decoder.text(it.name)
		if _, asked := h.wanted[name]; asked {
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
				c.hosts[name] = false // known, and none of it has come
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

// referred is the type whose names resources of a type ask for.
var referred = map[string]string{clusterType: endpointType, listenerType: routeType}

func (c *client) drop(h *held, typeURL, name string) (unsubscribe []string) {
	id := c.fleet.decoder.id([]byte(name))
	delete(h.versions, id)
	if _, asked := h.wanted[name]; asked {
		h.wanted[name] = true
	}
	want := c.held(referred[typeURL]).wanted
	switch typeURL {
	case clusterType:
		if _, has := want[name]; has {
			delete(want, name)
			delete(c.held(endpointType).versions, id)
			unsubscribe = append(unsubscribe, name)
		}
	case listenerType:
		delete(c.listed, id)
		for route := range want {
			if !c.isListed(route) {
				delete(want, route)
				delete(c.hosts, route)
				delete(c.held(routeType).versions, c.fleet.decoder.id([]byte(route)))
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

// routeOf is the route configuration of a virtual host: all before the last slash.
func routeOf(name string) string {
	for i := len(name) - 1; i >= 0; i-- {
		if name[i] == '/' {
			return name[:i]
		}
	}
	return name
}

// follow sends the requests that a response leads to.
func (c *client) follow(typeURL string, subscribe, unsubscribe []string) error {
	if len(subscribe)+len(unsubscribe) > 0 {
		if err := c.send(referred[typeURL], subscribe, unsubscribe); err != nil {
			return err
		}
	}
	if h := c.held(listenerType); !h.asked && c.has(clusterType) && c.has(endpointType) {
		if err := c.send(listenerType, nil, nil); err != nil {
			return err
		}
	}
	if len(c.hosts) > 0 && !c.held(virtualHostType).asked {
		return c.send(virtualHostType, nil, nil)
	}
	return nil
}

// has says whether all that was asked for of a type has come.
func (c *client) has(typeURL string) bool {
	h := c.held(typeURL)
	if h.asked && !h.answered {
		return false
	}
	for _, answered := range h.wanted {
		if !answered {
			return false
		}
	}
	return h.asked || typeURL == endpointType || typeURL == routeType || typeURL == virtualHostType
}

// note keeps the moments that are reported. now is when a response came; zero without one.
func (c *client) note(now time.Time, marked bool) {
	whole := true
	for _, typeURL := range []string{clusterType, endpointType, listenerType, routeType} {
		whole = whole && c.has(typeURL)
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
