package registry

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"unsafe"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

func sameSlice(a, b []Endpoint) bool {
	return len(a) == len(b) && unsafe.SliceData(a) == unsafe.SliceData(b)
}

const ratings = `{apiVersion: v1, kind: Service, metadata: {name: ratings}, spec: {selector: {app: ratings}, ports: [{name: http, port: 9080}]}}`

func TestBuildWithoutChangesReturnsTheSameRegistry(t *testing.T) {
	store := storeOf(t, reviews, ratings, v1, v2)
	before := Build(nil, store, Options{}, nil)
	if Build(before, store, Options{}, []config.Key{}) != before || Build(before, store, Options{}, nil) != before {
		t.Error("Build without changes returns a new registry")
	}
	if Build(before, store, Options{Domain: "other"}, nil).ByHostname("reviews.default.svc.other") == nil {
		t.Error("Build with other options returns the same registry")
	}
}

func TestWorkloadChangeAffectsOnlyItsServices(t *testing.T) {
	const ratingsV1 = `{apiVersion: networking.istio.io/v1, kind: WorkloadEntry, metadata: {name: ratings-v1}, spec: {address: 127.77.9.1, labels: {app: ratings}}}`
	store := storeOf(t, reviews, ratings, v1, v2, ratingsV1)
	before := Build(nil, store, Options{}, nil)
	changed := put(t, store, strings.Replace(v2, "127.77.2.1", "127.77.2.9", 1))
	after := Build(before, store, Options{}, changed)
	if got := endpoints(t, after, host); got != "9080=127.77.1.1:9080 9080=127.77.2.9:9080" {
		t.Errorf("endpoints %s", got)
	}
	if service(t, after, host) != service(t, before, host) {
		t.Error("a changed workload replaced the Service value")
	}
	other := service(t, before, "ratings.default.svc.cluster.local")
	if service(t, after, other.Hostname) != other || !sameSlice(after.Endpoints(other), before.Endpoints(other)) {
		t.Error("a changed workload replaced a service that does not select it")
	}
	if got := before.Endpoints(service(t, before, host))[1].Address; got != "127.77.2.1" {
		t.Errorf("Build modified the previous registry: %s", got)
	}
}

func TestUnchangedEndpointsShareTheSlice(t *testing.T) {
	store := storeOf(t, reviews, v1, v2)
	before := Build(nil, store, Options{}, nil)
	// No service refers to this port.
	changed := put(t, store, strings.Replace(v2, "spec: {", "spec: {ports: {debug: 1}, ", 1))
	after := Build(before, store, Options{}, changed)
	if s := service(t, after, host); !sameSlice(after.Endpoints(s), before.Endpoints(s)) {
		t.Error("equal endpoints are in a new slice")
	}
}

func TestRelabelledWorkloadMovesBetweenServices(t *testing.T) {
	store := storeOf(t, reviews, ratings, v1, v2)
	before := Build(nil, store, Options{}, nil)
	changed := put(t, store, strings.Replace(v2, "app: reviews", "app: ratings", 1))
	after := Build(before, store, Options{}, changed)
	if got := endpoints(t, after, host); got != "9080=127.77.1.1:9080" {
		t.Errorf("reviews: %s", got)
	}
	if got := endpoints(t, after, "ratings.default.svc.cluster.local"); got != "9080=127.77.2.1:9080" {
		t.Errorf("ratings: %s", got)
	}
}

func TestOnlyTheChangedServiceIsReplaced(t *testing.T) {
	store := storeOf(t, reviews, ratings, v1, v2)
	before := Build(nil, store, Options{}, nil)
	changed := put(t, store, strings.Replace(reviews, "port: 9080", "port: 9080, appProtocol: grpc", 1))
	after := Build(before, store, Options{}, changed)
	if service(t, after, host) == service(t, before, host) || service(t, after, host).Ports[0].Protocol != GRPC {
		t.Error("the changed protocol has no effect")
	}
	if s := service(t, after, host); !sameSlice(after.Endpoints(s), before.Endpoints(service(t, before, host))) {
		t.Error("the unchanged endpoints are in a new slice")
	}
	if s := service(t, after, "ratings.default.svc.cluster.local"); s != service(t, before, s.Hostname) {
		t.Error("a change of one service replaced another service")
	}
}

func TestLaterServiceSelectsExistingWorkload(t *testing.T) {
	store := storeOf(t, reviews)
	before := Build(nil, store, Options{}, nil)
	between := Build(before, store, Options{}, put(t, store, strings.Replace(v2, "app: reviews", "app: ratings", 1)))
	after := Build(between, store, Options{}, put(t, store, ratings))
	if got := endpoints(t, after, "ratings.default.svc.cluster.local"); got != "9080=127.77.2.1:9080" {
		t.Errorf("endpoints %s", got)
	}
}

// describe formats all fields of a registry.
func describe(r *Registry) string {
	var b strings.Builder
	for _, s := range r.Services {
		fmt.Fprintf(&b, "%+v\n", *s)
		for _, e := range r.Endpoints(s) {
			fmt.Fprintf(&b, "   %+v\n", e)
		}
	}
	for _, p := range r.Problems {
		fmt.Fprintln(&b, p)
	}
	return b.String()
}

