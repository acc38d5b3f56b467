package bootstrap

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	secretv3 "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	meshv1 "istio.io/api/mesh/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
	"github.com/pilotfish-mesh/pilotfish/internal/testpki"
)

// sidecarAt returns a sidecar with all its ports at one address.
func sidecarAt(t *testing.T, ip string) Config {
	c := sidecar()
	c.Bind = addr(t, ip)
	c.Metadata = map[string]any{unpackMetadata: "false"} // no agent serves the statistics
	return c
}

// run starts an Envoy with the bootstrap and a control plane without resources. It waits until Envoy's Prometheus port
// responds.
func run(t *testing.T, version string, c Config) {
	t.Helper()
	c.XDSSocket = filepath.Join(t.TempDir(), "xds")
	serveDiscovery(t, c.XDSSocket, &discovery{answers: true})
	start(t, version, t.TempDir(), encoded(t, c))
	testenv.Eventually(t, "Envoy's own port", func() error {
		_, err := get(c.StatsURL())
		return err
	})
}

// echo returns an override with a listener that responds "here" and traces every request. The override contains
// extensions that the agent does not know.
func echo(c Config, port int) []byte {
	logs := ""
	if c.ProxyConfig.GetEnvoyAccessLogService() != nil { // a control plane refers to this service in the same way
		logs = `access_log: [{name: als, typed_config: {"@type": type.googleapis.com/envoy.extensions.access_loggers.grpc.v3.HttpGrpcAccessLogConfig,
			common_config: {log_name: all, transport_api_version: V3, grpc_service: {envoy_grpc: {cluster_name: envoy_accesslog_service}}}}}],`
	}
	return fmt.Appendf(nil, `{static_resources: {listeners: [{name: echo, address: {socket_address: {address: %s, port_value: %d}},
		filter_chains: [{filters: [{name: hcm, typed_config: {
			"@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager,
			stat_prefix: echo, %s tracing: {random_sampling: {value: 100}},
			route_config: {virtual_hosts: [{name: all, domains: ["*"], routes: [{match: {prefix: /}, direct_response: {status: 200, body: {inline_string: here}}}]}]},
			http_filters: [{name: r, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}]}}]}]}]}}`, c.Bind, port, logs)
}

func TestEnvoyWithFullHeapShedsLoadAndAnswersProbes(t *testing.T) {
	for i, version := range testenv.EnvoyVersions() {
		t.Run(version, func(t *testing.T) {
			c := sidecarAt(t, fmt.Sprintf("127.101.10.%d", i+1))
			c.MemoryLimit = 1 << 20 // less than an idle Envoy uses
			c.Override = echo(c, 8080)
			agent(t, c)
			run(t, version, c)
			testenv.Eventually(t, "Envoy rejects requests", func() error {
				response, err := http.Get("http://" + hostPort(c.Bind.String(), 8080))
				if err != nil {
					return err
				}
				defer response.Body.Close()
				body, _ := io.ReadAll(response.Body)
				if response.StatusCode != http.StatusServiceUnavailable || !strings.Contains(string(body), "overload") || !response.Close {
					return fmt.Errorf("%s, close %v: %s", response.Status, response.Close, body)
				}
				return nil
			})
			if body, err := get("http://" + hostPort(c.Bind.String(), DefaultReadinessPort) + "/healthz/ready"); err != nil || body != "ready" {
				t.Errorf("the readiness port responds %q, %v", body, err)
			}
			testenv.Eventually(t, "the overload statistics", func() error {
				stats, err := get(c.StatsURL())
				if !strings.Contains(stats, "envoy_overload_envoy_overload_actions_shrink_heap_active{} 1") {
					return fmt.Errorf("the statistics do not show the overload, %v:\n%s", err, stats)
				}
				return nil
			})
		})
	}
}

