package kube

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	meshconfig "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/internal/testcluster"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// runningSource is a source that reads a real API server.
type runningSource struct {
	*Source
	t *testing.T

	mu      sync.Mutex
	changes []config.Key
}

// openSource returns a source that does not run yet.
func openSource(t *testing.T, kubeconfig string) *runningSource {
	t.Helper()
	client := newClusterClient(t, kubeconfig)
	source, err := NewSource(SourceConfig{Client: client})
	if err != nil {
		t.Fatal(err)
	}
	s := &runningSource{Source: source, t: t}
	source.Subscribe(func(changed []config.Key) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.changes = append(s.changes, changed...)
	})
	return s
}

// run runs the source until the test ends.
func (s *runningSource) run() {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = s.Run(ctx) })
	s.t.Cleanup(func() {
		cancel()
		running.Wait()
	})
}

func (s *runningSource) awaitSynced() {
	s.t.Helper()
	testenv.Eventually(s.t, "the source is synced", func() error {
		if !isClosed(s.Synced()) {
			_, reason := s.Health()
			return fmt.Errorf("it is not: %s", reason)
		}
		return nil
	})
}

func startSource(t *testing.T, cluster *testcluster.Cluster) *runningSource {
	t.Helper()
	s := openSource(t, cluster.Kubeconfig)
	s.run()
	s.awaitSynced()
	return s
}

// await waits until a resource exists and check accepts it, and returns it.
func (s *runningSource) await(key config.Key, check func(*config.Resource) bool) *config.Resource {
	s.t.Helper()
	var r *config.Resource
	testenv.Eventually(s.t, key.String()+" has the expected content", func() error {
		if r = s.Get(key); r == nil || check != nil && !check(r) {
			return fmt.Errorf("it is %+v", r)
		}
		return nil
	})
	return r
}

func (s *runningSource) awaitRemoval(key config.Key) {
	s.t.Helper()
	testenv.Eventually(s.t, key.String()+" is removed", func() error {
		if s.Get(key) != nil {
			return fmt.Errorf("it exists")
		}
		return nil
	})
}

// takeChanges returns the keys of the namespace that changed since the last call.
func (s *runningSource) takeChanges(namespace string) (changes []config.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, key := range s.changes {
		if key.Namespace == namespace {
			changes = append(changes, key)
		}
	}
	s.changes = nil
	return changes
}

func isEndpoint(pod testcluster.Object) func(*config.Resource) bool {
	return func(r *config.Resource) bool {
		return slices.ContainsFunc(r.Spec.(*config.EndpointSliceSpec).Endpoints, func(e config.SliceEndpoint) bool {
			return e.Pod == pod.Name() && e.PodUID == pod.UID() && e.Ready
		})
	}
}

func (s *runningSource) awaitEndpoint(namespace string, pod testcluster.Object) {
	s.t.Helper()
	testenv.Eventually(s.t, "pod "+pod.Name()+" is a ready endpoint", func() error {
		for _, r := range s.List(config.EndpointSlice) {
			if r.Namespace == namespace && isEndpoint(pod)(r) {
				return nil
			}
		}
		return fmt.Errorf("it is in no EndpointSlice")
	})
}

const webManifest = `
apiVersion: v1
kind: Service
metadata: {name: web, namespace: NAMESPACE}
spec: {selector: {app: web}, ports: [{name: http, port: 80, targetPort: web}]}`

