package translate_test

import (
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
)

// TestSameMeshYieldsSameBytes independent of the order of documents, with a full or an incremental build.
func TestSameMeshYieldsSameBytes(t *testing.T) {
	for _, tp := range topics(t) {
		var all []*config.Resource
		for _, kind := range config.Kinds() {
			all = append(all, tp.mesh.store.List(kind)...)
		}
		for seed := range uint64(3) {
			random := rand.New(rand.NewPCG(seed, 1))
			random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
			grown := newTestMesh(t, tp.mesh.mesh)
			for _, r := range all {
				grown.store.Put(r) // Put sets the creation time
				grown.rebuild([]config.Key{r.Key})
			}
			for _, description := range tp.proxies {
				p := proxy(t, description)
				if want, got := listResources(t, tp.mesh.snap, description), listResources(t, grown.snap, description); !reflect.DeepEqual(want, got) {
					t.Errorf("%s, %s: the configuration depends on the order of the documents", tp.name, p.ID)
				}
			}
		}
	}
}

// listResources returns names and versions in the order of generation.
func listResources(t *testing.T, snap *snapshot.Snapshot, description string) []string {
	t.Helper()
	var out []string
	for _, typeURL := range xds.Order {
		resources, err := generate(snap, proxy(t, description), typeURL, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range resources {
			out = append(out, r.Name+" "+r.Version)
		}
	}
	return out
}

// TestProxiesShareResources: identical resources of two proxies are built and marshalled once, and remain cached when
// another resource changes.
func TestProxiesShareResources(t *testing.T) {
	m := newTestMesh(t, nil, affectedMesh, affectedSteps[0], affectedSteps[3])
	get := func(description, typeURL, name string) *xds.Resource {
		t.Helper()
		resources, err := generate(m.snap, proxy(t, description), typeURL, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range resources {
			if r.Name == name {
				return r
			}
		}
		t.Fatalf("%s has no resources of type %s", description, name)
		return nil
	}
	const one, two = "sidecar x.two 127.203.27.1 app=x", "sidecar y.two 127.203.28.1 app=y"
	const cluster = "outbound|80||b.two.svc.cluster.local"
	routes, clusters, endpoints := get(one, xds.RouteType, "http_proxy"), get(one, xds.ClusterType, cluster), get(one, xds.EndpointType, cluster)
	if get(two, xds.RouteType, "http_proxy") != routes || get(two, xds.ClusterType, cluster) != clusters || get(two, xds.EndpointType, cluster) != endpoints {
		t.Error("two proxies of one namespace do not share their resources")
	}
	if clusters.Endpoints != cluster {
		t.Errorf("the cluster's load assignment is %q", clusters.Endpoints)
	}
	m.step(affectedSteps[1]) // an endpoint of another service
	if get(one, xds.RouteType, "http_proxy") != routes || get(one, xds.ClusterType, cluster) != clusters || get(one, xds.EndpointType, cluster) != endpoints {
		t.Error("a changed endpoint of another service rebuilt the resources")
	}
}

func TestUnknownNamesAreSkipped(t *testing.T) {
	m := newTestMesh(t, nil, affectedMesh)
	for _, description := range affectedProxies {
		for _, typeURL := range []string{xds.EndpointType, xds.RouteType} {
			got, err := generate(m.snap, proxy(t, description), typeURL, []string{
				"", "x", "outbound|80||nobody", "outbound|x||b.two.svc.cluster.local", "outbound|80|nosubset|b.two.svc.cluster.local",
				"outbound|81||b.two.svc.cluster.local", "inbound|1||", "b.two.svc.cluster.local:1", ":", "http.1", "https.1.a.b.c",
			})
			if err != nil || len(got) != 0 {
				t.Errorf("%s: %s: %v %v", description, typeURL, got, err)
			}
		}
	}
}
