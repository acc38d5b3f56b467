package xdsproxy

import (
	gocmp "cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

const endpointType = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"

var testNode = &corev3.Node{Id: "sidecar~10.0.0.1~a.b~b.svc", Cluster: "a.b", UserAgentName: "envoy"}

// versionedControlPlane is a delta control plane that compares versions and sends only changes.
type versionedControlPlane struct {
	mu        sync.Mutex
	resources map[string]map[string]string // type → name → version
	requests  []*discoveryv3.DeltaDiscoveryRequest
}

func newVersionedControlPlane() *versionedControlPlane {
	return &versionedControlPlane{resources: map[string]map[string]string{
		clusterType: {"a": "1", "b": "1"}, endpointType: {"a": "1", "b": "1"}, listenerType: {"in": "1"},
	}}
}

func (k *versionedControlPlane) set(typeURL, name, version string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.resources[typeURL][name] = version
}

func (k *versionedControlPlane) remove(typeURL, name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.resources[typeURL], name)
}

// firstRequests returns the first request of each type on each stream, in order.
func (k *versionedControlPlane) firstRequests() []*discoveryv3.DeltaDiscoveryRequest {
	k.mu.Lock()
	defer k.mu.Unlock()
	return append([]*discoveryv3.DeltaDiscoveryRequest(nil), k.requests...)
}

func (k *versionedControlPlane) answer(r *discoveryv3.DeltaDiscoveryRequest, seen map[string]bool) *discoveryv3.DeltaDiscoveryResponse {
	k.mu.Lock()
	defer k.mu.Unlock()
	first := !seen[r.TypeUrl]
	seen[r.TypeUrl] = true
	if first {
		k.requests = append(k.requests, r)
	}
	if !first && len(r.ResourceNamesSubscribe) == 0 {
		return nil
	}
	wanted := r.ResourceNamesSubscribe
	if len(wanted) == 0 {
		for name := range k.resources[r.TypeUrl] {
			wanted = append(wanted, name)
		}
	}
	// Different control planes use the same nonces.
	answer := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: r.TypeUrl, Nonce: fmt.Sprint(len(seen)), SystemVersionInfo: "s"}
	for _, name := range wanted {
		if version, ok := k.resources[r.TypeUrl][name]; ok && r.InitialResourceVersions[name] != version {
			answer.Resources = append(answer.Resources, &discoveryv3.Resource{Name: name, Version: version, Resource: &anypb.Any{TypeUrl: r.TypeUrl, Value: []byte(name + version)}})
		}
	}
	for name := range r.InitialResourceVersions {
		if _, ok := k.resources[r.TypeUrl][name]; !ok {
			answer.RemovedResources = append(answer.RemovedResources, name)
		}
	}
	return answer
}

func (k *versionedControlPlane) upstream() *fakeControlPlane {
	return &fakeControlPlane{delta: func(s discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
		seen := make(map[string]bool)
		for {
			r, err := s.Recv()
			if err != nil {
				return err
			}
			if a := k.answer(r, seen); a != nil {
				if err := s.Send(a); err != nil {
					return err
				}
			}
		}
	}}
}

// fakeEnvoy is a client that sends requests like Envoy and stores the versions of its resources.
type fakeEnvoy struct {
	t         *testing.T
	stream    deltaClient
	resources map[string]string // "Cluster a" → version
	node      *corev3.Node
}

func newFakeEnvoy(t *testing.T, r *Relay) *fakeEnvoy {
	return &fakeEnvoy{t: t, stream: deltaStream(t, r), resources: make(map[string]string), node: testNode}
}

func (e *fakeEnvoy) send(r *discoveryv3.DeltaDiscoveryRequest) {
	e.t.Helper()
	r.Node, e.node = e.node, nil
	if err := e.stream.Send(r); err != nil {
		e.t.Fatal(err)
	}
}

