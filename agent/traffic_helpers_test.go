package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/echo/v3" // registers types for the JSON of listeners
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/pilotfish-mesh/pilotfish/internal/backoff"
)

const httpListener = `{"name": "web", "address": {"socketAddress": {"address": %q, "portValue": 8080}}, "trafficDirection": "INBOUND",
 "filterChains": [{"filters": [{"name": "hcm", "typedConfig": {
  "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
  "statPrefix": "web", "httpFilters": [{"name": "router", "typedConfig": {"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}}],
  "routeConfig": {"virtualHosts": [{"name": "all", "domains": ["*"], "routes": [
   {"match": {"prefix": "/grpc"}, "route": {"cluster": "app", "timeout": "0s"}},
   {"match": {"prefix": "/"}, "directResponse": {"status": 200, "body": {"inlineString": "hello"}}}]}]}}}]}]}`

const echoListener = `{"name": "echo", "address": {"socketAddress": {"address": %q, "portValue": 9000}}, "trafficDirection": "INBOUND",
 "filterChains": [{"filters": [{"name": "echo", "typedConfig": {"@type": "type.googleapis.com/envoy.extensions.filters.network.echo.v3.Echo"}}]}]}`

const appCluster = `{"name": "app", "type": "STATIC", "connectTimeout": "5s",
 "loadAssignment": {"clusterName": "app", "endpoints": [{"lbEndpoints": [{"endpoint": {"address": {"socketAddress": {"address": "127.0.0.1", "portValue": %d}}}}]}]},
 "typedExtensionProtocolOptions": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
  "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions", "explicitHttpConfig": {"http2ProtocolOptions": {}}}}}`

func message[M proto.Message](t *testing.T, into M, format string, args ...any) M {
	t.Helper()
	if err := protojson.Unmarshal(fmt.Appendf(nil, format, args...), into); err != nil {
		t.Fatal(err)
	}
	return into
}

// serveTraffic configures an HTTP listener with a gRPC application behind it, and an echo listener.
func (s *agentSetup) serveTraffic(t *testing.T) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	app := grpc.NewServer()
	healthv1.RegisterHealthServer(app, health.NewServer())
	go func() { _ = app.Serve(l) }()
	t.Cleanup(app.Stop)
	s.cp.more = []*listenerv3.Listener{
		message(t, &listenerv3.Listener{}, httpListener, s.address), message(t, &listenerv3.Listener{}, echoListener, s.address),
	}
	s.cp.clusters = []*clusterv3.Cluster{message(t, &clusterv3.Cluster{}, appCluster, l.Addr().(*net.TCPAddr).Port)}
}

// traffic is a set of clients of all kinds. Each sends its next request shortly after a response.
type traffic struct {
	t        *testing.T
	address  string
	ctx      context.Context
	cancel   context.CancelFunc
	clients  sync.WaitGroup
	requests atomic.Int64
	mu       sync.Mutex
	failed   []error
}

// betweenRequests is a pause that leaves CPU time to other tests.
const betweenRequests = 5 * time.Millisecond

// startTraffic starts the clients of startClients and a continuous readiness probe.
func startTraffic(t *testing.T, address string) *traffic {
	t.Helper()
	l := startClients(t, address)
	l.clients.Go(func() { l.probe(l.ctx) })
	return l
}

func startClients(t *testing.T, address string) *traffic {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	l := &traffic{t: t, address: address, ctx: ctx, cancel: cancel}
	t.Cleanup(func() { l.stop() })
	var h2 http.Protocols
	h2.SetUnencryptedHTTP2(true)
	for range 2 {
		l.client(ctx, "keep-alive", &http.Transport{})
		l.client(ctx, "new connections", &http.Transport{DisableKeepAlives: true})
		l.client(ctx, "HTTP/2", &http.Transport{Protocols: &h2})
	}
	l.clients.Go(func() { l.rpcs(ctx) })
	return l
}

// probe checks continuously that the agent reports ready.
func (l *traffic) probe(ctx context.Context) {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: testTimeout}
	for backoff.Sleep(ctx, 20*time.Millisecond) {
		r, err := client.Get("http://" + l.address + ":15020/healthz/ready")
		if err == nil {
			body, _ := io.ReadAll(r.Body)
			_ = r.Body.Close()
			if r.StatusCode != http.StatusOK {
				err = fmt.Errorf("%d %s", r.StatusCode, body)
			}
		}
		if err != nil {
			l.fail("readiness", err)
		}
	}
}

