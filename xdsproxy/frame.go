package xdsproxy

import (
	"fmt"

	"google.golang.org/grpc/mem"
)

// The aggregated discovery service, as it stands on the wire.
const (
	service     = "envoy.service.discovery.v3.AggregatedDiscoveryService"
	sotwMethod  = "StreamAggregatedResources"
	deltaMethod = "DeltaAggregatedResources"
)

// variant is which of the two protocols a stream speaks.
type variant int

const (
	sotw variant = iota
	delta
)

func (v variant) String() string {
	if v == delta {
		return "delta"
	}
	return "sotw"
}

func (v variant) method() string {
	if v == delta {
		return "/" + service + "/" + deltaMethod
	}
	return "/" + service + "/" + sotwMethod
}

// frame is one message as it came. Who holds a frame holds a reference to its bytes.
type frame struct{ data mem.BufferSlice }

func (f *frame) free() {
	f.data.Free()
	f.data = nil
}

// codec hands messages through. gRPC frees what it sends, so each send takes a reference of its own.
type codec struct{}

func (codec) Marshal(v any) (mem.BufferSlice, error) {
	f, ok := v.(*frame)
	if !ok {
		return nil, fmt.Errorf("xdsproxy: sending a %T through the raw codec", v)
	}
	f.data.Ref()
	return f.data, nil
}

func (codec) Unmarshal(data mem.BufferSlice, v any) error {
	f, ok := v.(*frame)
	if !ok {
		return fmt.Errorf("xdsproxy: receiving a %T through the raw codec", v)
	}
	data.Ref()
	f.data = data
	return nil
}

// Name is that of the protobuf codec: the bytes are protobuf on both sides.
func (codec) Name() string { return "proto" }
