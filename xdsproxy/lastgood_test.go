package xdsproxy

import (
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

// keepingControlPlane is a delta control plane that keeps versions: it sends what differs from what the client has.
type keepingControlPlane struct {
	mu        sync.Mutex
	resources map[string]map[string]string // type → name → version
	opened    []*discoveryv3.DeltaDiscoveryRequest
}

func newKeepingControlPlane() *keepingControlPlane {
	return &keepingControlPlane{resources: map[string]map[string]string{
		clusterType: {"a": "1", "b": "1"}, endpointType: {"a": "1", "b": "1"}, listenerType: {"in": "1"},
	}}
}

func (k *keepingControlPlane) set(typeURL, name, version string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.resources[typeURL][name] = version
}

func (k *keepingControlPlane) remove(typeURL, name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.resources[typeURL], name)
}

// asked are the first requests of each type on each stream, in order.
func (k *keepingControlPlane) asked() []*discoveryv3.DeltaDiscoveryRequest {
	k.mu.Lock()
	defer k.mu.Unlock()
	return append([]*discoveryv3.DeltaDiscoveryRequest(nil), k.opened...)
}

func (k *keepingControlPlane) answer(r *discoveryv3.DeltaDiscoveryRequest, seen map[string]bool) *discoveryv3.DeltaDiscoveryResponse {
	k.mu.Lock()
	defer k.mu.Unlock()
	first := !seen[r.TypeUrl]
	seen[r.TypeUrl] = true
	if first {
		k.opened = append(k.opened, r)
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
	// Nonces of different control planes are the same ones.
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

func (k *keepingControlPlane) upstream() *upstream {
	return &upstream{delta: func(s discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
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

// envoyLike is a client that asks as Envoy does, and holds what it gets.
type envoyLike struct {
	t      *testing.T
	stream deltaClient
	holds  map[string]string // "Cluster a" → version
	node   *corev3.Node
}

func newEnvoyLike(t *testing.T, r *Relay) *envoyLike {
	return &envoyLike{t: t, stream: deltaStream(t, r), holds: make(map[string]string), node: testNode}
}

func (e *envoyLike) send(r *discoveryv3.DeltaDiscoveryRequest) {
	e.t.Helper()
	r.Node, e.node = e.node, nil
	if err := e.stream.Send(r); err != nil {
		e.t.Fatal(err)
	}
}

// take receives a response and accepts it, or rejects it with a reason.
func (e *envoyLike) take(typeURL, reason string) *discoveryv3.DeltaDiscoveryResponse {
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
			e.holds[shortType(typeURL)+" "+one.Name] = one.Version
		}
		for _, name := range r.RemovedResources {
			delete(e.holds, shortType(typeURL)+" "+name)
		}
	}
	e.send(answer)
	return r
}

// start asks for everything, as an Envoy does that has nothing.
func (e *envoyLike) start(endpoints ...string) {
	e.t.Helper()
	e.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusterType})
	e.take(clusterType, "")
	e.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: endpointType, ResourceNamesSubscribe: endpoints})
	e.take(endpointType, "")
	e.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: listenerType})
	e.take(listenerType, "")
}

func (e *envoyLike) expect(what string, want map[string]string) {
	e.t.Helper()
	if d := cmp.Diff(want, e.holds); d != "" {
		e.t.Errorf("%s: Envoy holds something else (-want +got):\n%s", what, d)
	}
}

// kept waits until the relay has kept something whole since a moment.
func kept(t *testing.T, r *Relay, since time.Time) {
	t.Helper()
	testenv.Eventually(t, "the last good configuration is kept", func() error {
		if k := r.Status().LastGood.Kept; k == nil || !k.Marked.After(since) {
			return fmt.Errorf("%+v", k)
		}
		return nil
	})
}

// run runs a relay until stop is called.
func run(t *testing.T, config Config) (r *Relay, stop func()) {
	t.Helper()
	if config.Socket == "" {
		config.Socket = filepath.Join(t.TempDir(), "XDS")
	}
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
			t.Logf("the relay said:\n%s", log)
		}
	})
	t.Cleanup(stop)
	return r, stop
}

