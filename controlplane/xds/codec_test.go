package xds

import (
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/encoding"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

var bothCodecs = map[string]encoding.CodecV2{"own": codec{encoding.GetCodecV2("proto")}, "usual": encoding.GetCodecV2("proto")}

// TestSharedResponseBytesEqualMarshalledMessage runs with and without the codec.
func TestSharedResponseBytesEqualMarshalledMessage(t *testing.T) {
	made, err := NewResource("n", &corev3.Node{Id: strings.Repeat("long", 100)})
	if err != nil {
		t.Fatal(err)
	}
	large := &Resource{Name: "x/" + strings.Repeat("y", 300), Version: "1", Body: &anypb.Any{TypeUrl: cds, Value: make([]byte, 70_000)}}
	for _, r := range []*response{
		{typeURL: cds, version: "v", nonce: "1", resources: []*Resource{made, large, {Name: "bare", Body: &anypb.Any{TypeUrl: cds}}}},
		{typeURL: lds, nonce: "2", removed: []string{"a", "", "b"}},
		{typeURL: eds},
		{typeURL: VirtualHostType, resources: []*Resource{{Name: "r/a", Version: "1", Body: made.Body, Aliases: []string{"r/x", "r/y:80"}}}, notFound: []string{"r/z"}},
	} {
		want := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: r.typeURL, SystemVersionInfo: r.version, Nonce: r.nonce, RemovedResources: r.removed}
		for _, res := range r.resources {
			want.Resources = append(want.Resources, &discoveryv3.Resource{
				Name: res.Name, Aliases: res.Aliases, Version: res.Version, Resource: res.Body,
			})
		}
		for _, name := range r.notFound {
			want.Resources = append(want.Resources, &discoveryv3.Resource{Name: name, Aliases: []string{name}})
		}
		for name, c := range bothCodecs {
			data, err := c.Marshal(&deltaResponse{r})
			if err != nil {
				t.Fatal(err)
			}
			var got discoveryv3.DeltaDiscoveryResponse
			if err := proto.Unmarshal(data.Materialize(), &got); err != nil || !proto.Equal(&got, want) {
				t.Errorf("%s codec: %v\n%v, and not\n%v", name, err, &got, want)
			}
		}
	}
}

func codecRequests() []*discoveryv3.DeltaDiscoveryRequest {
	return []*discoveryv3.DeltaDiscoveryRequest{
		{},
		{Node: &corev3.Node{Id: "n"}, TypeUrl: cds},
		{TypeUrl: eds, ResourceNamesSubscribe: []string{"a", "", "b"}, ResourceNamesUnsubscribe: []string{"c"}, ResponseNonce: "7"},
		{TypeUrl: rds, InitialResourceVersions: map[string]string{"a": "1", "": "", "b": "2"}, ResourceNamesSubscribe: []string{"é"}},
		{TypeUrl: rds, ResponseNonce: "9", ErrorDetail: &rpcstatus.Status{Code: 3, Message: "no"}},
	}
}

func TestDeltaRequestDecodesLikeProto(t *testing.T) {
	for _, m := range codecRequests() {
		data, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		var r deltaRequest
		if err := r.unmarshal(data); err != nil {
			t.Fatal(err)
		}
		sameRequest(t, r.toRequest(), m)
	}
}

func sameRequest(t *testing.T, got *request, m *discoveryv3.DeltaDiscoveryRequest) {
	t.Helper()
	back := &discoveryv3.DeltaDiscoveryRequest{
		Node: got.node, TypeUrl: got.typeURL, ResponseNonce: got.nonce, ErrorDetail: got.errorDetail,
		ResourceNamesSubscribe: got.subscribe, ResourceNamesUnsubscribe: got.unsubscribe, InitialResourceVersions: got.initial,
	}
	if !proto.Equal(back, m) {
		t.Errorf("%v, and not\n%v", back, m)
	}
}

// FuzzRequest checks that deltaRequest accepts and decodes the same messages as proto.Unmarshal.
func FuzzRequest(f *testing.F) {
	for _, m := range codecRequests() {
		data, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var m discoveryv3.DeltaDiscoveryRequest
		var r deltaRequest
		want, got := proto.Unmarshal(data, &m), r.unmarshal(data)
		if want == nil && got == nil {
			if len(m.ProtoReflect().GetUnknown())+len(m.GetResourceLocatorsSubscribe())+len(m.GetResourceLocatorsUnsubscribe()) == 0 {
				sameRequest(t, r.toRequest(), &discoveryv3.DeltaDiscoveryRequest{
					Node: m.Node, TypeUrl: m.TypeUrl, ResponseNonce: m.ResponseNonce, ErrorDetail: m.ErrorDetail,
					ResourceNamesSubscribe: m.ResourceNamesSubscribe, ResourceNamesUnsubscribe: m.ResourceNamesUnsubscribe,
					InitialResourceVersions: m.InitialResourceVersions,
				})
			}
		} else if want == nil || got == nil {
			t.Fatalf("%x: the message: %v; read: %v", data, want, got)
		}
	})
}