func podManifest(namespace, name string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: %s, labels: {app: web}}
spec: {containers: [{name: c, image: i, ports: [{name: web, containerPort: 8080}]}]}`, name, namespace)
}

func fillNamespace(namespace, manifest string) string {
	return strings.ReplaceAll(manifest, "NAMESPACE", namespace)
}

func TestObjectsOfAClusterReachTheStore(t *testing.T) {
	cluster := testcluster.Shared(t)
	applyDefinitions(t, cluster)
	s := startSource(t, cluster)
	namespace := cluster.Namespace(t, "team", "a")
	cluster.Apply(t, fillNamespace(namespace, webManifest))
	pod := cluster.RunPod(t, podManifest(namespace, "web-1"), "10.77.0.1")

	s.await(config.Key{Kind: config.Namespace, Name: namespace}, func(r *config.Resource) bool { return r.Labels["team"] == "a" })
	s.await(config.Key{Kind: config.Service, Namespace: namespace, Name: "web"}, func(r *config.Resource) bool {
		return r.Spec.(*config.ServiceSpec).Ports[0].TargetPortName == "web" && !r.Created.IsZero()
	})
	s.await(config.Key{Kind: config.Pod, Namespace: namespace, Name: "web-1"}, func(r *config.Resource) bool {
		spec := r.Spec.(*config.PodSpec)
		return spec.UID == pod.UID() && spec.Ready && len(spec.Addresses) == 1
	})
	s.awaitEndpoint(namespace, pod)
	account := cluster.Get(t, "/api/v1/namespaces/"+namespace+"/serviceaccounts/default")
	testenv.Eventually(t, "the service account is known", func() error {
		if uid, ok := s.AccountUID(namespace, "default"); !ok || uid != account.UID() {
			return fmt.Errorf("its UID is %q (%v), want %s", uid, ok, account.UID())
		}
		return nil
	})
	if err := cluster.Delete(t.Context(), "/api/v1/namespaces/"+namespace+"/pods/web-1"); err != nil {
		t.Fatal(err)
	}
	s.awaitRemoval(config.Key{Kind: config.Pod, Namespace: namespace, Name: "web-1"})
	assertMetrics(t, s)
}

func assertMetrics(t *testing.T, s *runningSource) {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(s)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]float64{}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			if m.GetLabel()[0].GetValue() == "Service" {
				values[family.GetName()] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
	}
	for _, name := range []string{"pilotfish_kube_objects", "pilotfish_kube_bytes", "pilotfish_kube_lists_total", "pilotfish_kube_last_event_timestamp_seconds"} {
		if values[name] <= 0 {
			t.Errorf("%s of Services is %v", name, values[name])
		}
	}
	if values["pilotfish_kube_lag_seconds"] != 0 {
		t.Errorf("the API server is available, but the lag is %v", values["pilotfish_kube_lag_seconds"])
	}
}

const routeManifest = `
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: web, namespace: NAMESPACE}
spec: {hosts: [web], http: [{timeout: TIMEOUT, route: [{destination: {host: web}}]}]}`

func timeoutOf(r *config.Resource) string {
	return r.Spec.(*networking.VirtualService).GetHttp()[0].GetTimeout().AsDuration().String()
}

func TestDocumentsOfAClusterReachTheStore(t *testing.T) {
	cluster := testcluster.Shared(t)
	applyDefinitions(t, cluster)
	s := startSource(t, cluster)
	namespace := cluster.Namespace(t)
	route := strings.ReplaceAll(fillNamespace(namespace, routeManifest), "TIMEOUT", "3s")
	key := config.Key{Kind: config.VirtualService, Namespace: namespace, Name: "web"}
	cluster.Apply(t, route)
	r := s.await(key, func(r *config.Resource) bool { return timeoutOf(r) == "3s" })
	if r.Created.IsZero() || r.Origin.File != key.String() {
		t.Errorf("the document was created at %s and is at %s", r.Created, r.Origin)
	}

	// The API server accepts a route to a destination without a host, and the control plane does not.
	invalid := strings.Replace(strings.Replace(route, "3s", "4s", 1), "{host: web}", `{host: "a..b"}`, 1)
	cluster.Apply(t, invalid)
	testenv.Eventually(t, "the invalid document is reported", func() error {
		for _, p := range s.Problems() {
			if p.Key == key && p.Severity == config.Error && strings.HasPrefix(p.Field, "spec.http[0].route[0].destination.host") && p.At.File == key.String() {
				return nil
			}
		}
		return fmt.Errorf("the problems are %v", s.Problems())
	})
	if got := timeoutOf(s.Get(key)); got != "3s" {
		t.Errorf("the timeout of the document in force is %s, want that of the last accepted version", got)
	}
	if i := slices.IndexFunc(s.Documents(), func(d config.Document) bool { return d.Key == key }); i < 0 || s.Documents()[i].State != config.Stale {
		t.Errorf("the documents are %v, want %s with the state %q", s.Documents(), key, config.Stale)
	}
	cluster.Apply(t, strings.ReplaceAll(route, "3s", "5s"))
	s.await(key, func(r *config.Resource) bool { return timeoutOf(r) == "5s" })
	if err := cluster.Delete(t.Context(), "/apis/networking.istio.io/v1/namespaces/"+namespace+"/virtualservices/web"); err != nil {
		t.Fatal(err)
	}
	s.awaitRemoval(key)
}

func TestDefinitionsAppearAndDisappear(t *testing.T) {
	const definition = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/proxyconfigs.networking.istio.io"
	cluster := testcluster.Shared(t)
	applyDefinitions(t, cluster)
	if err := cluster.Delete(t.Context(), definition); err != nil {
		t.Fatal(err)
	}
	cluster.WaitForObject(t, "the definition is deleted", definition, func(o testcluster.Object) error {
		if o != nil {
			return fmt.Errorf("it exists")
		}
		return nil
	})
	s := startSource(t, cluster) // a missing definition is not fatal
	namespace := cluster.Namespace(t)
	key := config.Key{Kind: config.ProxyConfig, Namespace: namespace, Name: "p"}
	for range 2 {
		applyDefinitions(t, cluster)
		cluster.Apply(t, fillNamespace(namespace, `