func TestAgentThatStartsWithoutAControlPlaneServesTheLastGoodConfiguration(t *testing.T) {
	cp := newKeepingControlPlane()
	address, stopControlPlane := cp.upstream().listen(t, "127.0.0.1:0", nil)
	config := Config{Upstreams: []string{address}, Server: Server{Plaintext: true}, LastGood: LastGood{Dirs: []string{t.TempDir()}}}
	relay, stop := run(t, config)
	envoy := newEnvoyLike(t, relay)
	envoy.start("a", "b")
	all := map[string]string{"Cluster a": "1", "Cluster b": "1", "ClusterLoadAssignment a": "1", "ClusterLoadAssignment b": "1", "Listener in": "1"}
	envoy.expect("at first", all)
	kept(t, relay, time.Time{})
	stop()
	stopControlPlane()

	relay, _ = run(t, config)
	envoy = newEnvoyLike(t, relay)
	envoy.start("a", "b")
	envoy.expect("without a control plane", all)
	if ok, reason := relay.Health(); !ok || !strings.Contains(reason, "last good configuration") {
		t.Errorf("health = %v, %q", ok, reason)
	}
	st := relay.Status().LastGood
	if !st.Served || time.Since(st.UpToDate) > time.Minute {
		t.Errorf("status: %+v", st)
	}

	// It comes back with a difference, which is all that Envoy gets.
	before := len(cp.asked())
	cp.set(clusterType, "b", "2")
	cp.remove(clusterType, "a")
	cp.upstream().listen(t, address, nil)
	got := envoy.take(clusterType, "")
	if len(got.Resources) != 1 || got.Resources[0].Name != "b" || len(got.RemovedResources) != 1 || got.RemovedResources[0] != "a" {
		t.Errorf("after the return Envoy got %v", got)
	}
	envoy.take(endpointType, "")
	envoy.take(listenerType, "")
	delete(all, "Cluster a")
	all["Cluster b"] = "2"
	envoy.expect("after the return", all)
	connected(t, relay)
	for i, want := range []map[string]string{{"a": "1", "b": "1"}, {"a": "1", "b": "1"}, {"in": "1"}} {
		if got := cp.asked()[before+i].InitialResourceVersions; !cmp.Equal(got, want) {
			t.Errorf("request %d says that Envoy has %v, want %v", i, got, want)
		}
	}
	if ok, reason := relay.Health(); !ok || reason != "" || relay.Status().LastGood.Served {
		t.Errorf("health = %v, %q", ok, reason)
	}
}

func TestStreamThatMovesAsksForWhatDiffers(t *testing.T) {
	cp := newKeepingControlPlane()
	address, stop := cp.upstream().listen(t, "127.0.0.1:0", nil)
	relay, _ := run(t, Config{Upstreams: []string{address}, Server: Server{Plaintext: true}})
	envoy := newEnvoyLike(t, relay)
	envoy.start("a", "b")
	connected(t, relay)
	stop()
	testenv.Eventually(t, "the loss is noticed", func() error {
		if relay.Status().Connected {
			return errors.New("connected")
		}
		return nil
	})
	// Meanwhile Envoy wants something else.
	envoy.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: endpointType, ResourceNamesSubscribe: []string{"c"}, ResourceNamesUnsubscribe: []string{"a"}})
	before := len(cp.asked())
	cp.set(endpointType, "c", "7")
	cp.upstream().listen(t, address, nil)
	for _, typeURL := range []string{clusterType, endpointType, listenerType} {
		envoy.take(typeURL, "")
	}
	delete(envoy.holds, "ClusterLoadAssignment a")
	envoy.expect("after the move", map[string]string{
		"Cluster a": "1", "Cluster b": "1", "ClusterLoadAssignment b": "1", "ClusterLoadAssignment c": "7", "Listener in": "1"})
	asked := cp.asked()[before:]
	if got := asked[0]; got.GetNode().GetId() != testNode.Id || len(got.ResourceNamesSubscribe) != 0 || len(got.InitialResourceVersions) != 2 {
		t.Errorf("the first request after the move: %v", got)
	}
	if got := asked[1]; !cmp.Equal(got.ResourceNamesSubscribe, []string{"b", "c"}) || !cmp.Equal(got.InitialResourceVersions, map[string]string{"b": "1"}) {
		t.Errorf("the second request after the move: %v", got)
	}
	// The new control plane hears answers to its own responses.
	cp.set(endpointType, "d", "1")
	envoy.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: endpointType, ResourceNamesSubscribe: []string{"d"}})
	envoy.take(endpointType, "")
	if envoy.holds["ClusterLoadAssignment d"] != "1" {
		t.Errorf("Envoy holds %v", envoy.holds)
	}
}