func TestEnvoyServesAllWhenItsHeapIsNotFull(t *testing.T) {
	c := sidecarAt(t, "127.101.11.1")
	c.MemoryLimit = 256 << 20
	c.Override = echo(c, 8080)
	run(t, testenv.EnvoyVersion, c)
	for range 20 {
		if body, err := get("http://" + hostPort(c.Bind.String(), 8080)); err != nil || body != "here" {
			t.Fatalf("%q, %v", body, err)
		}
	}
}

// agent serves the agent's status port.
func agent(t *testing.T, c Config) {
	t.Helper()
	l, err := net.Listen("tcp", c.StatusAddress())
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == statsPath || r.URL.Path == "/metrics" {
			fmt.Fprint(w, "merged_statistics 1\n")
			return
		}
		fmt.Fprint(w, "ready")
	})}
	go server.Serve(l)
	t.Cleanup(func() { server.Close() })
}

func TestStatisticsAreCompressedAsTheClientPrefers(t *testing.T) {
	c := sidecarAt(t, "127.101.12.1")
	run(t, testenv.EnvoyVersion, c)
	for accepted, want := range map[string]string{"gzip": "gzip", "br": "br", "zstd": "zstd", "identity": "", "gzip;q=0.1, zstd": "zstd"} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, c.StatsURL(), nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Accept-Encoding", accepted)
		response, err := http.DefaultTransport.RoundTrip(request)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if got := response.Header.Get("Content-Encoding"); got != want {
			t.Errorf("Accept-Encoding %s: got %q, want %q", accepted, got, want)
		}
	}
}

// Newer Istio releases append a semicolon to the names of clusters and listeners in statistics with a semicolon; older ones do not.
func TestNamesInStatisticsAreLabelsHoweverTheyEnd(t *testing.T) {
	for i, version := range testenv.EnvoyVersions() {
		t.Run(version, func(t *testing.T) {
			c := sidecarAt(t, fmt.Sprintf("127.101.14.%d", i+1))
			c.ProxyConfig.ProxyStatsMatcher = &meshv1.ProxyConfig_ProxyStatsMatcher{InclusionPrefixes: []string{"cluster.", "http."}}
			c.Override = fmt.Appendf(nil, `{static_resources: {
				clusters: [{name: a, alt_stat_name: "outbound|80||new.books.svc.cluster.local;"}, {name: b, alt_stat_name: "outbound|80||old.books.svc.cluster.local"},
					{name: c, alt_stat_name: "outbound|80||example.com;"}, {name: d, alt_stat_name: PassthroughCluster}],
				listeners: [%s, %s, %s]}}`, namedListener(c, 8081, "outbound_0.0.0.0_80;"), namedListener(c, 8082, "10.1.2.3_80"), namedListener(c, 8083, "outbound_[__1]_80;"))
			run(t, version, c)
			stats, err := get(c.StatsURL())
			for _, want := range []string{
				`envoy_cluster_membership_total{cluster_name="outbound|80||new.books.svc.cluster.local"} 0`,
				`envoy_cluster_membership_total{cluster_name="outbound|80||old.books.svc.cluster.local"} 0`,
				`envoy_cluster_membership_total{cluster_name="outbound|80||example.com"} 0`,
				`envoy_cluster_membership_total{cluster_name="PassthroughCluster"} 0`,
				`envoy_cluster_upstream_cx_total{cluster_name="prometheus_stats"} `,
				`envoy_http_downstream_rq_total{http_conn_manager_prefix="outbound_0.0.0.0_80"} 0`,
				`envoy_http_downstream_rq_total{http_conn_manager_prefix="10.1.2.3_80"} 0`,
				`envoy_http_downstream_rq_total{http_conn_manager_prefix="outbound_[__1]_80"} 0`,
				`envoy_http_agent_downstream_rq_total{} 0`,
				`envoy_server_watchdog_miss{thread_name="main_thread"} 0`,
				`envoy_server_live{} 1`,
			} {
				if !strings.Contains(stats, want) {
					t.Errorf("the statistics lack %s, %v", want, err)
				}
			}
			if strings.Contains(stats, `envoy_cluster_upstream_cx_total{cluster_name="outbound`) {
				t.Error("Envoy has statistics of the traffic of clusters that no request has used")
			}
			if t.Failed() {
				t.Log(stats)
			}
		})
	}
}