// An incremental build must equal a full build after any sequence of changes, even if the store already contains
// changes that are not in the list of changed keys.
func TestIncrementalBuildEqualsFullBuild(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	store := config.NewMemoryStore()
	var pending []config.Key
	defer store.Subscribe(func(keys []config.Key) { pending = append(pending, keys...) })()
	var last *Registry
	for step := range 600 {
		mutate(t, random, store)
		if random.IntN(3) == 0 {
			continue
		}
		reported := pending
		if random.IntN(4) == 0 && len(reported) > 1 {
			reported, pending = reported[:1], reported[1:] // the list of the next build contains the remaining changes
		} else {
			pending = nil
		}
		last = Build(last, store, Options{}, append([]config.Key{}, reported...))
		if len(pending) > 0 {
			continue
		}
		if got, want := describe(last), describe(Build(nil, store, Options{}, nil)); got != want {
			t.Fatalf("step %d:\ngot\n%s\nwant\n%s", step, got, want)
		}
	}
}

func mutate(t *testing.T, random *rand.Rand, store *config.MemoryStore) {
	name, namespace := fmt.Sprintf("n%d", random.IntN(4)), fmt.Sprintf("ns%d", random.IntN(2))
	app := fmt.Sprintf("a%d", random.IntN(3))
	documents := []string{
		fmt.Sprintf("{apiVersion: v1, kind: Service, metadata: {name: %s, namespace: %s}, spec: {selector: {app: %s}, ports: [{port: %d, targetPort: web}]}}", name, namespace, app, 80+random.IntN(2)),
		fmt.Sprintf("{apiVersion: networking.istio.io/v1, kind: ServiceEntry, metadata: {name: %s, namespace: %s}, spec: {hosts: [%s.com], resolution: STATIC, workloadSelector: {labels: {app: %s}}, ports: [{number: 80, name: http, protocol: HTTP}]}}", name, namespace, app, app),
		fmt.Sprintf("{apiVersion: networking.istio.io/v1, kind: WorkloadEntry, metadata: {name: %s, namespace: %s}, spec: {address: 1.1.1.%d, labels: {app: %s}, ports: {web: 1}}}", name, namespace, 1+random.IntN(3), app),
		fmt.Sprintf("{apiVersion: networking.istio.io/v1, kind: WorkloadEntry, metadata: {name: %s, namespace: %s}, spec: {address: 1.1.1.%d, labels: {app: %s}}}", name, namespace, 1+random.IntN(3), app),
		fmt.Sprintf("{apiVersion: v1, kind: Pod, metadata: {name: %s, namespace: %s, labels: {app: %s}}, spec: {nodeName: node}, status: {podIP: 1.1.2.%d, conditions: [{type: Ready, status: \"True\"}]}}", name, namespace, app, 1+random.IntN(3)),
		fmt.Sprintf("{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: %s, namespace: %s, labels: {kubernetes.io/service-name: %s}}, ports: [{port: 8080}], endpoints: [{addresses: [1.1.2.1], targetRef: {kind: Pod, name: %s}}]}", name, namespace, name, name),
	}
	kinds := []config.Kind{config.Service, config.ServiceEntry, config.WorkloadEntry, config.WorkloadEntry, config.Pod, config.EndpointSlice}
	switch i := random.IntN(len(documents)); random.IntN(4) {
	case 0:
		store.Delete(config.Key{Kind: kinds[i], Namespace: namespace, Name: name})
	default:
		put(t, store, documents[i])
	}
}

func TestBuildIsDeterministic(t *testing.T) {
	store := config.NewMemoryStore()
	random := rand.New(rand.NewPCG(3, 4))
	for range 100 {
		mutate(t, random, store)
	}
	first := Build(nil, store, Options{}, nil)
	for range 20 {
		if again := Build(nil, store, Options{}, nil); !reflect.DeepEqual(describe(first), describe(again)) {
			t.Fatal("two builds of the same store differ")
		}
	}
}

// newLargeMesh returns a mesh of services with ten endpoints each.
func newLargeMesh(t testing.TB, services int) *config.MemoryStore {
	var b strings.Builder
	for i := range services {
		fmt.Fprintf(&b, "---\napiVersion: v1\nkind: Service\nmetadata: {name: s%d}\nspec: {selector: {app: s%d}, ports: [{name: http, port: 80, targetPort: 8080}]}\n", i, i)
		for j := range 10 {
			fmt.Fprintf(&b, "---\napiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {name: s%d-%d}\nspec:\n  address: 10.%d.%d.%d\n  serviceAccount: s%d\n  labels: {app: s%d, version: v%d, security.istio.io/tlsMode: istio}\n  ports: {http: 8080}\n",
				i, j, i/250, i%250, j, i, i, j%2)
		}
	}
	return storeOf(t, b.String())
}

func BenchmarkFullBuildThousandServices(b *testing.B) {
	store := newLargeMesh(b, 1000)
	b.ReportAllocs()
	for b.Loop() {
		Build(nil, store, Options{}, nil)
	}
}

func BenchmarkIncrementalBuildThousandServicesOneWorkloadChanged(b *testing.B) {
	store := newLargeMesh(b, 1000)
	last := Build(nil, store, Options{}, nil)
	doc := "{apiVersion: networking.istio.io/v1, kind: WorkloadEntry, metadata: {name: s5-1}, spec: {address: 10.9.9.%d, labels: {app: s5}}}"
	states := []*config.Resource{}
	for i := range 2 {
		resources, _ := config.Parse("b", []byte(fmt.Sprintf(doc, i)))
		states = append(states, resources...)
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		store.Put(states[i%2])
		last = Build(last, store, Options{}, []config.Key{states[0].Key})
	}
}
