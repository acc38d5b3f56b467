package xdsproxy

import (
	"fmt"
	"strings"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/pilotfish-mesh/pilotfish/internal/envoytest"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

const routeType = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration"

var overADS = &corev3.ConfigSource{
	ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}},
	ResourceApiVersion:    corev3.ApiVersion_V3,
	InitialFetchTimeout:   durationpb.New(0), // as with Istio: Envoy waits without a limit
}

// edsCluster returns a cluster whose endpoints are requested by EDS.
func edsCluster(name string) *clusterv3.Cluster {
	return &clusterv3.Cluster{
		Name: name, ConnectTimeout: durationpb.New(time.Second),
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS},
		EdsClusterConfig:     &clusterv3.Cluster_EdsClusterConfig{EdsConfig: overADS},
	}
}

func newEndpoints(t *testing.T, cluster, address string) *endpointv3.ClusterLoadAssignment {
	assignment := proto.Clone(newCluster(t, address).LoadAssignment).(*endpointv3.ClusterLoadAssignment)
	assignment.ClusterName = cluster
	return assignment
}

// httpListener returns a listener whose routes are requested by RDS.
func httpListener(t *testing.T, port uint32) *listenerv3.Listener {
	t.Helper()
	pack := func(m proto.Message) *anypb.Any {
		body, err := anypb.New(m)
		if err != nil {
			t.Fatal(err)
		}
		return body
	}
	manager := &hcmv3.HttpConnectionManager{
		StatPrefix:     "h",
		RouteSpecifier: &hcmv3.HttpConnectionManager_Rds{Rds: &hcmv3.Rds{ConfigSource: overADS, RouteConfigName: "routes"}},
		HttpFilters: []*hcmv3.HttpFilter{{Name: "router", ConfigType: &hcmv3.HttpFilter_TypedConfig{
			TypedConfig: pack(&routerv3.Router{}),
		}}},
	}
	return &listenerv3.Listener{Name: "in", Address: socketAddress("127.0.0.1", port), FilterChains: []*listenerv3.FilterChain{{
		Filters: []*listenerv3.Filter{{Name: "http", ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: pack(manager)}}},
	}}}
}

func newRoutes(cluster string) *routev3.RouteConfiguration {
	return &routev3.RouteConfiguration{Name: "routes", VirtualHosts: []*routev3.VirtualHost{{
		Name: "all", Domains: []string{"*"}, Routes: []*routev3.Route{{
			Match:  &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}},
			Action: &routev3.Route_Route{Route: &routev3.RouteAction{ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: cluster}}},
		}},
	}}}
}

func TestRestartedEnvoyServesWithoutControlPlane(t *testing.T) {
	for _, version := range testenv.EnvoyVersions() {
		for _, protocol := range []string{"DELTA_GRPC", "GRPC"} {
			t.Run(version+" "+protocol, func(t *testing.T) { testOfflineRestart(t, testenv.EnvoyOf(t, version), protocol) })
		}
	}
}

func testOfflineRestart(t *testing.T, binary, protocol string) {
	first, second := startBackend(t, "first"), startBackend(t, "second")
	port := portOf(t, freeAddress(t))
	cp := &snapshot{resources: map[string][]proto.Message{
		clusterType:  {edsCluster("backend"), edsCluster("other")},
		endpointType: {newEndpoints(t, "backend", first), newEndpoints(t, "other", second)},
		listenerType: {httpListener(t, port)},
		routeType:    {newRoutes("backend")},
	}}
	address, stopControlPlane := cp.upstream().listen(t, "127.0.0.1:0", nil)
	config := Config{Upstreams: []string{address}, Server: Server{Plaintext: true}, LastGood: LastGood{Dirs: []string{t.TempDir()}}}
	url := fmt.Sprintf("http://127.0.0.1:%d/", port)

	life := func(name string, test func(t *testing.T, relay *Relay)) {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			config := config
			config.Socket = dir + "/XDS"
			relay, _ := run(t, config)
			envoytest.Start(t, binary, dir, fmt.Sprintf(envoyBootstrap, protocol))
			test(t, relay)
		})
	}
	life("first life", func(t *testing.T, relay *Relay) {
		testenv.Eventually(t, "traffic flows", func() error { return checkResponse(url, "first") })
		waitStored(t, relay, time.Time{})
		// An invalid cluster, a valid one, and valid routes.
		before := time.Now()
		broken := edsCluster("broken")
		broken.EdsClusterConfig, broken.LbPolicy = nil, clusterv3.Cluster_CLUSTER_PROVIDED
		cp.set(clusterType, edsCluster("backend"), edsCluster("other"), edsCluster("third"), broken)
		cp.set(endpointType, newEndpoints(t, "backend", first), newEndpoints(t, "other", second), newEndpoints(t, "third", second))
		stopControlPlane()
		_, stopControlPlane = cp.upstream().listen(t, address, nil)
		testenv.Eventually(t, "the status contains the rejection", func() error {
			if s := typeStatus(relay, clusterType); s.LastNack == nil || !strings.Contains(s.LastNack.Reason, "broken") {
				return fmt.Errorf("%+v", s)
			}
			return nil
		})
		waitStored(t, relay, before)
		stopControlPlane()
	})
	life("second life", func(t *testing.T, relay *Relay) {
		testenv.Eventually(t, "traffic flows without a control plane", func() error { return checkResponse(url, "first") })
		if ok, reason := relay.Health(); !ok || !strings.Contains(reason, "last accepted configuration") {
			t.Errorf("health = %v, %q", ok, reason)
		}
		for _, s := range relay.Status().Types {
			if s.Nacks > 0 {
				t.Errorf("Envoy rejected a resource that it had accepted: %+v", s)
			}
		}
		if protocol == "DELTA_GRPC" {
			if n := typeStatus(relay, clusterType).LastResources; n != 3 {
				t.Errorf("Envoy has %d clusters, want the 3 accepted ones", n)
			}
		}
		cp.set(clusterType, edsCluster("backend"), edsCluster("other"))
		cp.set(routeType, newRoutes("other"))
		load := startLoad(url)
		cp.upstream().listen(t, address, nil)
		testenv.Eventually(t, "the new routes are in force", func() error { return checkResponse(url, "second") })
		if failed := load.stopAndCheck(); failed != 0 {
			t.Errorf("%d requests failed during the recovery of the control plane", failed)
		}
	})
}