// accept receives a response and sends an ACK, or a NACK if reason is not empty.
func (e *fakeEnvoy) accept(typeURL, reason string) *discoveryv3.DeltaDiscoveryResponse {
	e.t.Helper()
	r, err := e.stream.Recv()
	if err != nil {
		e.t.Fatal(err)
	}
	if r.TypeUrl != typeURL {
		e.t.Fatalf("got %s, want %s", r.TypeUrl, typeURL)
	}
	answer := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: typeURL, ResponseNonce: r.Nonce}
	if reason != "" {
		answer.ErrorDetail = &rpcstatus.Status{Code: 3, Message: reason}
	} else {
		for _, one := range r.Resources {
			e.resources[shortType(typeURL)+" "+one.Name] = one.Version
		}
		for _, name := range r.RemovedResources {
			delete(e.resources, shortType(typeURL)+" "+name)
		}
	}
	e.send(answer)
	return r
}

// requestAll requests all types, like an Envoy without configuration.
func (e *fakeEnvoy) requestAll(endpoints ...string) {
	e.t.Helper()
	e.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusterType})
	e.accept(clusterType, "")
	e.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: endpointType, ResourceNamesSubscribe: endpoints})
	e.accept(endpointType, "")
	e.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: listenerType})
	e.accept(listenerType, "")
}

func (e *fakeEnvoy) expect(what string, want map[string]string) {
	e.t.Helper()
	if d := cmp.Diff(want, e.resources); d != "" {
		e.t.Errorf("%s: Envoy has unexpected resources (-want +got):\n%s", what, d)
	}
}

// waitStored waits until the relay has saved the configuration later than since.
func waitStored(t *testing.T, r *Relay, since time.Time) {
	t.Helper()
	testenv.Eventually(t, "the last accepted configuration is stored", func() error {
		if k := r.Status().LastGood.Storage; k == nil || !k.Saved.After(since) {
			return fmt.Errorf("%+v", k)
		}
		return nil
	})
}

// testSaveDelay is the delay of saves in tests.
const testSaveDelay = 20 * time.Millisecond

// run runs a relay until stop is called.
func run(t *testing.T, config Config) (r *Relay, stop func()) {
	t.Helper()
	if config.Socket == "" {
		config.Socket = filepath.Join(t.TempDir(), "XDS")
	}
	config.LastGood.saveDelay = gocmp.Or(config.LastGood.saveDelay, testSaveDelay)
	log := &testenv.Buffer{}
	config.Logger = slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	r, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	result := make(chan error, 1)
	go func() { result <- r.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-result; err != nil {
			t.Errorf("Run: %v", err)
		}
		if t.Failed() {
			t.Logf("log of the relay:\n%s", log)
		}
	})
	t.Cleanup(stop)
	return r, stop
}

