package xdsproxy

import (
	"strings"
	"sync"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/pilotfish-mesh/pilotfish/xdsproxy/wire"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
)

// healthType is the type URL of health reports of VM workloads in Istio.
const healthType = "type.googleapis.com/istio.v1.HealthInformation"

// appHealth is the application's health, which the relay reports to the control plane. The zero value reports nothing.
type appHealth struct {
	mu      sync.Mutex
	report  healthReport
	changed chan struct{} // closed at the next change; nil while no goroutine waits for one
}

// healthReport is the health of the application. The zero value means that the health is unknown, and the relay does
// not send it.
type healthReport struct {
	known, healthy bool
	message        string
}

// ReportHealth reports the application's health to the control plane. If the application is unhealthy, message is the
// reason. The relay sends a report when the health changes, and once on each new stream. It sends the first report
// after Envoy's first request for listeners, because control planes do not know the proxy before that request.
// ReportHealth never blocks.
func (r *Relay) ReportHealth(healthy bool, message string) { r.appHealth.set(healthy, message) }

// set stores the health if it has changed. It ignores a new message for the same health. The error text of a probe may
// contain a port that differs each time, and each probe would then cause a report.
func (h *appHealth) set(healthy bool, message string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.report.known && h.report.healthy == healthy {
		return
	}
	h.report = healthReport{known: true, healthy: healthy}
	if !healthy {
		// Protobuf strings must be UTF-8, but the application's output may not be.
		h.report.message = strings.ToValidUTF8(message[:min(len(message), wire.MaxString)], "\uFFFD")
	}
	if h.changed != nil {
		close(h.changed)
		h.changed = nil
	}
}

// current returns the report, and a channel that is closed at the next change.
func (h *appHealth) current() (healthReport, <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.changed == nil {
		h.changed = make(chan struct{})
	}
	return h.report, h.changed
}

// encode returns the report as a discovery request. Istio's control plane interprets error_detail as "unhealthy".
func (r healthReport) encode(v wire.Variant) (*wire.Message, error) {
	var detail *rpcstatus.Status
	if !r.healthy {
		detail = &rpcstatus.Status{Code: int32(codes.Internal), Message: r.message}
	}
	var m proto.Message = &discoveryv3.DiscoveryRequest{TypeUrl: healthType, ErrorDetail: detail}
	if v == wire.Delta {
		m = &discoveryv3.DeltaDiscoveryRequest{TypeUrl: healthType, ErrorDetail: detail}
	}
	data, err := proto.Marshal(m)
	if err != nil {
		return nil, err
	}
	return &wire.Message{Data: mem.BufferSlice{mem.SliceBuffer(data)}}, nil
}

// healthReporter reports the application's health on one upstream stream.
type healthReporter struct {
	relay    *Relay
	proto    wire.Variant
	stream   grpc.ClientStream
	lastSent healthReport
}

// report sends a changed report. It returns a channel that is closed at the next change. Before Envoy's first request
// for listeners, it sends nothing and returns nil.
func (h *healthReporter) report(listening bool) (<-chan struct{}, error) {
	if !listening {
		return nil, nil
	}
	report, changed := h.relay.appHealth.current()
	if report == h.lastSent {
		return changed, nil
	}
	f, err := report.encode(h.proto)
	if err != nil {
		h.relay.log.Error("the application's health cannot be reported", "error", err)
		return changed, nil
	}
	defer f.Free()
	if err := h.stream.SendMsg(f); err != nil {
		return nil, err
	}
	h.lastSent = report
	h.relay.log.Info("reported the application's health to the control plane", "healthy", report.healthy, "message", report.message)
	return changed, nil
}
