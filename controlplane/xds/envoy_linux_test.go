package xds

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
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
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/pilotfish-mesh/pilotfish/internal/envoytest"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// envoyState is a State: real resources, by type and name.
type envoyState map[string]map[string]*Resource

func (r envoyState) withResource(t testing.TB, m proto.Message, name string) envoyState {
	t.Helper()
	newResource := NewResource
	if routes, ok := m.(*routev3.RouteConfiguration); ok && routes.GetVhds() != nil {
		newResource = func(name string, m proto.Message) (*Resource, error) { return NewRouteConfiguration(name, m, true) }
	}
	made, err := newResource(name, m)
	if err != nil {
		t.Fatal(err)
	}
	if c, ok := m.(*clusterv3.Cluster); ok && c.GetType() == clusterv3.Cluster_EDS {
		made.Endpoints = name
	}
	next := envoyState{}
	for typeURL, byName := range r {
		next[typeURL] = map[string]*Resource{}
		for n, old := range byName {
			next[typeURL][n] = old
		}
	}
	typeURL := made.Body.GetTypeUrl()
	if next[typeURL] == nil {
		next[typeURL] = map[string]*Resource{}
	}
	next[typeURL][name] = made
	return next
}

func (r envoyState) withoutResource(t testing.TB, typeURL, name string) envoyState {
	t.Helper()
	next := r.withResource(t, &corev3.Node{}, "copy")
	delete(next[typeURL], name)
	return next
}

// envoySource is a Source of envoyState.
type envoySource struct{}

func (envoySource) Connect(_ context.Context, node *corev3.Node, _ Peer) (Proxy, error) {
	if v := node.GetUserAgentBuildVersion().GetVersion(); v.GetMajorNumber() == 1 && v.GetMinorNumber() < 40 {
		return &inlineProxy{}, nil
	}
	return envoySource{}, nil
}
func (envoySource) Hooks() Hooks                                 { return Hooks{} }
func (envoySource) ComputePushScope(_ State, c Change) PushScope { return c.(testChange).pushScope() }
func (envoySource) Generate(state State, typeURL string, wildcard bool, names []string) ([]*Resource, error) {
	var out []*Resource
	for name, r := range state.(envoyState)[typeURL] {
		if typeURL == VirtualHostType && wildcard {
			if slices.Contains(names, routeOf(name)) {
				out = append(out, r)
			}
			continue
		}
		if wildcard || slices.Contains(names, name) {
			out = append(out, r)
		}
	}
	return out, nil
}

func cluster(name string, timeout time.Duration) *clusterv3.Cluster {
	return &clusterv3.Cluster{
		Name: name, ConnectTimeout: durationpb.New(timeout), ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS},
		EdsClusterConfig: &clusterv3.Cluster_EdsClusterConfig{EdsConfig: ads()},
	}
}

func ads() *corev3.ConfigSource {
	return &corev3.ConfigSource{ResourceApiVersion: corev3.ApiVersion_V3,
		ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}}}
}

func socket(host string, port uint32) *corev3.Address {
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address: host, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: port}}}}
}

func assignment(name string, upstream string) *endpointv3.ClusterLoadAssignment {
	host, portText, _ := net.SplitHostPort(upstream)
	port, _ := strconv.Atoi(portText)
	return &endpointv3.ClusterLoadAssignment{ClusterName: name, Endpoints: []*endpointv3.LocalityLbEndpoints{{
		LbEndpoints: []*endpointv3.LbEndpoint{{HostIdentifier: &endpointv3.LbEndpoint_Endpoint{
			Endpoint: &endpointv3.Endpoint{Address: socket(host, uint32(port))}}}}}}}
}

func listener(t testing.TB, name, host string, port uint32, route string) *listenerv3.Listener {
	t.Helper()
	return &listenerv3.Listener{Name: name, Address: socket(host, port), FilterChains: []*listenerv3.FilterChain{{
		Filters: []*listenerv3.Filter{{Name: "hcm", ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: pack(t, &hcmv3.HttpConnectionManager{
			StatPrefix:     name,
			RouteSpecifier: &hcmv3.HttpConnectionManager_Rds{Rds: &hcmv3.Rds{RouteConfigName: route, ConfigSource: ads()}},
			HttpFilters: []*hcmv3.HttpFilter{{Name: "router",
				ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: pack(t, &routerv3.Router{})}}},
		})}}}}}}
}

