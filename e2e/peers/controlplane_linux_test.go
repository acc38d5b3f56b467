package peers

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
	"github.com/pilotfish-mesh/pilotfish/internal/testpki"
)

const token = "the-token-of-the-pod"

// controlPlane is go-control-plane's server with its snapshot cache, behind TLS and a token.
type controlPlane struct {
	address string
	cache   cache.SnapshotCache
	pki     *testpki.Authority
	server  *grpc.Server
}

// anyNode maps all nodes to the same snapshot.
type anyNode struct{}

func (anyNode) ID(*corev3.Node) string { return "" }

func newControlPlane(t testing.TB, address string) *controlPlane {
	t.Helper()
	c := &controlPlane{address: address, pki: testpki.New(t, "root"), cache: cache.NewSnapshotCache(false, anyNode{}, nil)}
	c.start(t)
	t.Cleanup(func() { c.server.Stop() })
	return c
}

func (c *controlPlane) start(t testing.TB) {
	t.Helper()
	host, _, _ := net.SplitHostPort(c.address)
	var listener net.Listener
	testenv.Eventually(t, "the control plane's address is free", func() (err error) {
		listener, err = net.Listen("tcp", c.address)
		return err
	})
	c.server = grpc.NewServer(grpc.Creds(credentials.NewTLS(c.pki.ServerConfig(t, host))), grpc.StreamInterceptor(requireKnownService))
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(c.server, server.NewServer(context.Background(), c.cache, nil))
	go func(s *grpc.Server) { _ = s.Serve(listener) }(c.server)
}

func requireKnownService(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	if md, _ := metadata.FromIncomingContext(stream.Context()); len(md["authorization"]) != 1 || md["authorization"][0] != "Bearer "+token {
		return status.Error(codes.Unauthenticated, "no token")
	}
	return handler(srv, stream)
}

// The names in the clients' requests; both belong to one service.
const (
	shop      = "shop.example"
	otherShop = "other-shop.example"
)

// grpcListener is the resource of the server that listens at an address.
func grpcListener(address string) string { return "xds.istio.io/grpc/lds/inbound/" + address }

// set makes the service of the name one at the address, with a server there that is configured by xDS too.
func (c *controlPlane) set(t testing.TB, version, address string, more ...types.Resource) {
	t.Helper()
	clusters := append([]types.Resource{&clusterv3.Cluster{
		Name: "shop", ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS},
		EdsClusterConfig: &clusterv3.Cluster_EdsClusterConfig{EdsConfig: overADS()},
	}}, more...)
	snapshot, err := cache.NewSnapshot(version, map[resource.Type][]types.Resource{
		resource.ListenerType: {clientListener(t, shop), clientListener(t, otherShop), serverListener(t, address)},
		resource.RouteType:    {routeTo(&routev3.Route{Match: everything(), Action: &routev3.Route_Route{Route: &routev3.RouteAction{ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: "shop"}}}})},
		resource.ClusterType:  clusters,
		resource.EndpointType: {&endpointv3.ClusterLoadAssignment{ClusterName: "shop", Endpoints: []*endpointv3.LocalityLbEndpoints{{
			Locality: &corev3.Locality{Region: "here"}, LoadBalancingWeight: wrapped(1),
			LbEndpoints: []*endpointv3.LbEndpoint{{HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: socket(t, address)}}}},
		}}}},
	})
	if err == nil {
		err = c.cache.SetSnapshot(context.Background(), "", snapshot)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func clientListener(t testing.TB, name string) *listenerv3.Listener {
	return &listenerv3.Listener{Name: name, ApiListener: &listenerv3.ApiListener{ApiListener: packAny(t, &hcmv3.HttpConnectionManager{
		RouteSpecifier: &hcmv3.HttpConnectionManager_Rds{Rds: &hcmv3.Rds{ConfigSource: overADS(), RouteConfigName: "shop"}},
		HttpFilters:    router(t),
	})}}
}

func serverListener(t testing.TB, address string) *listenerv3.Listener {
	return &listenerv3.Listener{Name: grpcListener(address), Address: socket(t, address), FilterChains: []*listenerv3.FilterChain{{Name: "all", Filters: []*listenerv3.Filter{{
		Name: "hcm", ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: packAny(t, &hcmv3.HttpConnectionManager{
			RouteSpecifier: &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: routeTo(&routev3.Route{Match: everything(), Action: &routev3.Route_NonForwardingAction{}})},
			HttpFilters:    router(t),
		})},
	}}}}}
}

func routeTo(route *routev3.Route) *routev3.RouteConfiguration {
	return &routev3.RouteConfiguration{Name: "shop", VirtualHosts: []*routev3.VirtualHost{{Name: "all", Domains: []string{"*"}, Routes: []*routev3.Route{route}}}}
}

func everything() *routev3.RouteMatch {
	return &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: ""}}
}

func router(t testing.TB) []*hcmv3.HttpFilter {
	return []*hcmv3.HttpFilter{{Name: "router", ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: packAny(t, &routerv3.Router{})}}}
}

func overADS() *corev3.ConfigSource {
	return &corev3.ConfigSource{ResourceApiVersion: corev3.ApiVersion_V3, ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}}}
}

func socket(t testing.TB, address string) *corev3.Address {
	t.Helper()
	host, port, err := net.SplitHostPort(address)
	n, err2 := strconv.ParseUint(port, 10, 16)
	if err != nil || err2 != nil {
		t.Fatal(fmt.Errorf("%s: %w, %w", address, err, err2))
	}
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address: host, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(n)}}}}
}

func packAny(t testing.TB, m proto.Message) *anypb.Any {
	t.Helper()
	a, err := anypb.New(m)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

const callTimeout = 10 * time.Second
