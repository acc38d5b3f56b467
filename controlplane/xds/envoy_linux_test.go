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

// resources is a State: real resources, by type and name.
type resources map[string]map[string]*Resource

func (r resources) with(t testing.TB, m proto.Message, name string) resources {
	t.Helper()
	newResource := NewResource
	if routes, ok := m.(*routev3.RouteConfiguration); ok && routes.GetVhds() != nil {
		newResource = func(name string, m proto.Message) (*Resource, error) { return NewRoutes(name, m, true) }
	}
	made, err := newResource(name, m)
	if err != nil {
		t.Fatal(err)
	}
	if c, ok := m.(*clusterv3.Cluster); ok && c.GetType() == clusterv3.Cluster_EDS {
		made.Endpoints = name
	}
	next := resources{}
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

func (r resources) without(t testing.TB, typeURL, name string) resources {
	t.Helper()
	next := r.with(t, &corev3.Node{}, "copy")
	delete(next[typeURL], name)
	return next
}

// real is a Source of resources.
type real struct{}

func (real) Connect(_ context.Context, node *corev3.Node, _ Peer) (Proxy, error) {
	if v := node.GetUserAgentBuildVersion().GetVersion(); v.GetMajorNumber() == 1 && v.GetMinorNumber() < 40 {
		return &wholeKeeper{}, nil
	}
	return real{}, nil
}
func (real) Affected(_ State, c Change) Touches { return c.(changed).touches() }
func (real) Generate(state State, typeURL string, wildcard bool, names []string) ([]*Resource, error) {
	var out []*Resource
	for name, r := range state.(resources)[typeURL] {
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

// plane is a discovery server on a TCP address, which can go and come back.
type plane struct {
	*Server
	t    testing.TB
	addr string
	stop func()
	// world is what was pushed last, of the tests that keep it here.
	world resources
}

// change pushes another world, in which a type differs, or a name of it.
func (p *plane) change(what string, world resources) {
	p.world = world
	p.Push(world, changed{what})
}

func startPlane(t testing.TB, addr string, first resources) *plane {
	t.Helper()
	server, err := NewServer(Config{Source: real{}})
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
	p := &plane{Server: server, t: t, addr: l.Addr().String()}
	p.stop = sync.OnceFunc(func() { server.Stop(); gs.Stop(); <-served })
	t.Cleanup(p.stop)
	server.Push(first, changed(Order))
	return p
}

// inSync waits until one Envoy has accepted all.
func (p *plane) inSync() {
	p.t.Helper()
	p.inSyncOf(4)
}

// inSyncOf waits until one Envoy has accepted all, of so many types at least.
func (p *plane) inSyncOf(types int) {
	p.t.Helper()
	testenv.Eventually(p.t, "Envoy is in sync", func() error {
		clients := p.Clients()
		if len(clients) == 1 && clients[0].InSync && len(clients[0].Types) >= types {
			return nil
		}
		return fmt.Errorf("clients are %+v", clients)
	})
}

func (p *plane) envoy(version, api string, args ...string) *envoytest.Envoy {
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

// upstream is a server that answers with its name.
func upstream(t testing.TB, name string) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, name) }))
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

var freeHost atomic.Uint32

// freeAddress is an address of this test's own.
func freeAddress() (string, uint32) { return fmt.Sprintf("127.66.3.%d", freeHost.Add(1)), 18080 }

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

func serves(t testing.TB, host string, port uint32, want string) {
	t.Helper()
	testenv.Eventually(t, "requests reach "+want, func() error {
		got, err := fetch(host, port)
		if err == nil && got != want {
			err = fmt.Errorf("got %q", got)
		}
		return err
	})
}

// site is one listener that leads to one upstream.
func site(t testing.TB, up string) (r resources, host string, port uint32) {
	host, port = freeAddress()
	r = resources{}.with(t, cluster("c1", time.Second), "c1").with(t, assignment("c1", up), "c1").
		with(t, listener(t, "l1", host, port, "r1"), "l1").with(t, route("r1", "c1"), "r1")
	return r, host, port
}

func eachEnvoy(t *testing.T, test func(t *testing.T, version, api string)) {
	for _, version := range []string{testenv.EnvoyVersion, testenv.OldEnvoyVersion} {
		for _, api := range []string{"DELTA_GRPC", "GRPC"} {
			t.Run(version+"-"+api, func(t *testing.T) { test(t, version, api) })
		}
	}
}