func route(name, clusterName string) *routev3.RouteConfiguration {
	return &routev3.RouteConfiguration{Name: name, VirtualHosts: []*routev3.VirtualHost{{Name: "all", Domains: []string{"*"},
		Routes: []*routev3.Route{{
			Match:  &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}},
			Action: &routev3.Route_Route{Route: &routev3.RouteAction{ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: clusterName}}},
		}}}}}
}

func pack(t testing.TB, m proto.Message) *anypb.Any {
	t.Helper()
	a, err := anypb.New(m)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// envoyServer is a discovery server on a TCP address that can be stopped and restarted.
type envoyServer struct {
	*Server
	t    testing.TB
	addr string
	stop func()
	// state is the last pushed state, in tests that track it here.
	state envoyState
}

// change pushes another state, which differs from the current one in the type or resource that what names.
func (p *envoyServer) change(what string, state envoyState) {
	p.state = state
	p.Push(state, testChange{what})
}

func startEnvoyServer(t testing.TB, addr string, first envoyState) *envoyServer {
	t.Helper()
	server, err := NewServer(Config{Source: envoySource{}})
	if err != nil {
		t.Fatal(err)
	}
	var l net.Listener
	testenv.Eventually(t, "the address is free", func() error {
		l, err = net.Listen("tcp", addr)
		return err
	})
	gs := grpc.NewServer()
	server.RegisterTo(gs)
	served := make(chan struct{})
	go func() { defer close(served); _ = gs.Serve(l) }()
	p := &envoyServer{Server: server, t: t, addr: l.Addr().String()}
	p.stop = sync.OnceFunc(func() { server.Stop(); gs.Stop(); <-served })
	t.Cleanup(p.stop)
	server.Push(first, testChange(Order))
	return p
}

// awaitSync waits until one Envoy has accepted all resources.
func (p *envoyServer) awaitSync() {
	p.t.Helper()
	p.awaitSyncOf(4)
}

// awaitSyncOf waits until one Envoy has accepted all resources, of at least n types.
func (p *envoyServer) awaitSyncOf(types int) {
	p.t.Helper()
	testenv.Eventually(p.t, "Envoy is in sync", func() error {
		clients := p.Clients()
		if len(clients) == 1 && clients[0].InSync && len(clients[0].Types) >= types {
			return nil
		}
		return fmt.Errorf("the clients are %+v", clients)
	})
}

func (p *envoyServer) startEnvoy(version, api string, args ...string) *envoytest.Envoy {
	p.t.Helper()
	host, port, _ := net.SplitHostPort(p.addr)
	bootstrap := fmt.Sprintf(`
node: {id: "sidecar~1.1.1.1~a.default~default.svc.cluster.local", cluster: c}
dynamic_resources:
  ads_config: {api_type: %s, transport_api_version: V3, grpc_services: [{envoy_grpc: {cluster_name: xds}}]}
  cds_config: {ads: {}, resource_api_version: V3}
  lds_config: {ads: {}, resource_api_version: V3}
static_resources:
  clusters:
  - name: xds
    type: STATIC
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {http2_protocol_options: {}}
    load_assignment: {cluster_name: xds, endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: %q, port_value: %s}}}}]}]}
`, api, host, port)
	return envoytest.Start(p.t, testenv.EnvoyOf(p.t, version), p.t.TempDir(), bootstrap, args...)
}

// stat reads one counter or gauge.
func stat(t testing.TB, e *envoytest.Envoy, name string) int {
	t.Helper()
	text, err := e.Get("/stats?usedonly&filter=^" + strings.ReplaceAll(name, ".", `\.`) + "$")
	if err != nil {
		t.Fatal(err)
	}
	_, value, found := strings.Cut(strings.TrimSpace(text), ": ")
	if !found {
		return 0
	}
	n, err := strconv.Atoi(value)
	if err != nil {
		t.Fatalf("stat %s is %q", name, value)
	}
	return n
}

// upstream starts a server that responds with its name.
func upstream(t testing.TB, name string) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, name) }))
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

