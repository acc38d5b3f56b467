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

// DegradationType is the type URL of reports that the proxy serves, but not as its configuration specifies. Only control
// planes that list the type in OfferHeader receive them.
const DegradationType = "type.googleapis.com/pilotfish.v1.Degradation"

// reportedHealth is the health of the application or the proxy, which the relay reports to the control plane. The zero
// value reports nothing.
type reportedHealth struct {
	mu      sync.Mutex
	report  healthReport
	changed chan struct{} // closed at the next change; nil while no goroutine waits for one
}

// healthReport is a report about the health of the application, or about the degradation of the proxy. The relay does
// not send the zero value, which means that the health is unknown.
type healthReport struct {
	known, healthy bool
	message        string
}

// ReportHealth reports the application's health to the control plane. If the application is unhealthy, message is the
// reason. The relay sends a report when the health changes, and once on each new stream. It sends the first report
// after Envoy's first request for listeners, because control planes do not know the proxy before that request.
// ReportHealth never blocks.
func (r *Relay) ReportHealth(healthy bool, message string) {
	report := newHealthReport(healthy, message)
	// A new message for the same health is ignored. The error text of a probe may contain a port that differs each time,
	// and each probe would then cause a report.
	r.appHealth.set(report, func(last healthReport) bool { return last.healthy == healthy })
}

// ReportDegradation reports to the control plane that the proxy serves, but not as its configuration specifies. An
// empty reason reports the end of this condition. ReportDegradation never blocks.
func (r *Relay) ReportDegradation(reason string) {
	report := newHealthReport(reason == "", reason)
	r.degradation.set(report, func(last healthReport) bool { return last == report })
}

func newHealthReport(healthy bool, message string) healthReport {
	if healthy {
		return healthReport{known: true, healthy: true}
	}
	// Protobuf strings must be UTF-8, but the application's output may not be.
	return healthReport{known: true, message: strings.ToValidUTF8(message[:min(len(message), wire.MaxString)], "\uFFFD")}
}

// set stores a report, unless isSame reports that the last report is equivalent.
func (h *reportedHealth) set(report healthReport, isSame func(last healthReport) bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.report.known && isSame(h.report) {
		return
	}
	h.report = report
	if h.changed != nil {
		close(h.changed)
		h.changed = nil
	}
}

// current returns the report, and a channel that is closed at the next change.
func (h *reportedHealth) current() (healthReport, <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.changed == nil {
		h.changed = make(chan struct{})
	}
	return h.report, h.changed
}

// encode returns the report as a discovery request. Istio's control plane interprets error_detail as "unhealthy".
func (r healthReport) encode(v wire.Variant, typeURL string) (*wire.Message, error) {
	var detail *rpcstatus.Status
	if !r.healthy {
		detail = &rpcstatus.Status{Code: int32(codes.Internal), Message: r.message}
	}
	var m proto.Message = &discoveryv3.DiscoveryRequest{TypeUrl: typeURL, ErrorDetail: detail}
	if v == wire.Delta {
		m = &discoveryv3.DeltaDiscoveryRequest{TypeUrl: typeURL, ErrorDetail: detail}
	}
	data, err := proto.Marshal(m)
	if err != nil {
		return nil, err
	}
	return &wire.Message{Data: mem.BufferSlice{mem.SliceBuffer(data)}}, nil
}

// healthReporter sends the reports of one type on one upstream stream.
type healthReporter struct {
	relay    *Relay
	source   *reportedHealth
	typeURL  string
	proto    wire.Variant
	stream   grpc.ClientStream
	lastSent healthReport
}

// report sends the report if it has changed since the last call. It returns a channel that is closed at the next
// change. If enabled is false, it sends nothing and returns nil.
func (h *healthReporter) report(enabled bool) (<-chan struct{}, error) {
	if !enabled {
		return nil, nil
	}
	report, changed := h.source.current()
	if report == h.lastSent {
		return changed, nil
	}
	f, err := report.encode(h.proto, h.typeURL)
	if err != nil {
		h.relay.log.Error("cannot send a health report to the control plane", "type", h.typeURL, "error", err)
		return changed, nil
	}
	defer f.Free()
	if err := h.stream.SendMsg(f); err != nil {
		return nil, err
	}
	h.lastSent = report
	h.relay.log.Info("reported health to the control plane", "type", h.typeURL, "healthy", report.healthy, "message", report.message)
	return changed, nil
}
