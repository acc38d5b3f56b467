package xds

import (
	"fmt"
	"maps"
	"runtime"
	"slices"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
)

// TestWhatOthersListTooIsReadTheSame: a request that lists what other clients hold shares it with them, and any other is
// read by itself, however little it differs.
func TestWhatOthersListTooIsReadTheSame(t *testing.T) {
	var shared pages
	names, versions := []string{}, map[string]string{}
	for i := range 200 {
		names = append(names, fmt.Sprint("n", i))
		versions[names[i]] = fmt.Sprint("v", i)
	}
	var asked, held ledger
	asked.adopt(&shared, len(names), unversioned(names))
	held.adopt(&shared, len(versions), maps.All(versions))
	asked.settle(&shared)
	held.settle(&shared)
	if asked.shared == nil || held.shared == nil {
		t.Fatal("nobody holds a page to be shared")
	}
	swapped, other := maps.Clone(versions), slices.Clone(names)
	swapped["n1"], swapped["n2"] = versions["n2"], versions["n1"]
	other[7] = "elsewhere"
	slices.Reverse(names)
	for what, c := range map[string]struct {
		names      []string
		has        map[string]string
		asks, held bool
	}{
		"the same":                {names, versions, true, true},
		"another name":            {other, versions, false, true},
		"one more":                {append(slices.Clone(names), "more"), versions, false, true},
		"one of them twice":       {append(slices.Clone(names[1:]), names[5]), versions, false, true},
		"one less, and all":       {append(slices.Clone(names[1:]), wildcardName), nil, false, false},
		"versions in other hands": {names, swapped, true, false},
		"no version":              {nil, map[string]string{"n1": ""}, false, false},
	} {
		m := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: eds, ResourceNamesSubscribe: c.names, InitialResourceVersions: c.has, ResourceNamesUnsubscribe: []string{"away"}}
		data, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		r := deltaRequest{pages: &shared}
		own := codec{encoding.GetCodecV2("proto")}
		if err := own.Unmarshal(mem.BufferSlice{mem.SliceBuffer(data)}, &r); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		clear(data) // nothing of the buffer may be kept
		got := r.request()
		if (got.asks != nil) != c.asks || (got.has != nil) != c.held {
			t.Errorf("%s: names shared %v, versions shared %v", what, got.asks != nil, got.has != nil)
		}
		got.subscribe = slices.Sorted(slices.Values(got.subscribe))
		slices.Sort(m.ResourceNamesSubscribe)
		sameRequest(t, got, m)
	}
	runtime.KeepAlive([]*page{asked.shared, held.shared}) // somebody holds them until here, or they would go
}