var nextHost atomic.Uint32

// freeAddress returns an unused loopback address.
func freeAddress() (string, uint32) { return fmt.Sprintf("127.66.3.%d", nextHost.Add(1)), 18080 }

func fetch(host string, port uint32) (string, error) {
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get(fmt.Sprintf("http://%s:%d/", host, port))
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if resp.StatusCode != http.StatusOK {
		return "", errors.Join(err, fmt.Errorf("status %d: %s", resp.StatusCode, body))
	}
	return string(body), err
}

func awaitBody(t testing.TB, host string, port uint32, want string) {
	t.Helper()
	testenv.Eventually(t, "requests reach "+want, func() error {
		got, err := fetch(host, port)
		if err == nil && got != want {
			err = fmt.Errorf("got %q", got)
		}
		return err
	})
}

// site returns the resources of one listener that routes to one upstream.
func site(t testing.TB, up string) (r envoyState, host string, port uint32) {
	host, port = freeAddress()
	r = envoyState{}.withResource(t, cluster("c1", time.Second), "c1").withResource(t, assignment("c1", up), "c1").
		withResource(t, listener(t, "l1", host, port, "r1"), "l1").withResource(t, route("r1", "c1"), "r1")
	return r, host, port
}

func forEachEnvoy(t *testing.T, test func(t *testing.T, version, api string)) {
	for _, version := range []string{testenv.EnvoyVersion, testenv.OldEnvoyVersion} {
		for _, api := range []string{"DELTA_GRPC", "GRPC"} {
			t.Run(version+"-"+api, func(t *testing.T) { test(t, version, api) })
		}
	}
}

func TestEnvoyWarmsChangedClusterAtOnce(t *testing.T) {
	forEachEnvoy(t, func(t *testing.T, version, api string) {
		state, host, port := site(t, upstream(t, "one"))
		p := startEnvoyServer(t, "127.0.0.1:0", state)
		e := p.startEnvoy(version, api)
		awaitBody(t, host, port, "one")
		p.awaitSync()
		p.Push(state.withResource(t, cluster("c1", 2*time.Second), "c1"), testChange{cds})
		testenv.Eventually(t, "the cluster is replaced", func() error {
			dump, err := e.Get("/config_dump?resource=dynamic_active_clusters")
			if err == nil && !strings.Contains(dump, `"connect_timeout": "2s"`) {
				err = errors.New(dump)
			}
			return err
		})
		p.awaitSync()
		if n := stat(t, e, "cluster.c1.init_fetch_timeout"); n != 0 {
			t.Fatalf("the cluster warmed until its time-out")
		}
		awaitBody(t, host, port, "one")
	})
}

func TestEnvoyIsUndisturbedByServerRestart(t *testing.T) {
	for _, version := range []string{testenv.EnvoyVersion, testenv.OldEnvoyVersion} {
		t.Run(version, func(t *testing.T) {
			state, host, port := site(t, upstream(t, "one"))
			p := startEnvoyServer(t, "127.0.0.1:0", state)
			e := p.startEnvoy(version, "DELTA_GRPC")
			awaitBody(t, host, port, "one")
			p.awaitSync()
			counters := []string{"cluster_manager.cds.update_success", "listener_manager.lds.update_success",
				"listener_manager.listener_added", "listener_manager.listener_modified", "cluster.c1.update_success"}
			before := map[string]int{}
			for _, name := range counters {
				before[name] = stat(t, e, name)
			}
			p.stop()
			awaitBody(t, host, port, "one")
			p = startEnvoyServer(t, p.addr, state)
			p.awaitSync()
			for _, name := range counters {
				if now := stat(t, e, name); now != before[name] {
					t.Errorf("the counter %s increased from %d to %d", name, before[name], now)
				}
			}
			p.Push(state.withResource(t, assignment("c1", upstream(t, "two")), "c1"), testChange{eds})
			awaitBody(t, host, port, "two")
		})
	}
}