func TestRejectedConfigurationIsNeverServedAgain(t *testing.T) {
	cp := newKeepingControlPlane()
	address, stopControlPlane := cp.upstream().listen(t, "127.0.0.1:0", nil)
	config := Config{Upstreams: []string{address}, Server: Server{Plaintext: true}, LastGood: LastGood{Dirs: []string{t.TempDir()}}}
	relay, stop := run(t, config)
	envoy := newEnvoyLike(t, relay)
	envoy.start("a", "b")
	kept(t, relay, time.Time{})

	// Of clusters that come together, the good one counts.
	cp.set(clusterType, "a", "bad")
	cp.set(clusterType, "new", "1")
	before := time.Now()
	envoy.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusterType, ResourceNamesSubscribe: []string{"a", "new"}})
	envoy.take(clusterType, "Error adding/updating cluster(s) a: no such thing")
	cp.set(endpointType, "a", "bad")
	envoy.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: endpointType, ResourceNamesSubscribe: []string{"a"}})
	envoy.take(endpointType, "bad endpoints")
	kept(t, relay, before)
	stop()
	stopControlPlane()

	relay, _ = run(t, config)
	envoy = newEnvoyLike(t, relay)
	envoy.start("a", "b")
	envoy.expect("without a control plane", map[string]string{
		"Cluster a": "1", "Cluster b": "1", "Cluster new": "1", "ClusterLoadAssignment a": "1", "ClusterLoadAssignment b": "1", "Listener in": "1"})
}

// TestSilentControlPlaneDoesNotKeepEnvoyWaiting: it takes connections, as a process does that is frozen.
func TestSilentControlPlaneDoesNotKeepEnvoyWaiting(t *testing.T) {
	cp := newKeepingControlPlane()
	address, stopControlPlane := cp.upstream().listen(t, "127.0.0.1:0", nil)
	config := Config{Upstreams: []string{address}, Server: Server{Plaintext: true}, LastGood: LastGood{Dirs: []string{t.TempDir()}, Silence: 200 * time.Millisecond}}
	relay, stop := run(t, config)
	newEnvoyLike(t, relay).start("a", "b")
	kept(t, relay, time.Time{})
	stop()
	stopControlPlane()

	silent := &upstream{delta: func(s discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
		<-s.Context().Done()
		return nil
	}}
	_, stopSilent := silent.listen(t, address, nil)
	relay, _ = run(t, config)
	envoy := newEnvoyLike(t, relay)
	envoy.start("a", "b")
	stopSilent()

	before := len(cp.asked())
	cp.remove(listenerType, "in")
	cp.upstream().listen(t, address, nil)
	for _, typeURL := range []string{clusterType, endpointType, listenerType} {
		envoy.take(typeURL, "")
	}
	envoy.expect("after the return", map[string]string{"Cluster a": "1", "Cluster b": "1", "ClusterLoadAssignment a": "1", "ClusterLoadAssignment b": "1"})
	if got := cp.asked()[before+2].InitialResourceVersions; !cmp.Equal(got, map[string]string{"in": "1"}) {
		t.Errorf("the listeners that Envoy has are said to be %v", got)
	}
}

