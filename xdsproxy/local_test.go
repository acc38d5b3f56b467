package xdsproxy

import (
	"errors"
	"maps"
	"sync/atomic"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"
)

const tableURL = "type.googleapis.com/test.Table"

// TestAgentComesBackWithWhatItHasOfItsOwn: the control plane is told which versions were applied, and of none that was refused,
// that is gone, or that has no version.
func TestAgentComesBackWithWhatItHasOfItsOwn(t *testing.T) {
	claims := make(chan map[string]string, 10)
	var streams atomic.Int64
	of := func(name, version, value string) *discoveryv3.Resource {
		return &discoveryv3.Resource{Name: name, Version: version, Resource: &anypb.Any{TypeUrl: tableURL, Value: []byte(value)}}
	}
	answers := [][]*discoveryv3.DeltaDiscoveryResponse{
		{{Resources: []*discoveryv3.Resource{of("a", "1", "fine"), of("b", "1", "fine"), of("c", "", "fine")}},
			{Resources: []*discoveryv3.Resource{of("a", "2", "bad")}}, {RemovedResources: []string{"b"}}},
		{{Resources: []*discoveryv3.Resource{of("a", "3", "fine")}}},
		{},
	}
	cp := &upstream{delta: func(s discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
		n := int(streams.Add(1)) - 1
		for asked := false; !asked; {
			r, err := s.Recv()
			if err != nil {
				return err
			}
			if asked = r.GetTypeUrl() == tableURL; asked {
				claims <- r.GetInitialResourceVersions()
			}
		}
		if n >= len(answers)-1 {
			<-s.Context().Done()
			return nil
		}
		for _, answer := range answers[n] {
			answer.TypeUrl, answer.Nonce = tableURL, "n"
			if err := s.Send(answer); err != nil {
				return err
			}
			for taken := false; !taken; { // the answer says that it was applied or refused
				r, err := s.Recv()
				if err != nil {
					return err
				}
				taken = r.GetTypeUrl() == tableURL
			}
		}
		return status.Error(codes.Unavailable, "come again")
	}}
	address, _ := cp.listen(t, "127.0.0.1:0", nil)
	relay := start(t, Config{Upstreams: []string{address}, Server: Server{Plaintext: true}, Local: []LocalType{{
		TypeURL: tableURL, Apply: func(resources [][]byte, _ string) error {
			for _, r := range resources {
				if string(r) == "bad" {
					return errors.New("it is bad")
				}
			}
			return nil
		},
	}}})
	stream := deltaStream(t, relay)
	if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{Node: &corev3.Node{Id: "sidecar~1"}, TypeUrl: listenerType}); err != nil {
		t.Fatal(err)
	}
	for i, want := range []map[string]string{{}, {"a": "1"}, {"a": "3"}} {
		select {
		case got := <-claims:
			if !maps.Equal(got, want) {
				t.Errorf("stream %d claims %v, want %v", i+1, got, want)
			}
		case <-time.After(time.Minute):
			t.Fatalf("stream %d does not come", i+1)
		}
	}
}