func TestChangedClusterOfARealEnvoyIsWarmAtOnce(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, version, api string) {
		state, host, port := site(t, upstream(t, "one"))
		p := startPlane(t, "127.0.0.1:0", state)
		e := p.envoy(version, api)
		serves(t, host, port, "one")
		p.inSync()
		p.Push(state.with(t, cluster("c1", 2*time.Second), "c1"), changed{cds})
		testenv.Eventually(t, "the cluster is replaced", func() error {
			dump, err := e.Get("/config_dump?resource=dynamic_active_clusters")
			if err == nil && !strings.Contains(dump, `"connect_timeout": "2s"`) {
				err = errors.New(dump)
			}
			return err
		})
		p.inSync()
		if n := stat(t, e, "cluster.c1.init_fetch_timeout"); n != 0 {
			t.Fatalf("the cluster warmed until its time-out")
		}
		serves(t, host, port, "one")
	})
}

func TestRealEnvoyIsUndisturbedByARestart(t *testing.T) {
	for _, version := range []string{testenv.EnvoyVersion, testenv.OldEnvoyVersion} {
		t.Run(version, func(t *testing.T) {
			state, host, port := site(t, upstream(t, "one"))
			p := startPlane(t, "127.0.0.1:0", state)
			e := p.envoy(version, "DELTA_GRPC")
			serves(t, host, port, "one")
			p.inSync()
			counters := []string{"cluster_manager.cds.update_success", "listener_manager.lds.update_success",
				"listener_manager.listener_added", "listener_manager.listener_modified", "cluster.c1.update_success"}
			before := map[string]int{}
			for _, name := range counters {
				before[name] = stat(t, e, name)
			}
			p.stop()
			serves(t, host, port, "one")
			p = startPlane(t, p.addr, state)
			p.inSync()
			for _, name := range counters {
				if now := stat(t, e, name); now != before[name] {
					t.Errorf("%s rose from %d to %d", name, before[name], now)
				}
			}
			p.Push(state.with(t, assignment("c1", upstream(t, "two")), "c1"), changed{eds})
			serves(t, host, port, "two")
		})
	}
}

func TestRealEnvoyCatchesUpAfterARestart(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, version, api string) {
		state, host, port := site(t, upstream(t, "one"))
		oldHost, _ := freeAddress()
		old := state.with(t, cluster("gone", time.Second), "gone").with(t, assignment("gone", "127.0.0.1:1"), "gone").
			with(t, listener(t, "old", oldHost, port, "r1"), "old")
		p := startPlane(t, "127.0.0.1:0", old)
		e := p.envoy(version, api)
		serves(t, oldHost, port, "one")
		p.inSync()
		p.stop()
		// A changed cluster, whose endpoints are the same, has to become warm all the same.
		p = startPlane(t, p.addr, state.with(t, cluster("c1", 3*time.Second), "c1"))
		testenv.Eventually(t, "what is gone is gone", func() error {
			clusters, err := e.Get("/clusters")
			if err == nil && strings.Contains(clusters, "gone::") {
				err = errors.New("the cluster is still there")
			}
			if _, fetched := fetch(oldHost, port); err == nil && fetched == nil {
				err = errors.New("the listener is still there")
			}
			return err
		})
		p.inSync()
		serves(t, host, port, "one")
		if stat(t, e, "cluster.c1.init_fetch_timeout") != 0 {
			t.Fatal("the cluster warmed until its time-out")
		}
	})
}

func TestRealEnvoyRejectsABadListenerAndServesTheGoodOnes(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, version, api string) {
		state, host, port := site(t, upstream(t, "one"))
		bad := listener(t, "bad", "127.0.0.1", 0, "r1")
		bad.FilterChains[0].Filters[0].Name = "x"
		bad.FilterChains[0].Filters[0].ConfigType = &listenerv3.Filter_TypedConfig{TypedConfig: pack(t, &corev3.Node{})}
		p := startPlane(t, "127.0.0.1:0", state.with(t, bad, "bad"))
		p.envoy(version, api)
		serves(t, host, port, "one")
		testenv.Eventually(t, "the rejection shows", func() error {
			clients := p.Clients()
			if len(clients) == 1 {
				r := typeOf(clients[0], lds).Rejected
				if r != nil && slices.Equal(r.Resources, []string{"bad"}) && strings.Contains(r.Reason, "bad") {
					return nil
				}
			}
			return fmt.Errorf("clients are %+v", clients)
		})
		p.Push(state, changed{lds})
		p.inSync()
		serves(t, host, port, "one")
	})
}

func TestRealEnvoyLosesNoRequestWhenItsClusterIsReplaced(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, version, api string) {
		up := upstream(t, "one")
		state, host, port := site(t, up)
		p := startPlane(t, "127.0.0.1:0", state)
		p.envoy(version, api)
		serves(t, host, port, "one")
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
			state = state.with(t, cluster(is, time.Second), is).with(t, assignment(is, up), is).with(t, route("r1", is), "r1").
				without(t, cds, was).without(t, eds, was)
			p.Push(state, changed(Order))
			p.inSync()
		}
		close(stop)
		if err, ok := <-failed; ok {
			t.Fatal(err)
		}
	})
}