func (l *traffic) fail(kind string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failed = append(l.failed, fmt.Errorf("%s: %w", kind, err))
}

func (l *traffic) client(ctx context.Context, kind string, transport *http.Transport) {
	client := &http.Client{Transport: transport, Timeout: testTimeout}
	l.clients.Go(func() {
		defer transport.CloseIdleConnections()
		for ctx.Err() == nil {
			l.requests.Add(1)
			if err := postOnce(client, "http://"+l.address+":8080/"); err != nil {
				l.fail(kind, err)
			}
			backoff.Sleep(ctx, betweenRequests)
		}
	})
}

// postOnce sends a POST, because a client may silently retry a GET on a closed connection.
func postOnce(client *http.Client, url string) error {
	r, err := client.Post(url, "text/plain", io.MultiReader(strings.NewReader("x")))
	if err != nil {
		return err
	}
	defer func() { _ = r.Body.Close() }()
	body, err := io.ReadAll(r.Body)
	if err == nil && (r.StatusCode != http.StatusOK || string(body) != "hello") {
		err = fmt.Errorf("%d %s", r.StatusCode, body)
	}
	return err
}

func (l *traffic) rpcs(ctx context.Context) {
	conn, err := grpc.NewClient(l.address+":8080", grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDisableRetry())
	if err != nil {
		l.fail("gRPC", err)
		return
	}
	defer func() { _ = conn.Close() }()
	for ctx.Err() == nil {
		l.requests.Add(1)
		if _, err := healthv1.NewHealthClient(conn).Check(ctx, &healthv1.HealthCheckRequest{}, grpc.WaitForReady(true)); err != nil && ctx.Err() == nil {
			l.fail("gRPC", err)
		}
		backoff.Sleep(ctx, betweenRequests)
	}
}

// stop stops the clients and returns the number of requests and the failures.
func (l *traffic) stop() (asked int64, failed []error) {
	l.cancel()
	l.clients.Wait()
	return l.requests.Load(), l.failed
}

// checkLossless checks that no request failed, and that enough were sent.
func (l *traffic) checkLossless() {
	l.t.Helper()
	asked, failed := l.stop()
	if len(failed) > 0 {
		l.t.Errorf("%d of %d requests failed: %v", len(failed), asked, errors.Join(failed[:min(len(failed), 5)]...))
	}
	if asked < 100 {
		l.t.Errorf("only %d requests were sent", asked)
	}
	l.t.Logf("%d requests", asked)
}

// stream is a long-lived gRPC stream and TCP connection.
type stream struct {
	t      *testing.T
	tcp    net.Conn
	watch  grpc.ServerStreamingClient[healthv1.HealthCheckResponse]
	cancel context.CancelFunc
	broken chan error
}

func openStreams(t *testing.T, address string) *stream {
	t.Helper()
	s := &stream{t: t, broken: make(chan error, 1)}
	var err error
	if s.tcp, err = net.Dial("tcp", address+":9000"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.tcp.Close() })
	conn, err := grpc.NewClient(address+":8080", grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	ctx, cancel := context.WithCancel(t.Context())
	s.cancel = func() { cancel(); _ = conn.Close(); _ = s.tcp.Close() }
	if s.watch, err = healthv1.NewHealthClient(conn).Watch(ctx, &healthv1.HealthCheckRequest{}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.watch.Recv(); err != nil {
		t.Fatal(err)
	}
	go func() { _, err := s.watch.Recv(); s.broken <- err }()
	s.alive()
	return s
}

// alive checks that the gRPC stream and the TCP connection still work.
func (s *stream) alive() {
	s.t.Helper()
	_ = s.tcp.SetDeadline(time.Now().Add(testTimeout))
	var answer [4]byte
	_, err := s.tcp.Write([]byte("ping"))
	if err == nil {
		_, err = io.ReadFull(s.tcp, answer[:])
	}
	if err != nil || string(answer[:]) != "ping" {
		s.t.Errorf("the TCP connection: %q, %v", answer, err)
	}
	select {
	case err := <-s.broken:
		s.t.Errorf("the gRPC stream ended: %v", err)
	default:
	}
}