func TestLastGoodIsServedWithoutControlPlane(t *testing.T) {
	cp := newVersionedControlPlane()
	address, stopControlPlane := cp.upstream().listen(t, "127.0.0.1:0", nil)
	config := Config{Upstreams: []string{address}, Server: Server{Plaintext: true}, LastGood: LastGood{Dirs: []string{t.TempDir()}}}
	relay, stop := run(t, config)
	envoy := newFakeEnvoy(t, relay)
	envoy.requestAll("a", "b")
	all := map[string]string{"Cluster a": "1", "Cluster b": "1", "ClusterLoadAssignment a": "1", "ClusterLoadAssignment b": "1", "Listener in": "1"}
	envoy.expect("at first", all)
	waitStored(t, relay, time.Time{})
	stop()
	stopControlPlane()

	relay, _ = run(t, config)
	envoy = newFakeEnvoy(t, relay)
	envoy.requestAll("a", "b")
	envoy.expect("without a control plane", all)
	if ok, reason := relay.Health(); !ok || !strings.Contains(reason, "last accepted configuration") {
		t.Errorf("health = %v, %q", ok, reason)
	}
	st := relay.Status().LastGood
	if !st.Served || time.Since(st.UpToDate) > time.Minute {
		t.Errorf("status: %+v", st)
	}

	// The control plane starts again with one change, which is all that it sends.
	before := len(cp.firstRequests())
	cp.set(clusterType, "b", "2")
	cp.remove(clusterType, "a")
	cp.upstream().listen(t, address, nil)
	got := envoy.accept(clusterType, "")
	if len(got.Resources) != 1 || got.Resources[0].Name != "b" || len(got.RemovedResources) != 1 || got.RemovedResources[0] != "a" {
		t.Errorf("after the reconnect Envoy received %v", got)
	}
	envoy.accept(endpointType, "")
	envoy.accept(listenerType, "")
	delete(all, "Cluster a")
	all["Cluster b"] = "2"
	envoy.expect("after the return", all)
	waitConnected(t, relay)
	for i, want := range []map[string]string{{"a": "1", "b": "1"}, {"a": "1", "b": "1"}, {"in": "1"}} {
		if got := cp.firstRequests()[before+i].InitialResourceVersions; !cmp.Equal(got, want) {
			t.Errorf("request %d contains the versions %v, want %v", i, got, want)
		}
	}
	if ok, reason := relay.Health(); !ok || reason != "" || relay.Status().LastGood.Served {
		t.Errorf("health = %v, %q", ok, reason)
	}
}

func TestFailoverRequestsOnlyDifferences(t *testing.T) {
	cp := newVersionedControlPlane()
	address, stop := cp.upstream().listen(t, "127.0.0.1:0", nil)
	relay, _ := run(t, Config{Upstreams: []string{address}, Server: Server{Plaintext: true}})
	envoy := newFakeEnvoy(t, relay)
	envoy.requestAll("a", "b")
	waitConnected(t, relay)
	stop()
	testenv.Eventually(t, "the relay reports the lost control plane", func() error {
		if relay.Status().Connected {
			return errors.New("connected")
		}
		return nil
	})
	// Meanwhile Envoy changes its subscription.
	envoy.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: endpointType, ResourceNamesSubscribe: []string{"c"}, ResourceNamesUnsubscribe: []string{"a"}})
	before := len(cp.firstRequests())
	cp.set(endpointType, "c", "7")
	cp.upstream().listen(t, address, nil)
	for _, typeURL := range []string{clusterType, endpointType, listenerType} {
		envoy.accept(typeURL, "")
	}
	delete(envoy.resources, "ClusterLoadAssignment a")
	envoy.expect("after the move", map[string]string{
		"Cluster a": "1", "Cluster b": "1", "ClusterLoadAssignment b": "1", "ClusterLoadAssignment c": "7", "Listener in": "1"})
	requested := cp.firstRequests()[before:]
	if got := requested[0]; got.GetNode().GetId() != testNode.Id || len(got.ResourceNamesSubscribe) != 0 || len(got.InitialResourceVersions) != 2 {
		t.Errorf("the first request after the failover: %v", got)
	}
	if got := requested[1]; !cmp.Equal(got.ResourceNamesSubscribe, []string{"b", "c"}) || !cmp.Equal(got.InitialResourceVersions, map[string]string{"b": "1"}) {
		t.Errorf("the second request after the failover: %v", got)
	}
	// The new control plane receives the ACKs of its own responses.
	cp.set(endpointType, "d", "1")
	envoy.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: endpointType, ResourceNamesSubscribe: []string{"d"}})
	envoy.accept(endpointType, "")
	if envoy.resources["ClusterLoadAssignment d"] != "1" {
		t.Errorf("Envoy has the resources %v", envoy.resources)
	}
}