func TestEnvoyCatchesUpAfterServerRestart(t *testing.T) {
	forEachEnvoy(t, func(t *testing.T, version, api string) {
		state, host, port := site(t, upstream(t, "one"))
		oldHost, _ := freeAddress()
		old := state.withResource(t, cluster("gone", time.Second), "gone").withResource(t, assignment("gone", "127.0.0.1:1"), "gone").
			withResource(t, listener(t, "old", oldHost, port, "r1"), "old")
		p := startEnvoyServer(t, "127.0.0.1:0", old)
		e := p.startEnvoy(version, api)
		awaitBody(t, oldHost, port, "one")
		p.awaitSync()
		p.stop()
		// Envoy must warm a changed cluster although its endpoints did not change.
		p = startEnvoyServer(t, p.addr, state.withResource(t, cluster("c1", 3*time.Second), "c1"))
		testenv.Eventually(t, "the removed resources are gone", func() error {
			clusters, err := e.Get("/clusters")
			if err == nil && strings.Contains(clusters, "gone::") {
				err = errors.New("the cluster is still there")
			}
			if _, fetched := fetch(oldHost, port); err == nil && fetched == nil {
				err = errors.New("the listener is still there")
			}
			return err
		})
		p.awaitSync()
		awaitBody(t, host, port, "one")
		if stat(t, e, "cluster.c1.init_fetch_timeout") != 0 {
			t.Fatal("the cluster warmed until its time-out")
		}
	})
}

func TestEnvoyRejectsBadListenerAndServesTheGoodOnes(t *testing.T) {
	forEachEnvoy(t, func(t *testing.T, version, api string) {
		state, host, port := site(t, upstream(t, "one"))
		bad := listener(t, "bad", "127.0.0.1", 0, "r1")
		bad.FilterChains[0].Filters[0].Name = "x"
		bad.FilterChains[0].Filters[0].ConfigType = &listenerv3.Filter_TypedConfig{TypedConfig: pack(t, &corev3.Node{})}
		p := startEnvoyServer(t, "127.0.0.1:0", state.withResource(t, bad, "bad"))
		p.startEnvoy(version, api)
		awaitBody(t, host, port, "one")
		testenv.Eventually(t, "the rejection shows", func() error {
			clients := p.Clients()
			if len(clients) == 1 {
				r := typeStatus(clients[0], lds).Rejected
				if r != nil && slices.Equal(r.Resources, []string{"bad"}) && strings.Contains(r.Reason, "bad") {
					return nil
				}
			}
			return fmt.Errorf("the clients are %+v", clients)
		})
		p.Push(state, testChange{lds})
		p.awaitSync()
		awaitBody(t, host, port, "one")
	})
}

func TestEnvoyLosesNoRequestWhenItsClusterIsReplaced(t *testing.T) {
	forEachEnvoy(t, func(t *testing.T, version, api string) {
		up := upstream(t, "one")
		state, host, port := site(t, up)
		p := startEnvoyServer(t, "127.0.0.1:0", state)
		p.startEnvoy(version, api)
		awaitBody(t, host, port, "one")
		stop, failed := make(chan struct{}), make(chan error, 1)
		go func() {
			defer close(failed)
			for {
				select {
				case <-stop:
					return
				default:
				}
				if _, err := fetch(host, port); err != nil {
					failed <- err
					return
				}
			}
		}()
		for i := 2; i < 12; i++ {
			was, is := fmt.Sprintf("c%d", i-1), fmt.Sprintf("c%d", i)
			state = state.withResource(t, cluster(is, time.Second), is).withResource(t, assignment(is, up), is).withResource(t, route("r1", is), "r1").
				withoutResource(t, cds, was).withoutResource(t, eds, was)
			p.Push(state, testChange(Order))
			p.awaitSync()
		}
		close(stop)
		if err, ok := <-failed; ok {
			t.Fatal(err)
		}
	})
}
