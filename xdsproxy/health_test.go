package xdsproxy

import (
	"errors"
	"fmt"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// formatRequest describes a received request: its type, and the result of a health report.
func formatRequest(typeURL string, code int32, message string) string {
	if typeURL != healthType {
		return shortType(typeURL)
	}
	if code == 0 {
		return "healthy"
	}
	return fmt.Sprintf("%s: %s", codes.Code(code), message)
}

func expectReceived(t *testing.T, heard <-chan string, want ...string) {
	t.Helper()
	for _, w := range want {
		if got := <-heard; got != w {
			t.Fatalf("the control plane received %q, want %q", got, w)
		}
	}
}

func TestHealthIsReportedOnChangeAndOnNewStream(t *testing.T) {
	heard := make(chan string, 100)
	cp := &fakeControlPlane{
		sotw: func(s discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
			for {
				r, err := s.Recv()
				if err != nil {
					return err
				}
				heard <- formatRequest(r.GetTypeUrl(), r.GetErrorDetail().GetCode(), r.GetErrorDetail().GetMessage())
			}
		},
		delta: func(s discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
			for {
				r, err := s.Recv()
				if err != nil {
					return err
				}
				heard <- formatRequest(r.GetTypeUrl(), r.GetErrorDetail().GetCode(), r.GetErrorDetail().GetMessage())
			}
		},
	}
	address, _ := cp.listen(t, "127.0.0.1:0", nil)
	relay := start(t, Config{Upstreams: []string{address}, Server: Server{Plaintext: true}})
	first := sotwStream(t, relay)
	relay.ReportHealth(true, "")
	send(t, first, &discoveryv3.DiscoveryRequest{TypeUrl: clusterType})
	send(t, first, &discoveryv3.DiscoveryRequest{TypeUrl: listenerType})
	expectReceived(t, heard, "Cluster", "Listener", "healthy")

	relay.ReportHealth(true, "")
	relay.ReportHealth(false, "GET /ready: 503")
	relay.ReportHealth(false, "GET /ready: 500")
	expectReceived(t, heard, "Internal: GET /ready: 503")
	send(t, first, &discoveryv3.DiscoveryRequest{TypeUrl: listenerType, ResourceNames: []string{"x"}})
	expectReceived(t, heard, "Listener")

	second := deltaStream(t, relay)
	for _, typeURL := range []string{clusterType, listenerType} {
		if err := second.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: typeURL}); err != nil {
			t.Fatal(err)
		}
	}
	expectReceived(t, heard, "Cluster", "Listener", "Internal: GET /ready: 503")
	relay.ReportHealth(true, "")
	expectReceived(t, heard, "healthy")
	if s := typeStatus(relay, healthType); s.Requests != 0 {
		t.Errorf("the status counts health reports as Envoy's requests: %+v", s)
	}
}

// TestHealthIsReportedAfterReconnect: the next control plane does not know the health.
func TestHealthIsReportedAfterReconnect(t *testing.T) {
	heard := make(chan string, 100)
	cp := &fakeControlPlane{sotw: func(s discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
		for {
			r, err := s.Recv()
			if err != nil {
				return err
			}
			heard <- formatRequest(r.GetTypeUrl(), r.GetErrorDetail().GetCode(), r.GetErrorDetail().GetMessage())
		}
	}}
	address, stop := cp.listen(t, "127.0.0.1:0", nil)
	relay := start(t, Config{Upstreams: []string{address}, Server: Server{Plaintext: true}})
	relay.ReportHealth(false, "exit code 1\xff")
	stream := sotwStream(t, relay)
	send(t, stream, &discoveryv3.DiscoveryRequest{TypeUrl: listenerType})
	expectReceived(t, heard, "Listener", "Internal: exit code 1\uFFFD")
	waitConnected(t, relay)
	stop()
	testenv.Eventually(t, "the relay reports the lost control plane", func() error {
		if relay.Status().Connected {
			return errors.New("still connected")
		}
		return nil
	})
	relay.ReportHealth(true, "")
	cp.listen(t, address, nil)
	// The control plane has never answered, so Envoy's stream continues, and its requests are sent again.
	expectReceived(t, heard, "Listener", "healthy")
}

// TestDegradationIsReportedToControlPlanesThatAcceptIt, at each change of the reason.
func TestDegradationIsReportedToControlPlanesThatAcceptIt(t *testing.T) {
	for name, offers := range map[string][]string{"offered": {"other", DegradationType}, "not offered": {"other"}} {
		t.Run(name, func(t *testing.T) {
			heard := make(chan string, 100)
			cp := &fakeControlPlane{sotw: func(s discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
				if err := s.SendHeader(metadata.MD{OfferHeader: offers}); err != nil {
					return err
				}
				for {
					r, err := s.Recv()
					if err != nil {
						return err
					}
					if r.GetTypeUrl() == DegradationType {
						heard <- "degraded: " + r.GetErrorDetail().GetMessage()
					} else {
						heard <- formatRequest(r.GetTypeUrl(), r.GetErrorDetail().GetCode(), r.GetErrorDetail().GetMessage())
					}
				}
			}}
			address, _ := cp.listen(t, "127.0.0.1:0", nil)
			relay := start(t, Config{Upstreams: []string{address}, Server: Server{Plaintext: true}})
			relay.ReportDegradation("one")
			stream := sotwStream(t, relay)
			send(t, stream, &discoveryv3.DiscoveryRequest{TypeUrl: listenerType})
			if name == "offered" {
				expectReceived(t, heard, "Listener", "degraded: one")
				relay.ReportDegradation("two")
				expectReceived(t, heard, "degraded: two")
				relay.ReportDegradation("two")
				relay.ReportDegradation("")
				expectReceived(t, heard, "degraded: ")
			} else {
				expectReceived(t, heard, "Listener")
			}
			send(t, stream, &discoveryv3.DiscoveryRequest{TypeUrl: listenerType, ResourceNames: []string{"x"}})
			expectReceived(t, heard, "Listener")
		})
	}
}
