package xdsproxy

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

const extensionURL = "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig"

// newExtension returns a resource with the name, of a type that is rewritten.
func newExtension(t testing.TB, name string) *anypb.Any {
	return packAny(t, &corev3.TypedExtensionConfig{Name: name})
}

// markResource rewrites a resource so that the test recognises it.
func markResource(r Resource, mark string) Resource {
	var e corev3.TypedExtensionConfig
	_ = proto.Unmarshal(r.Value, &e)
	e.TypedConfig = &anypb.Any{TypeUrl: mark}
	r.Value, _ = proto.Marshal(&e)
	return r
}

// retryingRewriter returns provisional resources until setReady is called.
type retryingRewriter struct {
	isReady      atomic.Bool
	open         chan struct{}
	retriesEnded chan struct{}
}

func newRetryingRewriter() *retryingRewriter {
	return &retryingRewriter{open: make(chan struct{}), retriesEnded: make(chan struct{}, 9)}
}

func (b *retryingRewriter) rewrite(_ context.Context, in []Resource) ([]Resource, error) {
	for i := range in {
		switch {
		case in[i].Name == "bad":
			return nil, errors.New("filter bad cannot be understood")
		case in[i].Name == "good" || b.isReady.Load():
			in[i] = markResource(in[i], "real")
		default:
			in[i] = markResource(in[i], "provisional")
			in[i].Retry = func(ctx context.Context) error {
				select {
				case <-b.open:
					return nil
				case <-ctx.Done():
					b.retriesEnded <- struct{}{}
					return ctx.Err()
				}
			}
		}
	}
	return in, nil
}

func (b *retryingRewriter) waitEnded(t *testing.T) {
	t.Helper()
	select {
	case <-b.retriesEnded:
	case <-time.After(10 * time.Second):
		t.Fatal("the retry of a superseded version was not cancelled")
	}
}

func (b *retryingRewriter) setReady() {
	b.isReady.Store(true)
	close(b.open)
}

// scriptedControlPlane sends the responses of the test, and passes received requests to it.
type scriptedControlPlane struct {
	*fakeControlPlane
	delta    chan *discoveryv3.DeltaDiscoveryResponse
	sotw     chan *discoveryv3.DiscoveryResponse
	received chan string
}

func newScriptedControlPlane() *scriptedControlPlane {
	s := &scriptedControlPlane{delta: make(chan *discoveryv3.DeltaDiscoveryResponse, 9), sotw: make(chan *discoveryv3.DiscoveryResponse, 9), received: make(chan string, 99)}
	s.fakeControlPlane = &fakeControlPlane{
		delta: func(d discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
			go func() {
				for r, err := d.Recv(); err == nil; r, err = d.Recv() {
					s.received <- r.ResponseNonce + r.ErrorDetail.GetMessage()
				}
			}()
			for {
				select {
				case r := <-s.delta:
					_ = d.Send(r)
				case <-d.Context().Done():
					return nil
				}
			}
		},
		sotw: func(d discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
			go func() {
				for r, err := d.Recv(); err == nil; r, err = d.Recv() {
					s.received <- r.ResponseNonce + r.ErrorDetail.GetMessage()
				}
			}()
			for {
				select {
				case r := <-s.sotw:
					_ = d.Send(r)
				case <-d.Context().Done():
					return nil
				}
			}
		},
	}
	return s
}

func (s *scriptedControlPlane) receive(t *testing.T, want string) {
	t.Helper()
	select {
	case got := <-s.received:
		if !strings.HasPrefix(got, want) || want == "" && got != "" {
			t.Fatalf("the control plane received %q; want %q", got, want)
		}
	case <-time.After(10 * time.Second):
		t.Fatalf("the control plane did not receive %q", want)
	}
}

// sendResource sends a delta response with one resource.
func (s *scriptedControlPlane) sendResource(t *testing.T, name, version, nonce string) {
	s.delta <- &discoveryv3.DeltaDiscoveryResponse{TypeUrl: extensionURL, Nonce: nonce, SystemVersionInfo: nonce,
		Resources: []*discoveryv3.Resource{{Name: name, Version: version, Resource: newExtension(t, name)}}}
}

func startRewritingRelay(t *testing.T, b *retryingRewriter) (*scriptedControlPlane, *Relay) {
	s := newScriptedControlPlane()
	address, _ := s.listen(t, "127.0.0.1:0", nil)
	return s, start(t, Config{Upstreams: []string{address}, Server: Server{Plaintext: true}, Rewrite: map[string]Rewriter{extensionURL: b.rewrite}})
}

