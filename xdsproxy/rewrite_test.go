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

// extension is a resource of the given name, of a type that is rewritten.
func extension(t testing.TB, name string) *anypb.Any {
	return packed(t, &corev3.TypedExtensionConfig{Name: name})
}

// marked is what the rewriters of these tests make of a resource.
func marked(r Resource, mark string) Resource {
	var e corev3.TypedExtensionConfig
	_ = proto.Unmarshal(r.Value, &e)
	e.TypedConfig = &anypb.Any{TypeUrl: mark}
	r.Value, _ = proto.Marshal(&e)
	return r
}

// better gives stand-ins until there is something better.
type better struct {
	there atomic.Bool
	open  chan struct{}
	ended chan struct{}
}

func newBetter() *better { return &better{open: make(chan struct{}), ended: make(chan struct{}, 9)} }

func (b *better) rewrite(_ context.Context, in []Resource) ([]Resource, error) {
	for i := range in {
		switch {
		case in[i].Name == "bad":
			return nil, errors.New("filter bad cannot be understood")
		case in[i].Name == "good" || b.there.Load():
			in[i] = marked(in[i], "real")
		default:
			in[i] = marked(in[i], "stand-in")
			in[i].Again = func(ctx context.Context) error {
				select {
				case <-b.open:
					return nil
				case <-ctx.Done():
					b.ended <- struct{}{}
					return ctx.Err()
				}
			}
		}
	}
	return in, nil
}

func (b *better) waitEnded(t *testing.T) {
	t.Helper()
	select {
	case <-b.ended:
	case <-time.After(10 * time.Second):
		t.Fatal("a version that is no longer wanted is still waited for")
	}
}

func (b *better) come() {
	b.there.Store(true)
	close(b.open)
}

// script is a control plane that does as it is told, and tells what it hears.
type script struct {
	*upstream
	delta chan *discoveryv3.DeltaDiscoveryResponse
	sotw  chan *discoveryv3.DiscoveryResponse
	heard chan string
}

func newScript() *script {
	s := &script{delta: make(chan *discoveryv3.DeltaDiscoveryResponse, 9), sotw: make(chan *discoveryv3.DiscoveryResponse, 9), heard: make(chan string, 99)}
	s.upstream = &upstream{
		delta: func(d discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
			go func() {
				for r, err := d.Recv(); err == nil; r, err = d.Recv() {
					s.heard <- r.ResponseNonce + r.ErrorDetail.GetMessage()
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
					s.heard <- r.ResponseNonce + r.ErrorDetail.GetMessage()
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

func (s *script) hears(t *testing.T, want string) {
	t.Helper()
	select {
	case got := <-s.heard:
		if !strings.HasPrefix(got, want) || want == "" && got != "" {
			t.Fatalf("the control plane heard %q; want %q", got, want)
		}
	case <-time.After(10 * time.Second):
		t.Fatalf("the control plane never heard %q", want)
	}
}

// give sends a resource in the delta protocol.
func (s *script) give(t *testing.T, name, version, nonce string) {
	s.delta <- &discoveryv3.DeltaDiscoveryResponse{TypeUrl: extensionURL, Nonce: nonce, SystemVersionInfo: nonce,
		Resources: []*discoveryv3.Resource{{Name: name, Version: version, Resource: extension(t, name)}}}
}

func rewriting(t *testing.T, b *better) (*script, *Relay) {
	s := newScript()
	address, _ := s.listen(t, "127.0.0.1:0", nil)
	return s, start(t, Config{Upstreams: []string{address}, Server: Server{Plaintext: true}, Rewrite: map[string]Rewriter{extensionURL: b.rewrite}})
}

// gets receives a response, tells what is in it, and accepts it.
func gets(t *testing.T, s deltaClient, want string) *discoveryv3.DeltaDiscoveryResponse {
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
		t.Fatalf("Envoy gets %q; want %q", text, want)
	}
	if err := s.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: extensionURL, ResponseNonce: r.Nonce}); err != nil {
		t.Fatal(err)
	}
	return r
}

func TestEnvoyGetsSomethingBetterWithoutTheControlPlane(t *testing.T) {
	b := newBetter()
	cp, relay := rewriting(t, b)
	s := deltaStream(t, relay)
	if err := s.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: extensionURL, ResourceNamesSubscribe: []string{"late", "good"}}); err != nil {
		t.Fatal(err)
	}
	cp.hears(t, "")
	cp.give(t, "late", "1", "n1")
	gets(t, s, "late@1 stand-in")
	cp.hears(t, "n1")
	cp.give(t, "good", "2", "n2")
	gets(t, s, "good@2 real")
	cp.hears(t, "n2")
	b.come()
	gets(t, s, "late@1 real")
	cp.give(t, "good", "3", "n3")
	gets(t, s, "good@3 real")
	cp.hears(t, "n3") // and nothing of the relay's own response before it
}

