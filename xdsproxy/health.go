package xdsproxy

import (
	"strings"
	"sync"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/pilotfish-mesh/pilotfish/internal/rawgrpc"
)

// healthType is the type URL under which Istio's agents report the health of a workload that no kubelet probes.
const healthType = "type.googleapis.com/istio.v1.HealthInformation"

// healthOfApp is what the control plane is to know of the application's health. The zero value says nothing.
type healthOfApp struct {
	mu      sync.Mutex
	report  healthReport
	changed chan struct{} // closed at the next change; nil while nobody waits
}

type healthReport struct {
	known, healthy bool
	message        string
}

// ReportHealth tells the control plane whether the application is well, and if not, why. It is told on a change only, and
// again on each new stream, after Envoy's first request for listeners: control planes take a report from a proxy only
// that they know already. It never blocks.
func (r *Relay) ReportHealth(healthy bool, message string) { r.report.set(healthy, message) }

// set keeps the first reason for as long as the application is unwell: a probe's error may differ each time (a port of
// the client, say), and would make every probe a message.
func (h *healthOfApp) set(healthy bool, message string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.report.known && h.report.healthy == healthy {
		return
	}
	h.report = healthReport{known: true, healthy: healthy}
	if !healthy {
		// What an application said need not be UTF-8, and protobuf refuses to carry anything else.
		h.report.message = strings.ToValidUTF8(message[:min(len(message), maxString)], "\uFFFD")
	}
	if h.changed != nil {
		close(h.changed)
		h.changed = nil
	}
}

// now gives the report, and what is closed when there is another.
func (h *healthOfApp) now() (healthReport, <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.changed == nil {
		h.changed = make(chan struct{})
	}
	return h.report, h.changed
}

// frame is the report as a request of the protocol. Istio's control plane takes one with error_detail for "unhealthy".
func (r healthReport) frame(v variant) (*frame, error) {
	var detail *rpcstatus.Status
	if !r.healthy {
		detail = &rpcstatus.Status{Code: int32(codes.Internal), Message: r.message}
	}
	var m proto.Message = &discoveryv3.DiscoveryRequest{TypeUrl: healthType, ErrorDetail: detail}
	if v == delta {
		m = &discoveryv3.DeltaDiscoveryRequest{TypeUrl: healthType, ErrorDetail: detail}
	}
	data, err := proto.Marshal(m)
	if err != nil {
		return nil, err
	}
	return &frame{data: mem.BufferSlice{mem.SliceBuffer(data)}}, nil
}

// healthTeller tells one stream upstream of the application's health.
type healthTeller struct {
	relay    *Relay
	proto    variant
	upstream *rawgrpc.ClientStream
	told     healthReport
}

// tell sends what the control plane does not know yet, and gives what is closed when that may have changed. Before Envoy
// has asked for listeners it sends nothing, and nothing is waited for.
func (h *healthTeller) tell(listening bool) (<-chan struct{}, error) {
	if !listening {
		return nil, nil
	}
	report, changed := h.relay.report.now()
	if report == h.told {
		return changed, nil
	}
	f, err := report.frame(h.proto)
	if err != nil {
		h.relay.log.Error("the application's health cannot be reported", "error", err)
		return changed, nil
	}
	defer f.free()
	if err := h.upstream.Send(f.data); err != nil {
		return nil, err
	}
	h.told = report
	h.relay.log.Info("told the control plane of the application's health", "healthy", report.healthy, "message", report.message)
	return changed, nil
}
