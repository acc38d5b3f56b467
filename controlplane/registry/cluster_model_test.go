package registry

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// clusterModel changes the objects of a small cluster at random. Pods and slices change independently, so slices refer
// to pods that do not exist, exist with another UID, or exist with other labels.
type clusterModel struct {
	*rand.Rand
	store   *config.MemoryStore
	pending []config.Key
}

func (m *clusterModel) name(kind string, n int) string { return fmt.Sprintf("%s%d", kind, m.IntN(n)) }

func (m *clusterModel) oneIn(n int) bool { return m.IntN(n) == 0 }

func (m *clusterModel) change() {
	key := config.Key{Namespace: m.name("ns", 3)}
	var spec any
	labels, annotations := map[string]string(nil), map[string]string(nil)
	switch m.IntN(12) {
	case 0:
		key.Kind, key.Name = config.Service, m.name("s", 4)
		spec, labels, annotations = m.service()
	case 1:
		key.Kind, key.Name = config.ServiceEntry, m.name("e", 3)
		spec = &networking.ServiceEntry{
			Hosts: []string{key.Name + ".example"}, Resolution: networking.ServiceEntry_STATIC,
			WorkloadSelector: &networking.WorkloadSelector{Labels: m.selector()},
			Ports:            []*networking.ServicePort{{Number: 80, Name: "http", Protocol: "HTTP"}},
		}
	case 2:
		key.Kind, key.Name = config.WorkloadEntry, m.name("w", 3)
		spec = &networking.WorkloadEntry{Address: m.address().String(), Labels: m.selector()}
	case 3:
		key.Namespace, key.Kind, key.Name = "", config.Node, m.name("n", 3)
		spec = &config.NodeSpec{Locality: m.name("r", 2)}
	case 4:
		key.Namespace, key.Kind, key.Name = "", config.Namespace, m.name("ns", 3)
		spec, labels = &config.NamespaceSpec{}, map[string]string{"topology.istio.io/network": m.name("net", 2)}
		annotations = map[string]string{distributionAnnotation: m.distribution()}
	case 5, 6, 7, 8:
		key.Kind, key.Name = config.Pod, m.name("p", 6)
		spec, labels = m.pod(), m.selector()
	default:
		key.Kind, key.Name = config.EndpointSlice, m.name("l", 5)
		spec = m.slice()
	}
	if m.pending = append(m.pending, key); m.oneIn(4) {
		m.store.Delete(key)
		return
	}
	m.store.Put(&config.Resource{Key: key, Labels: labels, Annotations: annotations, Spec: spec})
}

func (m *clusterModel) selector() map[string]string {
	labels := map[string]string{"app": m.name("a", 2)}
	if m.oneIn(2) {
		labels["version"] = m.name("v", 2)
	}
	return labels
}

func (m *clusterModel) distribution() string {
	return []string{"", "PreferClose", "PreferSameNode", "x"}[m.IntN(4)]
}

func (m *clusterModel) address() netip.Addr {
	return netip.AddrFrom4([4]byte{10, 0, 0, byte(1 + m.IntN(6))})
}

func (m *clusterModel) service() (spec any, labels, annotations map[string]string) {
	service := &config.ServiceSpec{Type: "ClusterIP", ClusterIP: "None", NodeLocal: m.oneIn(3), TrafficDistribution: m.distribution()}
	for i := range 1 + m.IntN(3) {
		service.Ports = append(service.Ports, config.ServicePort{Name: fmt.Sprintf("port%d", i), Port: uint32(80 + i), Protocol: []string{"TCP", "UDP"}[m.IntN(2)]})
	}
	if m.oneIn(2) {
		service.Selector = m.selector()
	}
	if m.oneIn(2) {
		labels = map[string]string{"istio.io/persistent-session": "cookie"}
	}
	return service, labels, map[string]string{distributionAnnotation: m.distribution()}
}