func TestWhatTheControlPlaneSendsAnewIsNotOvertaken(t *testing.T) {
	b := newBetter()
	cp, relay := rewriting(t, b)
	s := deltaStream(t, relay)
	if err := s.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: extensionURL, ResourceNamesSubscribe: []string{"late", "good"}}); err != nil {
		t.Fatal(err)
	}
	cp.give(t, "late", "1", "n1")
	gets(t, s, "late@1 stand-in")
	cp.give(t, "late", "2", "n2")
	gets(t, s, "late@2 stand-in")
	b.waitEnded(t) // the wait for version 1
	cp.delta <- &discoveryv3.DeltaDiscoveryResponse{TypeUrl: extensionURL, Nonce: "n3", RemovedResources: []string{"late"}}
	gets(t, s, "")
	b.waitEnded(t)
	b.come()
	cp.give(t, "good", "4", "n4")
	gets(t, s, "good@4 real")
}

func TestSomethingBetterInTheSotwProtocol(t *testing.T) {
	b := newBetter()
	cp, relay := rewriting(t, b)
	s := sotwStream(t, relay)
	send(t, s, &discoveryv3.DiscoveryRequest{TypeUrl: extensionURL, ResourceNames: []string{"late", "good"}})
	cp.sotw <- &discoveryv3.DiscoveryResponse{TypeUrl: extensionURL, VersionInfo: "v1", Nonce: "n1", Resources: []*anypb.Any{extension(t, "late"), extension(t, "good")}}
	first := receive(t, s)
	send(t, s, &discoveryv3.DiscoveryRequest{TypeUrl: extensionURL, VersionInfo: "v1", ResponseNonce: first.Nonce, ResourceNames: []string{"late", "good"}})
	cp.hears(t, "")
	cp.hears(t, "n1")
	b.come()
	second := receive(t, s)
	var e corev3.TypedExtensionConfig
	if err := second.Resources[0].UnmarshalTo(&e); err != nil || len(second.Resources) != 1 || e.Name != "late" || e.TypedConfig.TypeUrl != "real" || second.VersionInfo != "v1" {
		t.Errorf("Envoy gets %v, %v", second, err)
	}
}

func TestWhatCannotBeUnderstoodIsRejectedTowardsTheControlPlane(t *testing.T) {
	cp, relay := rewriting(t, newBetter())
	s := deltaStream(t, relay)
	if err := s.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: extensionURL, ResourceNamesSubscribe: []string{"bad", "good"}}); err != nil {
		t.Fatal(err)
	}
	cp.hears(t, "")
	cp.give(t, "bad", "1", "n1")
	cp.hears(t, "n1filter bad cannot be understood")
	cp.give(t, "good", "2", "n2")
	gets(t, s, "good@2 real") // and nothing before it
	cp.hears(t, "n2")
	if st := typeStatus(relay, extensionURL); st.Nacks != 1 || st.LastNack == nil || !strings.Contains(st.LastNack.Reason, "bad") {
		t.Errorf("status: %+v", st)
	}
}
