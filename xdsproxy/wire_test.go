package xdsproxy

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

func TestPeekEqualsFullParse(t *testing.T) {
	node := marshal(t, &corev3.Node{Id: "n"})
	deltaRequest := marshal(t, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: "t", Node: &corev3.Node{Id: "n"}, ResponseNonce: "n", ResourceNamesSubscribe: []string{"*", "a", "b"},
		ResourceNamesUnsubscribe: []string{"c"}, InitialResourceVersions: map[string]string{"x": "1"}, ErrorDetail: &rpcstatus.Status{Code: 3, Message: "bad"}})
	sotwRequest := marshal(t, &discoveryv3.DiscoveryRequest{TypeUrl: "t", ResponseNonce: "n", VersionInfo: "v", ResourceNames: []string{"a", "b"}})
	answer := marshal(t, &discoveryv3.DeltaDiscoveryResponse{TypeUrl: "t", Nonce: "n", SystemVersionInfo: "v", RemovedResources: []string{"r"},
		Resources: []*discoveryv3.Resource{{Name: "a", Version: "1"}, {Name: "b", Resource: &anypb.Any{Value: make([]byte, 1000)}}}})
	plain := marshal(t, &discoveryv3.DiscoveryResponse{TypeUrl: "t", Nonce: "n", VersionInfo: "v", Resources: []*anypb.Any{
		{TypeUrl: clusterURL, Value: marshal(t, &clusterv3.Cluster{Name: "a", AltStatName: "other"})}, {TypeUrl: "t", Value: []byte("x")}, {TypeUrl: "t"}}})
	for _, size := range []int{1, 2, 7, 1 << 20} {
		got, err := peekRequest(delta, pieces(deltaRequest, size))
		expectPeek(t, size, err, got, request{typeURL: "t", nonce: "n", subscribe: []string{"*", "a", "b"}, node: node,
			unsubscribe: []string{"c"}, known: []resource{{"x", "1"}}, rejected: true, reason: "bad"})
		got, err = peekRequest(sotw, pieces(sotwRequest, size))
		expectPeek(t, size, err, got, request{typeURL: "t", nonce: "n", version: "v", names: []string{"a", "b"}})
		seen, err := peekResponse(delta, pieces(answer, size))
		expectPeek(t, size, err, seen, response{typeURL: "t", nonce: "n", version: "v", resources: []resource{{"a", "1"}, {name: "b"}}, removed: []string{"r"}})
		seen, err = peekResponse(sotw, pieces(plain, size))
		expectPeek(t, size, err, seen, response{typeURL: "t", nonce: "n", version: "v", resources: []resource{{name: "a"}, {}, {}}})
	}
}

func expectPeek[T any](t *testing.T, size int, err error, got, want T) {
	t.Helper()
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("in pieces of %d: %+v, %v; want %+v", size, got, err, want)
	}
}

// FuzzPeek compares the peek functions with the complete parse: valid messages must yield the same result, and no
// message may cause a panic.
func FuzzPeek(f *testing.F) {
	f.Add(marshal(f, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: "t", ResourceNamesSubscribe: []string{"*"}}), 3)
	f.Add(marshal(f, &discoveryv3.DiscoveryRequest{TypeUrl: "t", ErrorDetail: &rpcstatus.Status{Code: 3, Message: "bad"}}), 1)
	f.Add(marshal(f, &discoveryv3.DiscoveryResponse{TypeUrl: "t", Resources: []*anypb.Any{{TypeUrl: "t", Value: []byte{0x0a, 0x81, 0x01}}}}), 2)
	f.Add([]byte{0x32, 0x02, 0x12, 0xff}, 1)
	f.Fuzz(func(t *testing.T, data []byte, size int) {
		if size < 1 {
			size = 1
		}
		cut := pieces(data, size)
		_, _ = peekRequest(sotw, cut)
		var bare discoveryv3.DiscoveryResponse
		if read, err := peekResponse(sotw, cut); proto.Unmarshal(data, &bare) == nil && err == nil && len(bare.ProtoReflect().GetUnknown()) == 0 &&
			(read.version != bare.VersionInfo || len(read.resources) != len(bare.Resources)) {
			t.Errorf("peeked %+v, parsed %v", read, &bare)
		}
		got, err := peekRequest(delta, cut)
		var full discoveryv3.DeltaDiscoveryRequest
		if proto.Unmarshal(data, &full) == nil && err == nil && len(full.ProtoReflect().GetUnknown()) == 0 && !isSame(&full, got) {
			t.Errorf("peeked %+v, parsed %v", got, &full)
		}
		var response discoveryv3.DeltaDiscoveryResponse
		seen, err := peekResponse(delta, cut)
		if proto.Unmarshal(data, &response) == nil && err == nil && len(response.ProtoReflect().GetUnknown()) == 0 &&
			(seen.typeURL != truncate(response.TypeUrl) || seen.nonce != response.Nonce || len(seen.resources) != len(response.Resources)) {
			t.Errorf("peeked %+v, parsed %v", seen, &response)
		}
	})
}

func isSame(full *discoveryv3.DeltaDiscoveryRequest, got request) bool {
	return got.typeURL == truncate(full.TypeUrl) && got.nonce == full.ResponseNonce &&
		len(got.subscribe) == len(full.ResourceNamesSubscribe) && got.rejected == (full.ErrorDetail != nil)
}
