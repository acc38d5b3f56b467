package xds

import (
	"fmt"
	"maps"
	"runtime"
	"slices"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
)

// TestSharedListsDecodeTheSame: a request whose lists equal a cached page shares that page. All other lists are decoded
// separately.
func TestSharedListsDecodeTheSame(t *testing.T) {
	var shared pageCache
	names, versions := []string{}, map[string]string{}
	for i := range 200 {
		names = append(names, fmt.Sprint("n", i))
		versions[names[i]] = fmt.Sprint("v", i)
	}
	var subscribed, initial versionMap
	subscribed.addAll(&shared, len(names), withoutVersions(names))
	initial.addAll(&shared, len(versions), maps.All(versions))
	subscribed.compact(&shared)
	initial.compact(&shared)
	if subscribed.shared == nil || initial.shared == nil {
		t.Fatal("the decoded request does not share the cached page")
	}
	swapped, other := maps.Clone(versions), slices.Clone(names)
	swapped["n1"], swapped["n2"] = versions["n2"], versions["n1"]
	other[7] = "elsewhere"
	slices.Reverse(names)
	for what, c := range map[string]struct {
		names               []string
		has                 map[string]string
		subscribed, initial bool
	}{
		"the same":                            {names, versions, true, true},
		"another name":                        {other, versions, false, true},
		"one more":                            {append(slices.Clone(names), "more"), versions, false, true},
		"one name occurs twice":               {append(slices.Clone(names[1:]), names[5]), versions, false, true},
		"one less, and all":                   {append(slices.Clone(names[1:]), wildcardName), nil, false, false},
		"versions of two names are exchanged": {names, swapped, true, false},
		"no version":                          {nil, map[string]string{"n1": ""}, false, false},
	} {
		m := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: eds, ResourceNamesSubscribe: c.names, InitialResourceVersions: c.has, ResourceNamesUnsubscribe: []string{"away"}}
		data, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		r := deltaRequest{pages: &shared}
		if err := r.unmarshal(data); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		clear(data) // no string may alias the buffer
		got := r.toRequest()
		if (got.subscribePage != nil) != c.subscribed || (got.initialPage != nil) != c.initial {
			t.Errorf("%s: names shared %v, versions shared %v", what, got.subscribePage != nil, got.initialPage != nil)
		}
		got.subscribe = slices.Sorted(slices.Values(got.subscribe))
		slices.Sort(m.ResourceNamesSubscribe)
		sameRequest(t, got, m)
	}
	// The cache has only weak references to the pages.
	runtime.KeepAlive([]*versionPage{subscribed.shared, initial.shared})
}