func TestRejectedConfigurationIsNotStored(t *testing.T) {
	cp := newVersionedControlPlane()
	address, stopControlPlane := cp.upstream().listen(t, "127.0.0.1:0", nil)
	config := Config{Upstreams: []string{address}, Server: Server{Plaintext: true}, LastGood: LastGood{Dirs: []string{t.TempDir()}}}
	relay, stop := run(t, config)
	envoy := newFakeEnvoy(t, relay)
	envoy.requestAll("a", "b")
	waitStored(t, relay, time.Time{})

	// Of two clusters in one response, the valid one is stored.
	cp.set(clusterType, "a", "bad")
	cp.set(clusterType, "new", "1")
	before := time.Now()
	envoy.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusterType, ResourceNamesSubscribe: []string{"a", "new"}})
	envoy.accept(clusterType, "Error adding/updating cluster(s) a: no such thing")
	cp.set(endpointType, "a", "bad")
	envoy.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: endpointType, ResourceNamesSubscribe: []string{"a"}})
	envoy.accept(endpointType, "bad endpoints")
	waitStored(t, relay, before)
	stop()
	stopControlPlane()

	relay, _ = run(t, config)
	envoy = newFakeEnvoy(t, relay)
	envoy.requestAll("a", "b")
	envoy.expect("without a control plane", map[string]string{
		"Cluster a": "1", "Cluster b": "1", "Cluster new": "1", "ClusterLoadAssignment a": "1", "ClusterLoadAssignment b": "1", "Listener in": "1"})
}

// TestSilentControlPlaneDoesNotBlockEnvoy: the control plane accepts connections and does not answer, like a frozen
// process.
func TestSilentControlPlaneDoesNotBlockEnvoy(t *testing.T) {
	cp := newVersionedControlPlane()
	address, stopControlPlane := cp.upstream().listen(t, "127.0.0.1:0", nil)
	config := Config{Upstreams: []string{address}, Server: Server{Plaintext: true}, LastGood: LastGood{Dirs: []string{t.TempDir()}, SilenceTimeout: 200 * time.Millisecond}}
	relay, stop := run(t, config)
	newFakeEnvoy(t, relay).requestAll("a", "b")
	waitStored(t, relay, time.Time{})
	stop()
	stopControlPlane()

	silent := &fakeControlPlane{delta: func(s discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
		<-s.Context().Done()
		return nil
	}}
	_, stopSilent := silent.listen(t, address, nil)
	relay, _ = run(t, config)
	envoy := newFakeEnvoy(t, relay)
	envoy.requestAll("a", "b")
	stopSilent()

	before := len(cp.firstRequests())
	cp.remove(listenerType, "in")
	cp.upstream().listen(t, address, nil)
	for _, typeURL := range []string{clusterType, endpointType, listenerType} {
		envoy.accept(typeURL, "")
	}
	envoy.expect("after the return", map[string]string{"Cluster a": "1", "Cluster b": "1", "ClusterLoadAssignment a": "1", "ClusterLoadAssignment b": "1"})
	if got := cp.firstRequests()[before+2].InitialResourceVersions; !cmp.Equal(got, map[string]string{"in": "1"}) {
		t.Errorf("the request contains the listeners %v", got)
	}
}

func TestOtherNodeOrNoDirectoryServesNothing(t *testing.T) {
	cp := newVersionedControlPlane()
	address, stopControlPlane := cp.upstream().listen(t, "127.0.0.1:0", nil)
	config := Config{Upstreams: []string{address}, Server: Server{Plaintext: true}, LastGood: LastGood{Dirs: []string{t.TempDir()}}}
	relay, stop := run(t, config)
	newFakeEnvoy(t, relay).requestAll("a", "b")
	waitStored(t, relay, time.Time{})
	stop()
	stopControlPlane()

	for name, test := range map[string]struct {
		dirs []string
		node *corev3.Node
	}{
		"another node": {config.LastGood.Dirs, &corev3.Node{Id: "sidecar~10.0.0.2~a.b~b.svc", Cluster: "a.b"}},
		"no Envoy":     {config.LastGood.Dirs, &corev3.Node{Id: testNode.Id, Cluster: "a.b", UserAgentName: "gRPC Go"}},
		"switched off": {nil, testNode},
	} {
		config.LastGood = LastGood{Dirs: test.dirs, ConnectWait: time.Millisecond}
		relay, stop := run(t, config)
		envoy := newFakeEnvoy(t, relay)
		envoy.node = test.node
		envoy.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusterType})
		testenv.Eventually(t, "the relay received the request", func() error {
			if typeStatus(relay, clusterType).Requests == 0 {
				return errors.New("not yet")
			}
			return nil
		})
		if ok, reason := relay.Health(); ok {
			t.Errorf("%s: Envoy is reported ready: %s", name, reason)
		}
		stop()
		if _, err := envoy.stream.Recv(); err == nil {
			t.Errorf("%s: Envoy received a response", name)
		}
	}
}

