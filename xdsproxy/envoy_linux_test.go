package xdsproxy

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	tcpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/pilotfish-mesh/pilotfish/internal/envoytest"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

const envoyBootstrap = `
node: {id: sidecar~127.0.0.1~test.default~default.svc.cluster.local, cluster: test}
dynamic_resources:
  ads_config: {api_type: %s, transport_api_version: V3, grpc_services: [{envoy_grpc: {cluster_name: xds-grpc}}]}
  cds_config: {ads: {}, resource_api_version: V3}
  lds_config: {ads: {}, resource_api_version: V3}
static_resources:
  clusters:
  - name: xds-grpc
    type: STATIC
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {http2_protocol_options: {}}
    load_assignment: {cluster_name: xds-grpc, endpoints: [{lb_endpoints: [{endpoint: {address: {pipe: {path: ./XDS}}}}]}]}
`

func TestEnvoyOutlivesItsControlPlane(t *testing.T) {
	for _, protocol := range []string{"DELTA_GRPC", "GRPC"} {
		t.Run(protocol, func(t *testing.T) { t.Parallel(); testOutage(t, protocol) })
	}
}

func testOutage(t *testing.T, protocol string) {
	dir := t.TempDir()
	first, second := startBackend(t, "first"), startBackend(t, "second")
	port := portOf(t, freeAddress(t))
	cp := &snapshot{resources: map[string][]proto.Message{
		clusterType: {newCluster(t, first)}, listenerType: {newListener(port)},
	}}
	address, stop := cp.upstream().listen(t, "127.0.0.1:0", nil)
	relay := start(t, Config{Socket: dir + "/XDS", Upstreams: []string{address}, Server: Server{Plaintext: true}})
	envoytest.Start(t, testenv.Envoy(t), dir, fmt.Sprintf(envoyBootstrap, protocol))
	url := fmt.Sprintf("http://127.0.0.1:%d/", port)
	testenv.Eventually(t, "traffic flows", func() error { return checkResponse(url, "first") })

	load := startLoad(url)
	stop()
	testenv.Eventually(t, "the relay reports the lost control plane", func() error {
		if relay.Status().Connected {
			return fmt.Errorf("still connected")
		}
		return nil
	})
	load.waitMore(t, 50)

	cp.set(clusterType, newCluster(t, second))
	_, stop = cp.upstream().listen(t, address, nil)
	testenv.Eventually(t, "the new configuration is in force", func() error { return checkResponse(url, "second") })
	if failed := load.stopAndCheck(); failed != 0 {
		t.Errorf("%d requests failed while no control plane was running", failed)
	}
	waitConnected(t, relay)

	// Another control plane starts, with a listener that Envoy rejects: the old listener stays, and the reason is
	// recorded.
	stop()
	broken := newListener(port)
	broken.FilterChains[0].Filters[0].Name = "broken"
	broken.FilterChains[0].Filters[0].ConfigType = &listenerv3.Filter_TypedConfig{TypedConfig: &anypb.Any{TypeUrl: "type.googleapis.com/no.such.Filter"}}
	cp.set(listenerType, broken)
	cp.upstream().listen(t, address, nil)
	testenv.Eventually(t, "the status contains the rejection", func() error {
		s := typeStatus(relay, listenerType)
		if s.State != StateRejected || s.LastNack == nil || !strings.Contains(s.LastNack.Reason, "no.such.Filter") {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	if err := checkResponse(url, "second"); err != nil {
		t.Error(err)
	}
	if ok, reason := relay.Health(); !ok || !strings.Contains(reason, "rejected") {
		t.Errorf("health = %v, %q", ok, reason)
	}
}

// startBackend starts a server that responds with its name.
func startBackend(t *testing.T, name string) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, name) }))
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

func portOf(t *testing.T, address string) uint32 {
	t.Helper()
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		t.Fatal(err)
	}
	return uint32(n)
}

func checkResponse(url, want string) error {
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Get(url)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err == nil && string(body) != want {
		err = fmt.Errorf("got %q, want %q", body, want)
	}
	return err
}

// loadGenerator sends requests one after the other until stopAndCheck.
type loadGenerator struct {
	done, failed atomic.Int32
	stop         chan struct{}
	running      sync.WaitGroup
}

