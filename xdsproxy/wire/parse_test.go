package wire

import (
	"reflect"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// pieces splits b into buffers, as the network does.
func pieces(b []byte, size int) mem.BufferSlice {
	var s mem.BufferSlice
	for len(b) > 0 {
		n := min(size, len(b))
		s = append(s, mem.SliceBuffer(b[:n]))
		b = b[n:]
	}
	return s
}

func marshal(t testing.TB, m proto.Message) []byte {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestParseEqualsFullDecode(t *testing.T) {
	node := marshal(t, &corev3.Node{Id: "n"})
	deltaRequest := marshal(t, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: "t", Node: &corev3.Node{Id: "n"}, ResponseNonce: "n", ResourceNamesSubscribe: []string{"*", "a", "b"},
		ResourceNamesUnsubscribe: []string{"c"}, InitialResourceVersions: map[string]string{"x": "1"}, ErrorDetail: &rpcstatus.Status{Code: 3, Message: "bad"}})
	sotwRequest := marshal(t, &discoveryv3.DiscoveryRequest{TypeUrl: "t", ResponseNonce: "n", VersionInfo: "v", ResourceNames: []string{"a", "b"}})
	answer := marshal(t, &discoveryv3.DeltaDiscoveryResponse{TypeUrl: "t", Nonce: "n", SystemVersionInfo: "v", RemovedResources: []string{"r"},
		Resources: []*discoveryv3.Resource{{Name: "a", Version: "1"}, {Name: "b", Resource: &anypb.Any{Value: make([]byte, 1000)}}}})
	plain := marshal(t, &discoveryv3.DiscoveryResponse{TypeUrl: "t", Nonce: "n", VersionInfo: "v", Resources: []*anypb.Any{
		{TypeUrl: "c", Value: marshal(t, &clusterv3.Cluster{Name: "a", AltStatName: "other"})}, {TypeUrl: "t", Value: []byte("x")}, {TypeUrl: "t"}}})
	for _, size := range []int{1, 2, 7, 1 << 20} {
		got, err := ParseRequest(Delta, pieces(deltaRequest, size))
		expectParsed(t, size, err, got, Request{TypeURL: "t", Nonce: "n", Subscribe: []string{"*", "a", "b"}, Node: node,
			Unsubscribe: []string{"c"}, Known: []Resource{{"x", "1"}}, Rejected: true, Reason: "bad"})
		got, err = ParseRequest(SotW, pieces(sotwRequest, size))
		expectParsed(t, size, err, got, Request{TypeURL: "t", Nonce: "n", Version: "v", Names: []string{"a", "b"}})
		seen, err := ParseResponse(Delta, pieces(answer, size))
		expectParsed(t, size, err, seen, Response{TypeURL: "t", Nonce: "n", Version: "v", Resources: []Resource{{"a", "1"}, {Name: "b"}}, Removed: []string{"r"}})
		seen, err = ParseResponse(SotW, pieces(plain, size))
		expectParsed(t, size, err, seen, Response{TypeURL: "t", Nonce: "n", Version: "v", Resources: []Resource{{Name: "a"}, {}, {}}})
	}
}

func expectParsed[T any](t *testing.T, size int, err error, got, want T) {
	t.Helper()
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("in pieces of %d: %+v, %v; want %+v", size, got, err, want)
	}
}

// FuzzParse compares the parse functions with complete decoding: valid messages must yield the same result, and no
// message may cause a panic.
func FuzzParse(f *testing.F) {
	f.Add(marshal(f, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: "t", ResourceNamesSubscribe: []string{"*"}}), 3)
	f.Add(marshal(f, &discoveryv3.DiscoveryRequest{TypeUrl: "t", ErrorDetail: &rpcstatus.Status{Code: 3, Message: "bad"}}), 1)
	f.Add(marshal(f, &discoveryv3.DiscoveryResponse{TypeUrl: "t", Resources: []*anypb.Any{{TypeUrl: "t", Value: []byte{0x0a, 0x81, 0x01}}}}), 2)
	f.Add([]byte{0x32, 0x02, 0x12, 0xff}, 1)
	f.Fuzz(func(t *testing.T, data []byte, size int) {
		if size < 1 {
			size = 1
		}
		cut := pieces(data, size)
		_, _ = ParseRequest(SotW, cut)
		var bare discoveryv3.DiscoveryResponse
		if read, err := ParseResponse(SotW, cut); proto.Unmarshal(data, &bare) == nil && err == nil && len(bare.ProtoReflect().GetUnknown()) == 0 &&
			(read.Version != bare.VersionInfo || len(read.Resources) != len(bare.Resources)) {
			t.Errorf("parsed %+v, decoded %v", read, &bare)
		}
		got, err := ParseRequest(Delta, cut)
		var full discoveryv3.DeltaDiscoveryRequest
		if proto.Unmarshal(data, &full) == nil && err == nil && len(full.ProtoReflect().GetUnknown()) == 0 && !isSame(&full, got) {
			t.Errorf("parsed %+v, decoded %v", got, &full)
		}
		var response discoveryv3.DeltaDiscoveryResponse
		seen, err := ParseResponse(Delta, cut)
		if proto.Unmarshal(data, &response) == nil && err == nil && len(response.ProtoReflect().GetUnknown()) == 0 &&
			(seen.TypeURL != response.TypeUrl[:min(len(response.TypeUrl), MaxString)] || seen.Nonce != response.Nonce || len(seen.Resources) != len(response.Resources)) {
			t.Errorf("parsed %+v, decoded %v", seen, &response)
		}
	})
}

func isSame(full *discoveryv3.DeltaDiscoveryRequest, got Request) bool {
	return got.TypeURL == full.TypeUrl[:min(len(full.TypeUrl), MaxString)] && got.Nonce == full.ResponseNonce &&
		len(got.Subscribe) == len(full.ResourceNamesSubscribe) && got.Rejected == (full.ErrorDetail != nil)
}