func TestUnusableDirectoryDoesNotPreventServing(t *testing.T) {
	address, _ := newVersionedControlPlane().upstream().listen(t, "127.0.0.1:0", nil)
	dir := t.TempDir()
	config := Config{Upstreams: []string{address}, Server: Server{Plaintext: true}, LastGood: LastGood{Dirs: []string{dir}}}
	first, _ := run(t, config)
	newFakeEnvoy(t, first).requestAll("a", "b")
	second, _ := run(t, config)
	newFakeEnvoy(t, second).requestAll("a", "b")
	testenv.Eventually(t, "the second relay reports that the directory is in use", func() error {
		if k := second.Status().LastGood.Storage; k.Directory != "" || !strings.Contains(k.Reason, "another process") {
			return fmt.Errorf("%+v", k)
		}
		return nil
	})
	config.LastGood.Dirs = []string{"/proc/no/such"}
	third, _ := run(t, config)
	newFakeEnvoy(t, third).requestAll("a", "b")
}

func TestSotwLastGoodIsServed(t *testing.T) {
	address, stopControlPlane := newAnsweringControlPlane(encode(t, testNode)).listen(t, "127.0.0.1:0", nil)
	config := Config{Upstreams: []string{address}, Server: Server{Plaintext: true}, LastGood: LastGood{Dirs: []string{t.TempDir()}}}
	relay, stop := run(t, config)
	exchange := func(relay *Relay) (versions []string) {
		stream := sotwStream(t, relay)
		for i, typeURL := range []string{clusterType, endpointType, listenerType} {
			request := &discoveryv3.DiscoveryRequest{TypeUrl: typeURL}
			if i == 0 {
				request.Node = testNode
			}
			if typeURL == endpointType {
				request.ResourceNames = []string{testNode.Id}
			}
			send(t, stream, request)
			r := receive(t, stream)
			if r.TypeUrl != typeURL || len(r.Resources) != 1 {
				t.Fatalf("got %v", r)
			}
			versions = append(versions, r.VersionInfo)
			send(t, stream, &discoveryv3.DiscoveryRequest{TypeUrl: typeURL, VersionInfo: r.VersionInfo, ResponseNonce: r.Nonce, ResourceNames: request.ResourceNames})
		}
		return versions
	}
	want := exchange(relay)
	waitStored(t, relay, time.Time{})
	stop()
	stopControlPlane()

	relay, _ = run(t, config)
	if got := exchange(relay); !cmp.Equal(got, want) {
		t.Errorf("served versions %v, want %v", got, want)
	}
	heard := make(chan *discoveryv3.DiscoveryRequest, 10)
	back := &fakeControlPlane{sotw: func(s discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
		for {
			r, err := s.Recv()
			if err != nil {
				return err
			}
			heard <- r
		}
	}}
	back.listen(t, address, nil)
	for i, typeURL := range []string{clusterType, endpointType, listenerType} {
		if r := <-heard; r.TypeUrl != typeURL || r.VersionInfo != want[i] || r.ResponseNonce != "" {
			t.Errorf("request %d after the control plane started again: %v", i, r)
		}
	}
}