func startLoad(url string) *loadGenerator {
	l := &loadGenerator{stop: make(chan struct{})}
	l.running.Go(func() {
		for {
			select {
			case <-l.stop:
				return
			default:
			}
			if checkResponse(url, "first") != nil && checkResponse(url, "second") != nil {
				l.failed.Add(1)
			}
			l.done.Add(1)
		}
	})
	return l
}

func (l *loadGenerator) waitMore(t *testing.T, n int32) {
	t.Helper()
	until := l.done.Load() + n
	testenv.Eventually(t, "requests pass", func() error {
		if l.done.Load() < until {
			return fmt.Errorf("%d of %d", l.done.Load(), until)
		}
		return nil
	})
}

func (l *loadGenerator) stopAndCheck() int32 {
	close(l.stop)
	l.running.Wait()
	return l.failed.Load()
}

func socketAddress(address string, port uint32) *corev3.Address {
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address: address, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: port},
	}}}
}

func newCluster(t *testing.T, address string) *clusterv3.Cluster {
	t.Helper()
	return &clusterv3.Cluster{
		Name: "backend", ConnectTimeout: durationpb.New(time.Second),
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC},
		LoadAssignment: &endpointv3.ClusterLoadAssignment{ClusterName: "backend", Endpoints: []*endpointv3.LocalityLbEndpoints{{
			LbEndpoints: []*endpointv3.LbEndpoint{{HostIdentifier: &endpointv3.LbEndpoint_Endpoint{
				Endpoint: &endpointv3.Endpoint{Address: socketAddress("127.0.0.1", portOf(t, address))},
			}}},
		}}},
	}
}

func newListener(port uint32) *listenerv3.Listener {
	proxy, err := anypb.New(&tcpv3.TcpProxy{StatPrefix: "t", ClusterSpecifier: &tcpv3.TcpProxy_Cluster{Cluster: "backend"}})
	if err != nil {
		panic(err)
	}
	return &listenerv3.Listener{Name: "in", Address: socketAddress("127.0.0.1", port), FilterChains: []*listenerv3.FilterChain{{
		Filters: []*listenerv3.Filter{{Name: "tcp", ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: proxy}}},
	}}}
}

// snapshot is a minimal control plane that sends all resources of a type once per stream.
type snapshot struct {
	mu        sync.Mutex
	resources map[string][]proto.Message
}

func (s *snapshot) set(typeURL string, resources ...proto.Message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.resources[typeURL] = resources
}

func (s *snapshot) get(typeURL string) []*anypb.Any {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []*anypb.Any
	for _, r := range s.resources[typeURL] {
		body, err := anypb.New(r)
		if err != nil {
			panic(err)
		}
		out = append(out, body)
	}
	return out
}

func (s *snapshot) upstream() *fakeControlPlane {
	return &fakeControlPlane{
		sotw: func(stream discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
			return uniqueResources(stream.Recv, func(r *discoveryv3.DiscoveryRequest) error {
				return stream.Send(&discoveryv3.DiscoveryResponse{TypeUrl: r.TypeUrl, VersionInfo: "1", Nonce: r.TypeUrl, Resources: s.get(r.TypeUrl)})
			})
		},
		delta: func(stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
			return uniqueResources(stream.Recv, func(r *discoveryv3.DeltaDiscoveryRequest) error {
				response := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: r.TypeUrl, Nonce: r.TypeUrl, SystemVersionInfo: "1"}
				for _, body := range s.get(r.TypeUrl) {
					response.Resources = append(response.Resources, &discoveryv3.Resource{Name: nameOf(body), Version: "1", Resource: body})
				}
				return stream.Send(response)
			})
		},
	}
}

func nameOf(body *anypb.Any) string {
	m, err := body.UnmarshalNew()
	if err != nil {
		panic(err)
	}
	switch m := m.(type) {
	case interface{ GetName() string }:
		return m.GetName()
	case interface{ GetClusterName() string }:
		return m.GetClusterName()
	}
	panic(body.TypeUrl)
}

// uniqueResources responds to the first request of each type.
func uniqueResources[R interface{ GetTypeUrl() string }](recv func() (R, error), answer func(R) error) error {
	seen := make(map[string]bool)
	for {
		request, err := recv()
		if err != nil {
			return err
		}
		if typeURL := request.GetTypeUrl(); !seen[typeURL] {
			seen[typeURL] = true
			if err := answer(request); err != nil {
				return err
			}
		}
	}
}
