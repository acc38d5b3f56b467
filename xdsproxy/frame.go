package xdsproxy

import "google.golang.org/grpc/mem"

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
