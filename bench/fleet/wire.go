package fleet

import (
	"bytes"
	"hash/maphash"
	"sync"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// codec is a gRPC codec that parses responses without copying them. It saves CPU time, because the clients share the CPUs
// with the measured control plane.
type codec struct{}

func (codec) Name() string { return "proto" }

func (codec) Marshal(v any) (mem.BufferSlice, error) {
	b, err := proto.Marshal(v.(proto.Message))
	return mem.BufferSlice{mem.SliceBuffer(b)}, err
}

func (codec) Unmarshal(data mem.BufferSlice, v any) error {
	buffer := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer buffer.Free()
	return v.(*response).parse(buffer.ReadOnlyData())
}

// response contains the parts of a DeltaDiscoveryResponse that clients need.
type response struct {
	decoder   *decoder
	typeURL   string
	nonce     string
	size      int
	resources []item
	removed   []string
	marked    bool // it contains the expected marker
}

// item is one resource in a response.
type item struct {
	name, version uint32 // numbers under which the decoder stores these strings
	*body
}

// body contains the references of a resource to other resources. It is nil for resources without references.
type body struct {
	endpoints string   // in a cluster: the name of its ClusterLoadAssignment
	routes    []string // in a listener: the names of its route configurations
	vhds      bool     // in a route configuration: whether it uses VHDS
}

// Field numbers of DeltaDiscoveryResponse, Resource and Any.
const (
	resourcesField, typeURLField, nonceField, removedField = 2, 4, 5, 6
	versionField, anyField, nameField                      = 1, 2, 3
	anyValueField                                          = 2
)

func (r *response) parse(b []byte) error {
	r.size, r.resources, r.removed = len(b), r.resources[:0], nil
	var wrapped [][]byte
	err := fields(b, func(field protowire.Number, value []byte) {
		switch field {
		case resourcesField:
			wrapped = append(wrapped, value)
		case typeURLField:
			r.typeURL = string(value)
		case nonceField:
			r.nonce = string(value)
		case removedField:
			r.removed = append(r.removed, string(value))
		}
	})
	if err != nil {
		return err
	}
	for _, w := range wrapped {
		r.resources = append(r.resources, r.decoder.item(r.typeURL, w))
	}
	r.marked = r.decoder.setMarker(r.typeURL, b)
	return nil
}

// fields calls do with the number and content of each length-delimited field of a protobuf message.
func fields(b []byte, do func(protowire.Number, []byte)) error {
	for len(b) > 0 {
		field, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return protowire.ParseError(n)
		}
		b = b[n:]
		if kind != protowire.BytesType {
			if n = protowire.ConsumeFieldValue(field, kind, b); n < 0 {
				return protowire.ParseError(n)
			}
			b = b[n:]
			continue
		}
		value, n := protowire.ConsumeBytes(b)
		if n < 0 {
			return protowire.ParseError(n)
		}
		do(field, value)
		b = b[n:]
	}
	return nil
}

// decoder decodes and caches resources. All clients share it, so that each distinct resource is decoded and stored once.
type decoder struct {
	seed maphash.Seed

	mu     sync.RWMutex
	ids    map[string]uint32
	texts  []string
	bodies map[uint64]*body
	sign   Sign
}

func newDecoder() *decoder {
	return &decoder{seed: maphash.MakeSeed(), ids: map[string]uint32{}, bodies: map[uint64]*body{}}
}

func (d *decoder) id(text []byte) uint32 {
	d.mu.RLock()
	id, ok := d.ids[string(text)]
	d.mu.RUnlock()
	if ok {
		return id
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if id, ok = d.ids[string(text)]; !ok {
		id = uint32(len(d.texts))
		d.texts = append(d.texts, string(text))
		d.ids[d.texts[id]] = id
	}
	return id
}

func (d *decoder) text(id uint32) string {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.texts[id]
}

func (d *decoder) setMarker(typeURL string, b []byte) bool {
	d.mu.RLock()
	sign := d.sign
	d.mu.RUnlock()
	return sign.Text != "" && sign.matches(typeURL) && bytes.Contains(b, []byte(sign.Text))
}

func (d *decoder) item(typeURL string, wrapped []byte) item {
	var it item
	var value []byte
	_ = fields(wrapped, func(field protowire.Number, v []byte) {
		switch field {
		case nameField:
			it.name = d.id(v)
		case versionField:
			it.version = d.id(v)
		case anyField:
			_ = fields(v, func(field protowire.Number, v []byte) {
				if field == anyValueField {
					value = v
				}
			})
		}
	})
	it.body = d.body(typeURL, value)
	return it
}

func (d *decoder) body(typeURL string, value []byte) *body {
	if typeURL != clusterType && typeURL != listenerType && typeURL != routeType {
		return nil
	}
	key := maphash.Bytes(d.seed, value)
	d.mu.RLock()
	b, ok := d.bodies[key]
	d.mu.RUnlock()
	if ok {
		return b
	}
	b = read(typeURL, value)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.bodies[key] = b
	return b
}

func read(typeURL string, value []byte) *body {
	b := &body{}
	switch typeURL {
	case clusterType:
		var c clusterv3.Cluster
		if proto.Unmarshal(value, &c) == nil && c.GetType() == clusterv3.Cluster_EDS {
			b.endpoints = c.Name
			if name := c.GetEdsClusterConfig().GetServiceName(); name != "" {
				b.endpoints = name
			}
		}
	case listenerType:
		var l listenerv3.Listener
		if proto.Unmarshal(value, &l) == nil {
			for _, chain := range append(l.GetFilterChains(), l.GetDefaultFilterChain()) {
				b.routes = append(b.routes, routesOf(chain)...)
			}
		}
	case routeType:
		var r routev3.RouteConfiguration
		b.vhds = proto.Unmarshal(value, &r) == nil && r.GetVhds() != nil
	}
	return b
}

func routesOf(chain *listenerv3.FilterChain) (names []string) {
	for _, f := range chain.GetFilters() {
		var hcm hcmv3.HttpConnectionManager
		if f.GetTypedConfig().MessageIs(&hcm) && f.GetTypedConfig().UnmarshalTo(&hcm) == nil && hcm.GetRds() != nil {
			names = append(names, hcm.GetRds().GetRouteConfigName())
		}
	}
	return names
}
