package registry

import (
	"fmt"
	"net/netip"
	"runtime"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// clusterServices is the number of services of newCluster, whatever the number of pods.
const clusterServices = 1000

// newCluster returns a cluster of clusterServices services in ten namespaces, to which the pods belong in turn.
func newCluster(pods int) *config.MemoryStore {
	store := config.NewMemoryStore()
	var all []*config.Resource
	in := config.NewInterner()
	lists := make([]*config.EndpointSliceSpec, clusterServices)
	for i := range clusterServices {
		name := fmt.Sprintf("s%d", i)
		lists[i] = &config.EndpointSliceSpec{Service: name, AddressType: "IPv4", Ports: []config.SlicePort{{Name: "http", Protocol: "TCP", Number: 8080}}}
		all = append(all, &config.Resource{
			Key:  config.Key{Kind: config.Service, Namespace: clusterNamespace(i), Name: name},
			Spec: &config.ServiceSpec{Type: "ClusterIP", Selector: map[string]string{"app": name}, Ports: []config.ServicePort{{Name: "http", Port: 80, Protocol: "TCP"}}},
		})
	}
	for i := range pods {
		of := i % clusterServices
		pod := clusterPod(in, i)
		all = append(all, pod)
		spec := pod.Spec.(*config.PodSpec)
		lists[of].Endpoints = append(lists[of].Endpoints, config.SliceEndpoint{Address: spec.Addresses[0].String(), Node: spec.Node, Pod: pod.Name, PodUID: spec.UID, Ready: true, Serving: true})
	}
	for i, list := range lists {
		all = append(all, &config.Resource{Key: config.Key{Kind: config.EndpointSlice, Namespace: clusterNamespace(i), Name: list.Service + "-abc"}, Spec: list})
	}
	for i := range 100 {
		all = append(all, &config.Resource{Key: config.Key{Kind: config.Node, Name: fmt.Sprintf("node-%d", i)}, Spec: &config.NodeSpec{Locality: fmt.Sprintf("r/z%d", i%3)}})
	}
	store.Put(all...)
	return store
}

func clusterNamespace(service int) string { return fmt.Sprintf("ns%d", service%10) }

func clusterPod(in *config.Interner, i int) *config.Resource {
	of := i % clusterServices
	labels := map[string]string{
		"app": fmt.Sprintf("s%d", of), "pod-template-hash": "7d4b9c", "security.istio.io/tlsMode": "istio",
		"service.istio.io/canonical-name": fmt.Sprintf("s%d", of), "service.istio.io/canonical-revision": "latest",
	}
	return &config.Resource{
		Key:    config.Key{Kind: config.Pod, Namespace: in.InternString(clusterNamespace(of)), Name: fmt.Sprintf("s%d-7d4b9c-%d", of, i)},
		Labels: in.InternLabels(labels), APIVersion: "v1",
		Spec: &config.PodSpec{
			UID: fmt.Sprintf("0b5c7c1e-0000-4000-8000-%012d", i), Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})},
			ServiceAccount: in.InternString(fmt.Sprintf("s%d", of)), Workload: in.InternString(fmt.Sprintf("s%d", of)), Node: in.InternString(fmt.Sprintf("node-%d", i%100)),
			Ports: in.InternPorts([]config.PodPort{{Name: "http", Number: 8080}}), Phase: "Running", Ready: true,
		},
	}
}

// clusterChange alternates between two versions of one object and returns its key.
type clusterChange func(i int) config.Key

func podChange(store *config.MemoryStore) clusterChange {
	key := config.Key{Kind: config.Pod, Namespace: "ns5", Name: "s5-7d4b9c-5"}
	pod := store.Get(key)
	other := *pod
	other.Labels = map[string]string{"app": "s5", "version": "v2"}
	return func(i int) config.Key {
		store.Put([]*config.Resource{&other, pod}[i%2])
		return key
	}
}

func sliceChange(store *config.MemoryStore) clusterChange {
	key := config.Key{Kind: config.EndpointSlice, Namespace: "ns5", Name: "s5-abc"}
	slice := store.Get(key)
	other, spec := *slice, *slice.Spec.(*config.EndpointSliceSpec)
	spec.Endpoints = spec.Endpoints[1:]
	other.Spec = &spec
	return func(i int) config.Key {
		store.Put([]*config.Resource{&other, slice}[i%2])
		return key
	}
}

var changeMakers = map[string]func(*config.MemoryStore) clusterChange{"pod": podChange, "slice": sliceChange}

// The cost of a change must not grow with the number of pods. The test counts the allocated bytes, which do not depend
// on the load of the machine.
func TestCostOfAChangeDoesNotGrowWithThePods(t *testing.T) {
	for name, newChange := range changeMakers {
		few, many := allocatedPerChange(newCluster(clusterServices), newChange), allocatedPerChange(newCluster(20*clusterServices), newChange)
		t.Logf("%s: %d bytes with 1,000 pods, %d with 20,000", name, few, many)
		if many > 2*few {
			t.Errorf("a change of one %s allocates %d bytes with 1,000 pods and %d with 20,000", name, few, many)
		}
	}
}

func allocatedPerChange(store *config.MemoryStore, newChange func(*config.MemoryStore) clusterChange) uint64 {
	change := newChange(store)
	last := Build(nil, store, Options{}, nil)
	const changes = 50
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for i := range changes {
		last = Build(last, store, Options{}, []config.Key{change(i)})
	}
	runtime.ReadMemStats(&after)
	return (after.TotalAlloc - before.TotalAlloc) / changes
}

func BenchmarkClusterChange(b *testing.B) {
	for name, newChange := range changeMakers {
		for _, pods := range []int{1000, 20_000} {
			b.Run(fmt.Sprintf("%s/%d", name, pods), func(b *testing.B) {
				store := newCluster(pods)
				change := newChange(store)
				last := Build(nil, store, Options{}, nil)
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					last = Build(last, store, Options{}, []config.Key{change(i)})
				}
			})
		}
	}
}

func BenchmarkFullBuildOfACluster(b *testing.B) {
	store := newCluster(20_000)
	b.ReportAllocs()
	for b.Loop() {
		Build(nil, store, Options{}, nil)
	}
}

// BenchmarkMemoryOfPods reports the memory of pods and of their endpoints in the store and the registry.
func BenchmarkMemoryOfPods(b *testing.B) {
	const pods = 20_000
	for b.Loop() {
		before := liveBytes()
		store := newCluster(pods)
		stored := liveBytes()
		r := Build(nil, store, Options{}, nil)
		built := liveBytes()
		b.ReportMetric(float64(stored-before)/pods, "stored-bytes/pod")
		b.ReportMetric(float64(built-stored)/pods, "registry-bytes/pod")
		runtime.KeepAlive(store)
		runtime.KeepAlive(r)
	}
}

func liveBytes() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
