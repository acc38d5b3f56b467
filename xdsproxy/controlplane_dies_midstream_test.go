package xdsproxy

import (
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/types/known/anypb"
)

// newDyingControlPlane returns a control plane that sends clusters, one of them unknown to other control planes. It
// then ends the stream, or sends nothing more.
func newDyingControlPlane(end bool) *fakeControlPlane {
	return &fakeControlPlane{delta: func(s discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
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

func TestLastGoodSurvivesControlPlaneThatFailsMidway(t *testing.T) {
	for name, end := range map[string]bool{"control plane failed": true, "it falls silent": false} {
		t.Run(name, func(t *testing.T) {
			cp := newVersionedControlPlane()
			address, stopControlPlane := cp.upstream().listen(t, "127.0.0.1:0", nil)
			config := Config{Upstreams: []string{address}, Server: Server{Plaintext: true},
				LastGood: LastGood{Dirs: []string{t.TempDir()}, SilenceTimeout: 300 * time.Millisecond}}
			relay, stop := run(t, config)
			newFakeEnvoy(t, relay).requestAll("a", "b")
			waitStored(t, relay, time.Time{})
			stop()
			stopControlPlane()

			_, stopHalf := newDyingControlPlane(end).listen(t, address, nil)
			relay, stop = run(t, config)
			envoy := newFakeEnvoy(t, relay)
			envoy.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusterType})
			envoy.accept(clusterType, "")
			envoy.expect("half way", map[string]string{"Cluster half": "1"})
			envoy.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: endpointType, ResourceNamesSubscribe: []string{"a", "b"}})
			envoy.accept(clusterType, "")
			stopHalf()
			envoy.accept(endpointType, "")
			envoy.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: listenerType})
			envoy.accept(listenerType, "")
			all := map[string]string{"Cluster a": "1", "Cluster b": "1", "ClusterLoadAssignment a": "1", "ClusterLoadAssignment b": "1", "Listener in": "1"}
			envoy.expect("afterwards", all)
			stop()

			relay, _ = run(t, config)
			envoy = newFakeEnvoy(t, relay)
			envoy.requestAll("a", "b")
			envoy.expect("after another restart", all)
		})
	}
}

// TestSilentControlPlaneIsReplacedByAnother repeats the test, because the order of the addresses is random.
func TestSilentControlPlaneIsReplacedByAnother(t *testing.T) {
	silent := &fakeControlPlane{delta: func(s discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
		<-s.Context().Done()
		return nil
	}}
	frozen, _ := silent.listen(t, "127.0.0.1:0", nil)
	alive, _ := newVersionedControlPlane().upstream().listen(t, "127.0.0.1:0", nil)
	for range 6 {
		relay, stop := run(t, Config{Upstreams: []string{frozen, alive}, Server: Server{Plaintext: true},
			LastGood: LastGood{SilenceTimeout: 100 * time.Millisecond}})
		newFakeEnvoy(t, relay).requestAll("a", "b")
		stop()
	}
}
