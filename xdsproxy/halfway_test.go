package xdsproxy

import (
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/types/known/anypb"
)

// halfway is a control plane that answers for clusters, with one that nobody else knows, and then ends the stream or falls
// silent.
func halfway(end bool) *upstream {
	return &upstream{delta: func(s discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
		for first := true; ; first = false {
			r, err := s.Recv()
			if err != nil || end && !first {
				return err
			}
			if !first {
				continue
			}
			err = s.Send(&discoveryv3.DeltaDiscoveryResponse{TypeUrl: r.TypeUrl, Nonce: "h", Resources: []*discoveryv3.Resource{
				{Name: "half", Version: "1", Resource: &anypb.Any{TypeUrl: r.TypeUrl, Value: []byte("half")}},
			}})
			if err != nil {
				return err
			}
		}
	}}
}

func TestControlPlaneThatGivesOutHalfWayDoesNotCostTheLastGoodConfiguration(t *testing.T) {
	for name, end := range map[string]bool{"it dies": true, "it falls silent": false} {
		t.Run(name, func(t *testing.T) {
			cp := newKeepingControlPlane()
			address, stopControlPlane := cp.upstream().listen(t, "127.0.0.1:0", nil)
			config := Config{Upstreams: []string{address}, Server: Server{Plaintext: true},
				LastGood: LastGood{Dirs: []string{t.TempDir()}, Silence: 300 * time.Millisecond}}
			relay, stop := run(t, config)
			newEnvoyLike(t, relay).start("a", "b")
			kept(t, relay, time.Time{})
			stop()
			stopControlPlane()

			_, stopHalf := halfway(end).listen(t, address, nil)
			relay, stop = run(t, config)
			envoy := newEnvoyLike(t, relay)
			envoy.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusterType})
			envoy.take(clusterType, "")
			envoy.expect("half way", map[string]string{"Cluster half": "1"})
			envoy.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: endpointType, ResourceNamesSubscribe: []string{"a", "b"}})
			envoy.take(clusterType, "")
			stopHalf()
			envoy.take(endpointType, "")
			envoy.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: listenerType})
			envoy.take(listenerType, "")
			all := map[string]string{"Cluster a": "1", "Cluster b": "1", "ClusterLoadAssignment a": "1", "ClusterLoadAssignment b": "1", "Listener in": "1"}
			envoy.expect("afterwards", all)
			stop()

			relay, _ = run(t, config)
			envoy = newEnvoyLike(t, relay)
			envoy.start("a", "b")
			envoy.expect("after another restart", all)
		})
	}
}

// TestControlPlaneThatTakesStreamsAndSaysNothingIsLeftForAnother: which comes first is chance, so it is tried some times.
func TestControlPlaneThatTakesStreamsAndSaysNothingIsLeftForAnother(t *testing.T) {
	silent := &upstream{delta: func(s discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
		<-s.Context().Done()
		return nil
	}}
	frozen, _ := silent.listen(t, "127.0.0.1:0", nil)
	alive, _ := newKeepingControlPlane().upstream().listen(t, "127.0.0.1:0", nil)
	for range 6 {
		relay, stop := run(t, Config{Upstreams: []string{frozen, alive}, Server: Server{Plaintext: true},
			LastGood: LastGood{Silence: 100 * time.Millisecond}})
		newEnvoyLike(t, relay).start("a", "b")
		stop()
	}
}

// TestDiskThatHangsDoesNotKeepEnvoyFromTheControlPlane: nothing is ever read.
func TestDiskThatHangsDoesNotKeepEnvoyFromTheControlPlane(t *testing.T) {
	address := freeAddress(t)
	relay, _ := run(t, Config{Upstreams: []string{address}, Server: Server{Plaintext: true},
		LastGood: LastGood{Dirs: []string{t.TempDir()}, Wait: time.Millisecond, patience: 50 * time.Millisecond}})
	conn := dialRelay(t, relay)
	hangs, hung := make(chan struct{}), make(chan struct{})
	keeperOf(t, relay).put(func() { close(hung); <-hangs })
	defer close(hangs)
	<-hung
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	envoy := &envoyLike{t: t, stream: stream, holds: make(map[string]string), node: testNode}
	envoy.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusterType})
	newKeepingControlPlane().upstream().listen(t, address, nil)
	envoy.take(clusterType, "")
}