apiVersion: networking.istio.io/v1beta1
kind: ProxyConfig
metadata: {name: p, namespace: NAMESPACE}
spec: {concurrency: 2}`))
		s.await(key, nil)
		if err := cluster.Delete(t.Context(), definition); err != nil {
			t.Fatal(err)
		}
		s.awaitRemoval(key)
		testenv.Eventually(t, "the kind is not read any more", func() error {
			if s.feed(string(config.ProxyConfig)) != nil {
				return fmt.Errorf("it has a feed")
			}
			return nil
		})
		if ok, reason := s.Health(); !ok {
			t.Errorf("without the definition, the source is unhealthy: %s", reason)
		}
	}
}

func TestDiscoverySelectorsFilterObjects(t *testing.T) {
	cluster := testcluster.Shared(t)
	applyDefinitions(t, cluster)
	selected, other := cluster.Namespace(t, "mesh", "yes"), cluster.Namespace(t)
	for _, namespace := range []string{selected, other} {
		cluster.Apply(t, fillNamespace(namespace, webManifest))
		cluster.Apply(t, strings.ReplaceAll(fillNamespace(namespace, routeManifest), "TIMEOUT", "3s"))
	}
	keys := func(namespace string) []config.Key {
		return []config.Key{{Kind: config.Service, Namespace: namespace, Name: "web"}, {Kind: config.VirtualService, Namespace: namespace, Name: "web"}}
	}
	selectors := &meshconfig.MeshConfig{DiscoverySelectors: []*meshconfig.LabelSelector{{MatchLabels: map[string]string{"mesh": "yes"}}}}
	s := openSource(t, cluster.Kubeconfig)
	s.UseMesh(selectors)
	s.run()
	s.awaitSynced()
	for _, key := range keys(selected) {
		s.await(key, nil)
	}
	if changes := s.takeChanges(other); len(changes) > 0 {
		t.Errorf("objects of a namespace that is not selected were stored: %v", changes)
	}

	// A namespace is selected when its label is added, and is not when it is removed.
	patch := func(value any) {
		cluster.Patch(t, "/api/v1/namespaces/"+other, testcluster.Object{"metadata": testcluster.Object{"labels": testcluster.Object{"mesh": value}}})
	}
	patch("yes")
	for _, key := range keys(other) {
		s.await(key, nil)
	}
	patch(nil)
	for _, key := range keys(other) {
		s.awaitRemoval(key)
	}
	// A new namespace is selected with its objects.
	fresh := cluster.Namespace(t, "mesh", "yes")
	cluster.Apply(t, fillNamespace(fresh, webManifest))
	s.await(keys(fresh)[0], nil)
	// The selectors change at run time.
	s.UseMesh(&meshconfig.MeshConfig{})
	for _, key := range keys(other) {
		s.await(key, nil)
	}
	s.UseMesh(selectors)
	for _, key := range keys(other) {
		s.awaitRemoval(key)
	}
	if s.Get(keys(selected)[0]) == nil {
		t.Error("an object of a selected namespace was removed")
	}
}

func TestMissingPermissionsAreNamed(t *testing.T) {
	cluster := testcluster.Shared(t)
	s := openSource(t, cluster.UserKubeconfig(t, "nobody"))
	s.run()
	testenv.Eventually(t, "the source names the missing permission", func() error {
		ok, reason := s.Health()
		if ok || !strings.Contains(reason, "Namespace (") || !strings.Contains(reason, "forbidden") || !strings.Contains(reason, "Pod") {
			return fmt.Errorf("healthy: %v; reason: %s", ok, reason)
		}
		return nil
	})
	if isClosed(s.Synced()) {
		t.Error("the source is synced without permissions")
	}
}

// TestRestartOfTheAPIServerChangesNothing: while the API server is away, the objects stay in force. After its return,
// only changed objects are published.
func TestRestartOfTheAPIServerChangesNothing(t *testing.T) {
	cluster := testcluster.Shared(t)
	applyDefinitions(t, cluster)
	s := startSource(t, cluster)
	namespace := cluster.Namespace(t)
	cluster.Apply(t, fillNamespace(namespace, webManifest))
	cluster.Apply(t, strings.ReplaceAll(fillNamespace(namespace, routeManifest), "TIMEOUT", "3s"))
	pod := cluster.RunPod(t, podManifest(namespace, "web-1"), "10.77.0.1")
	service := config.Key{Kind: config.Service, Namespace: namespace, Name: "web"}
	route := config.Key{Kind: config.VirtualService, Namespace: namespace, Name: "web"}
	s.await(service, nil)
	s.await(route, nil)
	s.awaitEndpoint(namespace, pod)
	s.takeChanges(namespace)

	cluster.Kill(t, testcluster.APIServer)
	testenv.Eventually(t, "the source reports that the API server is away", func() error {
		if ok, reason := s.Health(); ok || !strings.Contains(reason, "the last known objects stay in force") {
			return fmt.Errorf("healthy: %v; reason: %s", ok, reason)
		}
		return nil
	})
	if s.Get(service) == nil || s.Get(route) == nil {
		t.Error("without the API server, objects were removed")
	}
	cluster.Restart(t, testcluster.APIServer)
	testenv.Eventually(t, "the source reads the API server again", func() error {
		if ok, reason := s.Health(); !ok {
			return fmt.Errorf("%s", reason)
		}
		return nil
	})
	// An object of each kind that was created after the restart proves that the kind is read again.
	cluster.Apply(t, strings.ReplaceAll(fillNamespace(namespace, webManifest), "name: web,", "name: after,"))
	cluster.Apply(t, strings.ReplaceAll(strings.ReplaceAll(fillNamespace(namespace, routeManifest), "TIMEOUT", "3s"), "name: web,", "name: after,"))
	after := cluster.RunPod(t, podManifest(namespace, "after"), "10.77.0.2")
	s.await(config.Key{Kind: config.Service, Namespace: namespace, Name: "after"}, nil)
	s.await(config.Key{Kind: config.VirtualService, Namespace: namespace, Name: "after"}, nil)
	s.await(config.Key{Kind: config.Pod, Namespace: namespace, Name: "after"}, nil)
	s.awaitEndpoint(namespace, after)
	for _, key := range s.takeChanges(namespace) {
		if key == service || key == route || key.Kind == config.Pod && key.Name == pod.Name() {
			t.Errorf("the unchanged object %s was published again", key)
		}
	}
}