// namedListener returns a listener with the name as prefix of its HTTP statistics.
func namedListener(c Config, port int, name string) string {
	return fmt.Sprintf(`{name: l%d, address: {socket_address: {address: %s, port_value: %[1]d}}, filter_chains: [{filters: [{name: hcm, typed_config: {
		"@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager, stat_prefix: "%[3]s",
		route_config: {}, http_filters: [{name: r, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}]}}]}]}`, port, c.Bind, name)
}

func TestSecureMetricsAreForCertificatesOfTheMeshAlone(t *testing.T) {
	mesh, other := testpki.New(t, "mesh"), testpki.New(t, "another mesh")
	c := sidecarAt(t, "127.101.13.1")
	c.SecureMetricsPort, c.SecureMergedMetricsPort = 15091, 15092
	c.SDSSocket = filepath.Join(t.TempDir(), "sds")
	serveSecrets(t, c.SDSSocket, mesh)
	agent(t, c)
	run(t, testenv.EnvoyVersion, c)
	for _, at := range []struct {
		port       uint32
		path, want string
	}{{15091, statsPath, "envoy_server_live"}, {15092, statsPath, "merged_statistics"}, {15092, "/metrics", "merged_statistics"}} {
		port, want := at.port, at.want
		url := "https://" + hostPort(c.Bind.String(), port) + at.path
		testenv.Eventually(t, "the statistics", func() error {
			body, err := meshClient(t, mesh, mesh).get(url)
			if err == nil && !strings.Contains(body, want) {
				err = fmt.Errorf("the response lacks %s: %s", want, body)
			}
			return err
		})
		if body, err := meshClient(t, mesh, other).get(url); err == nil {
			t.Errorf("port %d accepts a client of another mesh: %.60s", port, body)
		}
		if body, err := meshClient(t, mesh, nil).get(url); err == nil {
			t.Errorf("port %d accepts a client without a certificate: %.60s", port, body)
		}
		if _, err := get("http://" + hostPort(c.Bind.String(), port) + statsPath); err == nil {
			t.Errorf("port %d responds without TLS", port)
		}
	}
}

type client struct{ *http.Client }

func (c client) tls() *tls.Config { return c.Transport.(*http.Transport).TLSClientConfig.Clone() }

func (c client) get(url string) (string, error) {
	response, err := c.Get(url)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return string(body), err
}

// meshClient returns a client that trusts one mesh, and presents a certificate of a mesh or none.
func meshClient(t *testing.T, trusts, shows *testpki.Authority) client {
	config := &tls.Config{InsecureSkipVerify: true, VerifyConnection: func(s tls.ConnectionState) error {
		_, err := s.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: trusts.Pool()})
		return err
	}}
	if shows != nil {
		cert, key := shows.Workload(t, "spiffe://cluster.local/ns/monitoring/sa/prometheus")
		pair, err := tls.X509KeyPair(cert, key)
		if err != nil {
			t.Fatal(err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return client{&http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}}}
}

// serveSecrets serves a workload's certificate and its mesh's roots, as the agent does.
type secrets struct {
	secretv3.UnimplementedSecretDiscoveryServiceServer
	byName map[string]*tlsv3.Secret
}

func serveSecrets(t *testing.T, socket string, mesh *testpki.Authority) {
	t.Helper()
	cert, key := mesh.Workload(t, "spiffe://cluster.local/ns/default/sa/bookshop-reviews")
	inline := func(b []byte) *corev3.DataSource {
		return &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: b}}
	}
	s := &secrets{byName: map[string]*tlsv3.Secret{
		workloadSecret: {Name: workloadSecret, Type: &tlsv3.Secret_TlsCertificate{
			TlsCertificate: &tlsv3.TlsCertificate{CertificateChain: inline(cert), PrivateKey: inline(key)}}},
		rootSecret: {Name: rootSecret, Type: &tlsv3.Secret_ValidationContext{
			ValidationContext: &tlsv3.CertificateValidationContext{TrustedCa: inline(mesh.PEM())}}},
	}}
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	secretv3.RegisterSecretDiscoveryServiceServer(server, s)
	go server.Serve(l)
	t.Cleanup(server.Stop)
}

