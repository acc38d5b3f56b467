package xdsproxy

import "google.golang.org/grpc/mem"

// The gRPC service and methods of ADS.
const (
	service     = "envoy.service.discovery.v3.AggregatedDiscoveryService"
	sotwMethod  = "StreamAggregatedResources"
	deltaMethod = "DeltaAggregatedResources"
)

// variant is the xDS protocol variant of a stream.
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

// frame is one encoded message. It owns a reference to its buffers.
type frame struct{ data mem.BufferSlice }

func (f *frame) free() {
	f.data.Free()
	f.data = nil
}
