package xdsproxy

import (
	"errors"
	"maps"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"
)

const tableURL = "type.googleapis.com/test.Table"

// TestReconnectSendsAppliedLocalVersions: the request contains the applied versions, without rejected, removed and
// unversioned resources.
func TestReconnectSendsAppliedLocalVersions(t *testing.T) {
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
	cp := &fakeControlPlane{delta: func(s discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
		n := int(streams.Add(1)) - 1
		for requested := false; !requested; {
			r, err := s.Recv()
			if err != nil {
				return err
			}
			if requested = r.GetTypeUrl() == tableURL; requested {
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
			for processed := false; !processed; { // the ACK or NACK shows that the response was processed
				r, err := s.Recv()
				if err != nil {
					return err
				}
				processed = r.GetTypeUrl() == tableURL
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
				t.Errorf("the request on stream %d contains the versions %v, want %v", i+1, got, want)
			}
		case <-time.After(time.Minute):
			t.Fatalf("the relay did not open stream %d", i+1)
		}
	}
}

// TestOfferedTypeIsRequestedOnlyIfOffered: a control plane that offers the type receives the request even if it has
// nothing else to send.
func TestOfferedTypeIsRequestedOnlyIfOffered(t *testing.T) {
	for name, offers := range map[string][]string{"offered": {"type.googleapis.com/test.Other", tableURL}, "not offered": nil, "another one": {listenerType}} {
		t.Run(name, func(t *testing.T) {
			requested := make(chan string, 10)
			cp := &fakeControlPlane{delta: func(s discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
				if err := s.SendHeader(metadata.MD{OfferHeader: offers}); err != nil {
					return err
				}
				for {
					r, err := s.Recv()
					if err != nil {
						return err
					}
					requested <- r.GetTypeUrl()
				}
			}}
			address, _ := cp.listen(t, "127.0.0.1:0", nil)
			relay := start(t, Config{Upstreams: []string{address}, Server: Server{Plaintext: true}, Local: []LocalType{
				{TypeURL: tableURL, Offered: true, Apply: func([][]byte, string) error { return nil }},
			}})
			stream := deltaStream(t, relay)
			next := func() string {
				t.Helper()
				select {
				case typeURL := <-requested:
					return typeURL
				case <-time.After(time.Minute):
					t.Fatal("the relay sent no request")
					return ""
				}
			}
			send := func(r *discoveryv3.DeltaDiscoveryRequest) {
				t.Helper()
				if err := stream.Send(r); err != nil {
					t.Fatal(err)
				}
			}
			send(&discoveryv3.DeltaDiscoveryRequest{Node: &corev3.Node{Id: "sidecar~1"}, TypeUrl: listenerType})
			if got := next(); got != listenerType {
				t.Fatalf("the first request is for %s", got)
			}
			if slices.Contains(offers, tableURL) {
				if got := next(); got != tableURL {
					t.Errorf("the second request is for %s", got)
				}
				return
			}
			for range 3 { // requests are ordered: one for the type would be among them
				send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: listenerType, ResourceNamesSubscribe: []string{"x"}})
				if got := next(); got != listenerType {
					t.Errorf("unexpected request for %s", got)
				}
			}
		})
	}
}