func (s *secrets) StreamSecrets(stream secretv3.SecretDiscoveryService_StreamSecretsServer) error {
	for {
		request, err := stream.Recv()
		if err != nil {
			return err
		}
		if request.GetVersionInfo() != "" {
			continue
		}
		response := &discoveryv3.DiscoveryResponse{VersionInfo: "1", Nonce: "1", TypeUrl: request.GetTypeUrl()}
		for _, name := range request.GetResourceNames() {
			packed, err := anypb.New(proto.Message(s.byName[name]))
			if err != nil {
				return err
			}
			response.Resources = append(response.Resources, packed)
		}
		if err := stream.Send(response); err != nil {
			return err
		}
	}
}

// Envoy requests the rest of its configuration in each of three cases: the control plane does not know the proxy's own
// workload, the control plane is unreachable, or a collector's name does not resolve.
func TestEnvoyRequestsConfigurationDespiteBrokenTelemetry(t *testing.T) {
	c := golden["zone-aware"]()
	c.Bind = addr(t, "127.101.16.1")
	dns, err := net.ListenPacket("udp", c.Bind.String()+":0") // receives requests and never responds
	if err != nil {
		t.Fatal(err)
	}
	defer dns.Close()
	c.ProxyConfig.Tracing = &meshv1.Tracing{Tracer: &meshv1.Tracing_Zipkin_{Zipkin: &meshv1.Tracing_Zipkin{Address: "zipkin.example:9411"}}}
	at := dns.LocalAddr().(*net.UDPAddr)
	c.Override = fmt.Appendf(nil, `{typed_dns_resolver_config: {name: envoy.network.dns_resolver.cares, typed_config: {
		"@type": type.googleapis.com/envoy.extensions.network.dns_resolver.cares.v3.CaresDnsResolverConfig,
		resolvers: [{socket_address: {address: %s, port_value: %d, protocol: UDP}}],
		query_timeout_seconds: 60, query_tries: 100, dns_resolver_options: {no_default_search_domain: true}}}}`, at.IP, at.Port)
	c.XDSSocket = filepath.Join(t.TempDir(), "xds")
	asked := make(chan string, 8)
	serveDiscovery(t, c.XDSSocket, &discovery{requested: asked})
	start(t, testenv.EnvoyVersion, t.TempDir(), encoded(t, c))
	deadline, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for {
		select {
		case url := <-asked:
			if strings.HasSuffix(url, "config.cluster.v3.Cluster") {
				return
			}
		case <-deadline.Done():
			t.Fatal("Envoy did not request clusters")
		}
	}
}

// discovery is an ADS server that records requested types. It sends empty responses, or none.
type discovery struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	answers   bool
	requested chan<- string
}

func serveDiscovery(t *testing.T, socket string, d *discovery) {
	t.Helper()
	serve(t, socket, func(s *grpc.Server) { discoveryv3.RegisterAggregatedDiscoveryServiceServer(s, d) })
}

// serve runs a gRPC server on a unix socket until the test ends.
func serve(t *testing.T, socket string, register func(*grpc.Server)) {
	t.Helper()
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	register(server)
	go server.Serve(l)
	t.Cleanup(server.Stop)
}

func (d *discovery) DeltaAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	for {
		request, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if d.requested != nil {
			select {
			case d.requested <- request.GetTypeUrl():
			case <-stream.Context().Done():
				return stream.Context().Err()
			}
		}
		if d.answers && request.GetResponseNonce() == "" {
			if err := stream.Send(&discoveryv3.DeltaDiscoveryResponse{TypeUrl: request.GetTypeUrl(), Nonce: "1"}); err != nil {
				return err
			}
		}
	}
}