func TestNothingIsServedOfAnotherNodeOrWithoutADirectory(t *testing.T) {
	cp := newKeepingControlPlane()
	address, stopControlPlane := cp.upstream().listen(t, "127.0.0.1:0", nil)
	config := Config{Upstreams: []string{address}, Server: Server{Plaintext: true}, LastGood: LastGood{Dirs: []string{t.TempDir()}}}
	relay, stop := run(t, config)
	newEnvoyLike(t, relay).start("a", "b")
	kept(t, relay, time.Time{})
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
		config.LastGood = LastGood{Dirs: test.dirs, Wait: time.Millisecond}
		relay, stop := run(t, config)
		envoy := newEnvoyLike(t, relay)
		envoy.node = test.node
		envoy.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusterType})
		testenv.Eventually(t, "the request is heard", func() error {
			if typeStatus(relay, clusterType).Requests == 0 {
				return errors.New("not yet")
			}
			return nil
		})
		if ok, reason := relay.Health(); ok {
			t.Errorf("%s: ready: %s", name, reason)
		}
		stop()
		if _, err := envoy.stream.Recv(); err == nil {
			t.Errorf("%s: Envoy got something", name)
		}
	}
}

func TestDirectoryInUseOrNotWritableIsNoReasonNotToServe(t *testing.T) {
	address, _ := newKeepingControlPlane().upstream().listen(t, "127.0.0.1:0", nil)
	dir := t.TempDir()
	config := Config{Upstreams: []string{address}, Server: Server{Plaintext: true}, LastGood: LastGood{Dirs: []string{dir}}}
	first, _ := run(t, config)
	newEnvoyLike(t, first).start("a", "b")
	second, _ := run(t, config)
	newEnvoyLike(t, second).start("a", "b")
	if second.Status().LastGood.Kept != nil {
		t.Error("two relays keep in one directory")
	}
	config.LastGood.Dirs = []string{"/proc/no/such"}
	third, _ := run(t, config)
	newEnvoyLike(t, third).start("a", "b")
	config.LastGood.Dirs, config.LastGood.MaxMemory = append(config.LastGood.Dirs, dir), 1<<20
	fourth, _ := run(t, config)
	newEnvoyLike(t, fourth).start("a", "b")
	kept(t, fourth, time.Time{})
	if k := fourth.Status().LastGood.Kept; !k.InMemory || !strings.Contains(k.NoDisk, "another process") {
		t.Errorf("status: %+v", k)
	}
}

// TestAfterAFailureEverythingIsAskedForAnew: what could not be kept can be had from the control plane only.
func TestAfterAFailureEverythingIsAskedForAnew(t *testing.T) {
	cp := newKeepingControlPlane()
	address, _ := cp.upstream().listen(t, "127.0.0.1:0", nil)
	relay, _ := run(t, Config{Upstreams: []string{address}, Server: Server{Plaintext: true},
		LastGood: LastGood{Dirs: []string{t.TempDir()}, MaxBytes: 1000, retry: 50 * time.Millisecond}})
	envoy := newEnvoyLike(t, relay)
	envoy.start("a", "b")
	testenv.Eventually(t, "keeping failed", func() error {
		if k := relay.Status().LastGood.Kept; k.Failures == 0 {
			return fmt.Errorf("%+v", k)
		}
		return nil
	})
	before := len(cp.asked())
	for _, typeURL := range []string{clusterType, endpointType, listenerType} {
		if got := envoy.take(typeURL, ""); len(got.Resources) == 0 || len(got.RemovedResources) != 0 {
			t.Errorf("got %v", got)
		}
	}
	for _, r := range cp.asked()[before:] {
		for name, version := range r.InitialResourceVersions {
			if version != "" {
				t.Errorf("%s %s is said to be there in version %s", r.TypeUrl, name, version)
			}
		}
	}
}

func TestSotwConfigurationIsServedAgain(t *testing.T) {
	address, stopControlPlane := answering(marshal(t, testNode)).listen(t, "127.0.0.1:0", nil)
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
	kept(t, relay, time.Time{})
	stop()
	stopControlPlane()

	relay, _ = run(t, config)
	if got := exchange(relay); !cmp.Equal(got, want) {
		t.Errorf("served versions %v, want %v", got, want)
	}
	heard := make(chan *discoveryv3.DiscoveryRequest, 10)
	back := &upstream{sotw: func(s discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
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
			t.Errorf("request %d after the return: %v", i, r)
		}
	}
}