func (m *clusterModel) pod() *config.PodSpec {
	pod := &config.PodSpec{
		UID: m.name("u", 2), ServiceAccount: m.name("sa", 2), Node: m.name("n", 3), Workload: m.name("w", 2), Phase: "Running",
		Subdomain: m.name("s", 4), Ready: !m.oneIn(4), Terminating: m.oneIn(6),
	}
	switch m.IntN(6) {
	case 0: // no address yet
	case 1:
		pod.Addresses = []netip.Addr{m.address(), netip.MustParseAddr("fd00::1")}
	default:
		pod.Addresses = []netip.Addr{m.address()}
	}
	if m.oneIn(8) {
		pod.Phase = "Failed"
	}
	return pod
}

func (m *clusterModel) slice() *config.EndpointSliceSpec {
	slice := &config.EndpointSliceSpec{Service: m.name("s", 4), AddressType: "IPv4"}
	if m.oneIn(10) {
		slice.AddressType = "FQDN"
	}
	for i := range 1 + m.IntN(3) {
		slice.Ports = append(slice.Ports, config.SlicePort{Name: fmt.Sprintf("port%d", i), Protocol: []string{"TCP", "UDP"}[m.IntN(2)], Number: uint32(8080 + m.IntN(2))})
	}
	for range m.IntN(5) {
		e := config.SliceEndpoint{Address: m.address().String(), Node: m.name("n", 3), Ready: !m.oneIn(3), Serving: m.oneIn(2), Terminating: m.oneIn(2)}
		if !m.oneIn(4) {
			e.Pod, e.PodUID = m.name("p", 6), m.name("u", 2)
		}
		if m.oneIn(5) {
			e.Address = "fd00::1"
		}
		slice.Endpoints = append(slice.Endpoints, e)
	}
	return slice
}

// describeAll formats the content of a registry, and the index of its cluster's objects.
func describeAll(r *Registry) string {
	text := describe(r)
	for _, s := range r.Services {
		text += fmt.Sprintf("%s %+v\n", s.Hostname, r.Datagrams(s))
	}
	for _, namespace := range r.Namespaces() {
		for _, w := range r.SelectedWorkloads(namespace, nil) {
			text += w.Key.String() + "\n"
		}
	}
	index := map[objectName][]string{}
	for name, names := range r.cluster.podSlices.all() {
		index[name] = slices.Sorted(slices.Values(names))
	}
	for name, list := range r.cluster.byService.all() {
		for _, slice := range list {
			index[name] = append(index[name], slice.Name)
		}
	}
	return text + fmt.Sprint(index, len(maps.Collect(r.cluster.slices.all())))
}

func TestRandomChangesOfAClusterEqualAFreshBuild(t *testing.T) {
	m := &clusterModel{Rand: rand.New(rand.NewPCG(7, 7)), store: config.NewMemoryStore()}
	const changes = 10_000
	var last *Registry
	made, compared, endpoints := 0, 0, 0
	for made < changes {
		for range 1 + m.IntN(4) {
			m.change()
			made++
		}
		switch {
		case m.oneIn(3): // the next build merges these changes
			continue
		case m.oneIn(50): // a relist: everything may have changed
			last = Build(last, m.store, Options{}, nil)
		case m.oneIn(4) && len(m.pending) > 1: // the store contains changes of which the build does not know yet
			last = Build(last, m.store, Options{}, slices.Clone(m.pending[:1]))
			m.pending = m.pending[1:]
			continue
		default:
			last = Build(last, m.store, Options{}, slices.Clone(m.pending))
		}
		m.pending = nil
		if !m.oneIn(3) {
			continue
		}
		fresh := Build(nil, m.store, Options{}, nil)
		if got, want := describeAll(last), describeAll(fresh); got != want {
			t.Fatalf("after %d changes:\ngot\n%s\nwant\n%s", made, got, want)
		}
		compared++
		for _, s := range last.Services {
			endpoints += len(last.Endpoints(s))
		}
	}
	if compared < 500 || endpoints < compared {
		t.Errorf("%d comparisons with %d endpoints: the test is weak", compared, endpoints)
	}
}