// expectResource receives a response, checks its resource, and accepts it.
func expectResource(t *testing.T, s deltaClient, want string) *discoveryv3.DeltaDiscoveryResponse {
	t.Helper()
	r, err := s.Recv()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, one := range r.Resources {
		var e corev3.TypedExtensionConfig
		if err := one.Resource.UnmarshalTo(&e); err != nil {
			t.Fatal(err)
		}
		got = append(got, fmt.Sprint(one.Name, "@", one.Version, " ", e.GetTypedConfig().GetTypeUrl()))
	}
	if text := strings.Join(got, ", "); text != want {
		t.Fatalf("Envoy received %q; want %q", text, want)
	}
	if err := s.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: extensionURL, ResponseNonce: r.Nonce}); err != nil {
		t.Fatal(err)
	}
	return r
}

func TestRetriedResourceIsSentWithoutControlPlane(t *testing.T) {
	b := newRetryingRewriter()
	cp, relay := startRewritingRelay(t, b)
	s := deltaStream(t, relay)
	if err := s.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: extensionURL, ResourceNamesSubscribe: []string{"late", "good"}}); err != nil {
		t.Fatal(err)
	}
	cp.receive(t, "")
	cp.sendResource(t, "late", "1", "n1")
	expectResource(t, s, "late@1 provisional")
	cp.receive(t, "n1")
	cp.sendResource(t, "good", "2", "n2")
	expectResource(t, s, "good@2 real")
	cp.receive(t, "n2")
	b.setReady()
	expectResource(t, s, "late@1 real")
	cp.sendResource(t, "good", "3", "n3")
	expectResource(t, s, "good@3 real")
	cp.receive(t, "n3") // the ACK of the relay's own response is not forwarded
}

func TestRetryDoesNotOverwriteNewerResource(t *testing.T) {
	b := newRetryingRewriter()
	cp, relay := startRewritingRelay(t, b)
	s := deltaStream(t, relay)
	if err := s.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: extensionURL, ResourceNamesSubscribe: []string{"late", "good"}}); err != nil {
		t.Fatal(err)
	}
	cp.sendResource(t, "late", "1", "n1")
	expectResource(t, s, "late@1 provisional")
	cp.sendResource(t, "late", "2", "n2")
	expectResource(t, s, "late@2 provisional")
	b.waitEnded(t) // the retry of version 1
	cp.delta <- &discoveryv3.DeltaDiscoveryResponse{TypeUrl: extensionURL, Nonce: "n3", RemovedResources: []string{"late"}}
	expectResource(t, s, "")
	b.waitEnded(t)
	b.setReady()
	cp.sendResource(t, "good", "4", "n4")
	expectResource(t, s, "good@4 real")
}

func TestRetriedResourceInSotw(t *testing.T) {
	b := newRetryingRewriter()
	cp, relay := startRewritingRelay(t, b)
	s := sotwStream(t, relay)
	send(t, s, &discoveryv3.DiscoveryRequest{TypeUrl: extensionURL, ResourceNames: []string{"late", "good"}})
	cp.sotw <- &discoveryv3.DiscoveryResponse{TypeUrl: extensionURL, VersionInfo: "v1", Nonce: "n1", Resources: []*anypb.Any{newExtension(t, "late"), newExtension(t, "good")}}
	first := receive(t, s)
	send(t, s, &discoveryv3.DiscoveryRequest{TypeUrl: extensionURL, VersionInfo: "v1", ResponseNonce: first.Nonce, ResourceNames: []string{"late", "good"}})
	cp.receive(t, "")
	cp.receive(t, "n1")
	b.setReady()
	second := receive(t, s)
	var e corev3.TypedExtensionConfig
	if err := second.Resources[0].UnmarshalTo(&e); err != nil || len(second.Resources) != 1 || e.Name != "late" || e.TypedConfig.TypeUrl != "real" || second.VersionInfo != "v1" {
		t.Errorf("Envoy received %v, %v", second, err)
	}
}

func TestUnparseableResourceIsRejectedUpstream(t *testing.T) {
	cp, relay := startRewritingRelay(t, newRetryingRewriter())
	s := deltaStream(t, relay)
	if err := s.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: extensionURL, ResourceNamesSubscribe: []string{"bad", "good"}}); err != nil {
		t.Fatal(err)
	}
	cp.receive(t, "")
	cp.sendResource(t, "bad", "1", "n1")
	cp.receive(t, "n1filter bad cannot be understood")
	cp.sendResource(t, "good", "2", "n2")
	expectResource(t, s, "good@2 real") // and no response before it
	cp.receive(t, "n2")
	if st := typeStatus(relay, extensionURL); st.Nacks != 1 || st.LastNack == nil || !strings.Contains(st.LastNack.Reason, "bad") {
		t.Errorf("status: %+v", st)
	}
}
