package bootstrap

import (
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	meshv1 "istio.io/api/mesh/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// collector is an HTTP server that accepts any telemetry. It records the requested paths and their headers.
type collector struct {
	address netip.AddrPort
	mu      sync.Mutex
	paths   map[string]http.Header
}

func collect(t *testing.T, ip string) *collector {
	t.Helper()
	l, err := net.Listen("tcp", ip+":0")
	if err != nil {
		t.Fatal(err)
	}
	c := &collector{address: l.Addr().(*net.TCPAddr).AddrPort(), paths: map[string]http.Header{}}
	protocols := &http.Protocols{}
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	server := &http.Server{Protocols: protocols, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.paths[r.URL.Path] = r.Header.Clone()
	})}
	go server.Serve(l)
	t.Cleanup(func() { server.Close() })
	return c
}

// header returns the headers of the request to a path, or an error if there was none.
func (c *collector) header(path string) (http.Header, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if h, ok := c.paths[path]; ok {
		return h, nil
	}
	return nil, fmt.Errorf("no request for %s was received, only for %v", path, slices.Collect(maps.Keys(c.paths)))
}

func TestTelemetryArrives(t *testing.T) {
	const otlp = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
	cases := []struct {
		name   string
		change func(*Config, netip.AddrPort)
		path   string
		header map[string]string
	}{
		{"zipkin", func(c *Config, a netip.AddrPort) {
			c.ProxyConfig.Tracing = &meshv1.Tracing{Tracer: &meshv1.Tracing_Zipkin_{Zipkin: &meshv1.Tracing_Zipkin{Address: a.String()}}}
		}, "/api/v2/spans", map[string]string{"Content-Type": "application/json"}},
		{"datadog", func(c *Config, a netip.AddrPort) {
			c.HostIP = a.Addr().String()
			c.ProxyConfig.Tracing = &meshv1.Tracing{Tracer: &meshv1.Tracing_Datadog_{
				Datadog: &meshv1.Tracing_Datadog{Address: fmt.Sprintf("$(HOST_IP):%d", a.Port())}}}
		}, "/v0.4/traces", map[string]string{"Content-Type": "application/msgpack"}},
		{"lightstep", func(c *Config, a netip.AddrPort) {
			c.ProxyConfig.Tracing = &meshv1.Tracing{Tracer: &meshv1.Tracing_Lightstep_{
				Lightstep: &meshv1.Tracing_Lightstep{Address: a.String(), AccessToken: "top-secret"}}}
		}, otlp, map[string]string{lightstepTokenHeader: "top-secret"}},
		{"OpenTelemetry", func(c *Config, a netip.AddrPort) {
			c.TracingProvider = golden["tracing-opentelemetry"]().TracingProvider
			c.TracingProvider.GetOpentelemetry().Service = a.Addr().String()
			c.TracingProvider.GetOpentelemetry().Port = uint32(a.Port())
		}, otlp, map[string]string{"X-Team": "shop"}},
		{"OpenTelemetry over HTTP", func(c *Config, a netip.AddrPort) {
			c.TracingProvider = golden["tracing-opentelemetry-http"]().TracingProvider
			c.TracingProvider.GetOpentelemetry().Service = a.Addr().String()
			c.TracingProvider.GetOpentelemetry().Port = uint32(a.Port())
		}, "/v1/traces", map[string]string{"Api-Key": "from the environment", "X-Share": "50% of them"}},
		{"metrics service", func(c *Config, a netip.AddrPort) {
			c.ProxyConfig.EnvoyMetricsService = &meshv1.RemoteService{Address: a.String()}
			c.Annotations = map[string]string{annotationFlush: "100ms"}
		}, "/envoy.service.metrics.v3.MetricsService/StreamMetrics", map[string]string{"Content-Type": "application/grpc"}},
		{"access log service", func(c *Config, a netip.AddrPort) {
			c.ProxyConfig.EnvoyAccessLogService = &meshv1.RemoteService{Address: a.String()}
		}, "/envoy.service.accesslog.v3.AccessLogService/StreamAccessLogs", map[string]string{"Content-Type": "application/grpc"}},
	}
	t.Setenv("API_KEY", "from the environment")
	for i, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			c := sidecarAt(t, fmt.Sprintf("127.101.14.%d", i+1))
			to := collect(t, c.Bind.String())
			tc.change(&c, to.address)
			c.Override = echo(c, 8080)
			run(t, testenv.EnvoyVersion, c)
			var header http.Header
			testenv.Eventually(t, tc.name, func() (err error) {
				if _, err := get("http://" + hostPort(c.Bind.String(), 8080)); err != nil {
					return err
				}
				header, err = to.header(tc.path)
				return err
			})
			for name, want := range tc.header {
				if got := header.Get(name); got != want {
					t.Errorf("header %s: %q, want %q", name, got, want)
				}
			}
		})
	}
}

func TestStatsdGetsStatistics(t *testing.T) {
	c := sidecarAt(t, "127.101.15.1")
	to, err := net.ListenPacket("udp", c.Bind.String()+":0")
	if err != nil {
		t.Fatal(err)
	}
	defer to.Close()
	c.ProxyConfig.StatsdUdpAddress = to.LocalAddr().String()
	c.Annotations = map[string]string{annotationFlush: "100ms"}
	run(t, testenv.EnvoyVersion, c)
	if err := to.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	packet := make([]byte, 1<<16)
	n, _, err := to.ReadFrom(packet)
	if err != nil || !strings.HasPrefix(string(packet[:n]), "envoy.") {
		t.Errorf("%q, %v", packet[:n], err)
	}
}
